// Runs: a table of all runs in the folder of this one; curves of the chosen run, the others pale; benchmarks.

import { ask, el, message, worker } from "./common.js";
import { lineChart } from "./chart.js";

export function buildRuns(section, about) {
  const colors = Object.fromEntries(about.components.map((c) => [c.name, c.color]));
  let chosen = null;
  const start = worker(section);
  const again = () => start(async () => {
    const folder = await ask("/api/runs");
    chosen ??= folder.current;
    const curves = el("div", { class: "columns thirds" });
    const draw = () => {
      const run = folder.runs.find((r) => r.name === chosen) ?? folder.runs[0];
      if (run) curves.replaceChildren(...charts(run, folder.runs, colors));
    };
    draw();
    const parts = [folder.runs.length ? curves : null, runTable(folder, chosen, (name) => { chosen = name; draw(); })];
    parts.push(...folder.benches.map(benchTable), ...folder.problems.map(message));
    return parts;
  }, "reading the runs …");
  return { again };
}

function charts(chosen, runs, colors) {
  const line = (run, key) => run.epochs.filter((e) => key in e).map((e) => [e.epoch, e[key]]);
  const others = (key) => runs.filter((r) => r !== chosen).map((r) => ({ name: r.name, pale: true, points: line(r, key) }));
  const own = (name, key, color, dashed) => ({ name, color, dashed, points: line(chosen, key) });
  const fusion = chosen.components.map((name, i) => ({
    name: `${name} ${chosen.epochs.at(-1)?.fusion[i].toFixed(2)}`, color: colors[name] ?? "var(--soft)", points: chosen.epochs.map((e) => [e.epoch, e.fusion[i]]),
  }));
  return [
    lineChart("Loss", [...others("loss"), own(chosen.name, "loss", "var(--warn-line)")]),
    lineChart("Accuracy (%)", [...others("accuracy"), own(`${chosen.name}, training images`, "accuracy", "var(--accent)"),
      own("validation", "validation", "var(--soft)", true)]),
    lineChart(`Fusion weights of ${chosen.name}`, fusion),
  ].map((chart) => el("div", { class: "card" }, chart));
}

function runTable(folder, chosen, choose) {
  if (!folder.runs.length) return message("There is no run in this folder: make one with `dear train`.");
  const names = ["all", "base", "novel", "hm"].filter((name) => folder.runs.some((run) => name in run.results));
  const rows = folder.runs.map((run) => {
    const s = run.settings;
    const row = el("tr", { "aria-selected": String(run.name === chosen), tabindex: 0 },
      el("th", {}, run.name, run.name === folder.current && el("span", { class: "soft" }, " (this page)")),
      [s.model, s.data, s.classes, s.shots, s.seed, `${run.epochs.length} of ${run.planned}`].map((v) => el("td", {}, `${v ?? "–"}`)),
      names.map((name) => el("td", { class: "number" }, name in run.results ? run.results[name].toFixed(1) : "–")));
    const pick = () => {
      for (const other of rows) other.setAttribute("aria-selected", String(other === row));
      choose(run.name);
    };
    row.addEventListener("click", pick);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") pick(); });
    return row;
  });
  const header = ["run", "model", "data", "classes", "shots", "seed", "epochs"].map((name) => el("th", {}, name));
  const scores = names.map((name) => el("th", { class: "number" }, name === "hm" ? "HM" : name));
  return el("div", { class: "card" }, el("h3", {}, "Runs in this folder"),
    el("p", { class: "soft" }, "Test accuracy (%). Base: the classes of training; novel: all others; HM: their harmonic mean. ",
      "Click a run to see its curves."),
    el("div", { class: "scroll" }, el("table", { class: "choice" }, el("thead", {}, el("tr", {}, header, scores)), el("tbody", {}, rows))));
}

function benchTable(bench) {
  const hm = (row) => parseFloat(row[4] ?? "-1");
  const best = (row) => row[4] && bench.rows.every((other) => other[0] !== row[0] || hm(other) <= hm(row));
  const header = ["dataset", "method", "base", "novel", "HM"];
  return el("div", { class: "card" }, el("h3", {}, bench.title),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, header.map((name, i) => el("th", { class: i > 1 ? "number" : "" }, name)))),
      el("tbody", {}, bench.rows.map((row) => el("tr", { class: best(row) ? "best" : "" },
        row.map((value, i) => el(i ? "td" : "th", { class: i > 1 ? "number" : "" }, value ?? "–"))))))));
}
