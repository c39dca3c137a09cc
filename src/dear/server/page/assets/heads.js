// Heads: the role map; a click on a head shows the evidence for its role and the pictures it responds to.

import { ask, bar, el, worker } from "./common.js";

export function buildHeads(section) {
  worker(section)(async () => {
    const map = await ask("/api/heads");
    const detail = el("div", { class: "result", "aria-live": "polite" });
    const choose = chooser(map, detail);
    const cells = map.cells.map((cell) => headButton(cell, map, choose));
    const core = map.cells.findIndex((cell) => cell.role === "core_attribute");
    choose(map.cells[Math.max(0, core)], cells[Math.max(0, core)]);
    return [grid(map, cells), detail];
  }, "reading the role map …");
}

function grid(map, cells) {
  const rows = [...map.layers].reverse().map((layer) => [
    el("span", { class: "soft layer" }, `layer ${layer}`),
    cells.filter((_, i) => map.cells[i].layer === layer),
  ]);
  const columns = Array.from({ length: map.heads }, (_, i) => el("span", { class: "soft column" }, `${i}`));
  return el("div", { class: "card" },
    el("h3", {}, "Roles of the attention heads"),
    el("p", { class: "soft" }, [map.summary, map.origin].filter(Boolean).join(" · ")),
    el("div", { class: "grid", style: { "--heads": map.heads } }, rows.flat(2), el("span", { class: "soft layer" }, "head"), columns),
    el("p", { class: "soft legend" }, Object.values(map.roles).map((role) => el("span", {}, `${role.mark} ${role.name}`)),
      map.legend && el("span", {}, map.legend)));
}

function headButton(cell, map, choose) {
  const role = map.roles[cell.role];
  return el("button", {
    class: `head ${isDark(cell.color, cell.strength) ? "strong" : ""}`,
    style: { "--color": cell.color, "--strength": `${100 * cell.strength}%` },
    "aria-label": `layer ${cell.layer}, head ${cell.head}: ${role.name}${cell.concept ? `, ${cell.concept}` : ""}`,
    onclick: (event) => choose(cell, event.currentTarget),
  },
  el("b", {}, cell.concept ?? "–"),
  el("span", {}, el("i", {}, role.mark), el("i", {}, cell.number)));
}

// Whether a colour mixed with white still needs white letters. On the dark page letters are light anyway.
function isDark(color, strength) {
  const [red, green, blue] = [1, 3, 5].map((i) => (strength * parseInt(color.slice(i, i + 2), 16)) / 255 + 1 - strength);
  return 0.299 * red + 0.587 * green + 0.114 * blue < 0.58;
}

function chooser(map, detail) {
  const run = worker(detail);
  let before = null;
  return (cell, button) => {
    before?.removeAttribute("aria-pressed");
    button.setAttribute("aria-pressed", "true");
    before = button;
    const pictures = el("div", { class: "card" });
    run(() => [about(cell, map), el("div", { class: "columns halves" }, distribution(cell), phrases(cell)), pictures]);
    worker(pictures)(async () => {
      // The server reads the pictures once, after the first click; until then it reports its progress.
      for (;;) {
        const extremes = await ask("/api/head-pictures", { layer: cell.layer, head: cell.head });
        if (extremes.of == null) return pictureRows(extremes);
        if (before !== button) return null;
        pictures.replaceChildren(el("p", { class: "soft" },
          `reading ${extremes.of} pictures, only this once: ${extremes.done} done …`));
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }, "reading the pictures …");
  };
}

function about(cell, map) {
  const role = map.roles[cell.role];
  const entropy = cell.entropy == null ? "" : ` · concept entropy ${cell.entropy.toFixed(2)} nats`;
  const sure = cell.sure == null ? "" : ` · the same attribute in ${(100 * cell.sure).toFixed(0)}% of resamples`;
  const bare = cell.distribution.length + cell.phrases.length === 0;
  return el("div", { class: "card" },
    el("div", { class: "answer" },
      el("h2", {}, `Layer ${cell.layer}, head ${cell.head}`),
      cell.concept && el("span", { class: "chip", style: { "background-color": cell.color } }, cell.concept)),
    el("p", { class: "soft" }, `${role.mark} ${role.name}${entropy}${sure}`),
    bare && el("p", {}, "This role map has the role alone: the phrases and concepts that led to it are not in the map. ",
      "A map made with ", el("code", {}, "dear roles"), " includes them."));
}

function distribution(cell) {
  if (!cell.distribution.length) return null;
  const sorted = [...cell.distribution].sort((a, b) => b.share - a.share);
  return el("div", { class: "card" }, el("h3", {}, cell.phrases.length ? "Concepts of its phrases" : "What its output varies with"),
    el("div", { class: "rows" }, sorted.map((part) => [
      el("span", {}, part.concept), bar(part.share, part.color), el("span", { class: "number" },
        `${(100 * part.share).toFixed(0)}%${part.lift == null ? "" : ` (${part.lift.toFixed(1)}x)`}`),
    ]).flat()),
    sorted.some((part) => part.lift != null) && el("p", { class: "soft" },
      "Share of the variance of its output; in parentheses: over that of the mean head, by which heads are ranked."));
}

function phrases(cell) {
  if (!cell.phrases.length) return null;
  const most = Math.max(...cell.phrases.map((phrase) => phrase.variance));
  return el("div", { class: "card" }, el("h3", {}, "Phrases that describe it"),
    el("div", { class: "rows phrases" }, cell.phrases.map((phrase) => [
      el("span", {}, el("i", { class: "dot fill", title: phrase.concept, style: { "--c": phrase.color } }), phrase.text),
      bar(phrase.variance / most, phrase.color), el("span", { class: "number" }, `${(100 * phrase.variance).toFixed(1)}%`),
    ]).flat()),
    el("p", { class: "soft" }, "The number is the share of the head's variance that the phrase explains."));
}

function pictureRows(extremes) {
  const titles = extremes.along ? [`Most output along “${extremes.along}”`, "Least output along it"]
    : ["One end of the direction in which its output varies most", "The other end"];
  return [
    el("h3", {}, "Pictures it responds to"),
    el("div", { class: "columns pair" }, [["most", titles[0]], ["least", titles[1]]].map(([side, title]) => el("div", {},
      el("p", {}, title),
      el("div", { class: "thumbs wide" }, extremes[side].map((url) => url && el("img", { src: url, alt: `${side} output` })))))),
    el("p", { class: "soft" }, `Chosen from ${extremes.count} pictures of ${extremes.source}.`),
  ];
}
