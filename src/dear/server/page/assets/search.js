// Search: an image or a sentence, a weight per component, and the most similar images of the gallery.

import { ask, el, imageField, message, worker } from "./common.js";

export function buildSearch(section, about) {
  if (!about.gallery) {
    section.append(el("div", { class: "card" },
      el("h2", {}, "There is no gallery yet"),
      el("p", {}, "Make one from a folder of images, then start the page with it:"),
      el("pre", {}, `dear index RUN photos/ --out gallery\ndear serve RUN --page --gallery gallery`)));
    return;
  }
  const colors = Object.fromEntries(about.gallery.components.map((c) => [c.name, c.color]));
  const results = el("div", { class: "result", "aria-live": "polite" });
  const run = worker(results);
  let query = null; // {body} or {values}
  let timer = null;
  const sliders = about.gallery.components.map(({ name, color }) => slider(name, color, name === "cls" ? 1 : 0, () => later()));
  const sentence = el("input", { type: "search", placeholder: "or describe it: a castle at night", "aria-label": "sentence" });
  const label = el("input", { type: "search", placeholder: "all labels", "aria-label": "label" });
  const field = imageField(about, "Choose an image", (file) => {
    if (file instanceof Error) { run(() => { throw file; }); return; }
    sentence.value = "";
    query = { body: file };
    search();
  });
  const like = (path) => { sentence.value = ""; query = { values: { like: path } }; search(); scrollTo({ top: 0 }); };
  const later = () => { clearTimeout(timer); timer = setTimeout(search, 250); };
  sentence.addEventListener("input", () => {
    if (!sentence.value.trim()) return;
    query = { values: { text: sentence.value } };
    later();
  });
  label.addEventListener("input", later);

  const search = () => query && run(async () => {
    const by = sliders.filter((s) => s.value() > 0).map((s) => `${s.name}=${s.value()}`).join(",");
    if (!by) throw new Error("All weights are zero: move a slider up.");
    const result = await ask("/api/search", { by, label: label.value, ...query.values }, query.body, "POST");
    field.show(result.query);
    if (!result.hits.length) return message("No image of the gallery has such a label.");
    return [el("h3", {}, `Most similar in ${words(sliders)}`),
      el("div", { class: "hits" }, result.hits.map((hit) => card(hit, colors, like)))];
  }, "searching …");

  section.append(el("div", { class: "columns side" },
    el("div", {}, field.field, sentence,
      el("div", { class: "card" }, el("h3", {}, "Similar in what?"), sliders.map((s) => s.row)),
      el("label", { class: "stacked" }, el("span", { class: "soft" }, "Only labels that contain"), label)),
    results));
  run(async () => {
    const first = await ask("/api/starters");
    if (!first.length) return message("The gallery is empty: add images with `dear index`.");
    return [el("h3", {}, "Choose an image, write a sentence, or start with one of these"),
      el("div", { class: "hits" }, first.map((hit) => card(hit, colors, like)))];
  }, "opening the gallery …");
}

function slider(name, color, start, changed) {
  const number = el("span", { class: "number" }, start.toFixed(1));
  const input = el("input", { type: "range", min: 0, max: 1, step: 0.1, value: start, "aria-label": name,
    style: { "--c": color, "--value": start } });
  input.addEventListener("input", () => { number.textContent = Number(input.value).toFixed(1); input.style.setProperty("--value", input.value); changed(); });
  const title = name === "cls" ? "class" : name;
  return { name, title, value: () => Number(input.value),
    row: el("label", { class: "slider" }, el("b", { class: "tint", style: { "--c": color } }, title), input, number) };
}

function words(sliders) {
  const used = sliders.filter((s) => s.value() > 0).map((s) => s.title);
  return used.length > 1 ? `${used.slice(0, -1).join(", ")} and ${used.at(-1)}` : used[0];
}

function card(hit, colors, like) {
  const parts = Object.entries(hit.scores ?? {});
  return el("button", { class: "hit", title: hit.path, "aria-label": `search by ${hit.label ?? hit.path}`, onclick: () => like(hit.path) },
    hit.image ? el("img", { src: hit.image, alt: hit.label ?? "" }) : el("span", { class: "gone soft" }, "file not found"),
    hit.score != null && el("span", { class: "caption" },
      el("span", {}, hit.label ?? ""), el("b", { class: "number" }, hit.score.toFixed(2))),
    parts.length > 1 && el("span", { class: "parts" }, parts.map(([name, cosine]) =>
      el("i", { class: "fill", title: `${name} ${cosine.toFixed(3)}`, style: { "--c": colors[name], height: `${Math.max(6, 100 * cosine)}%` } }))));
}
