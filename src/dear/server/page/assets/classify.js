// Classify: an image in; the answer, the votes, and where each attribute token looked.

import { ask, bar, el, imageField, percent, worker } from "./common.js";

export function buildClassify(section, about) {
  const colors = Object.fromEntries(about.components.map((c) => [c.name, c.color]));
  const result = el("div", { class: "result", "aria-live": "polite" });
  const run = worker(result);
  const field = imageField(about, "Choose an image", (file) => {
    for (const other of examples) other.removeAttribute("aria-pressed");
    if (file instanceof Error) { field.show(null); run(() => { throw file; }); return; }
    classify({}, file);
  });
  const classify = (values, body) => run(async () => {
    try {
      const found = await ask("/api/classify", values, body, "POST");
      field.show(found.seen);
      return show(found, colors);
    } catch (error) {
      field.show(null);
      throw error;
    }
  });
  const examples = about.examples.map((example, number) =>
    el("button", { class: "thumb", title: `it shows: ${example.name}`, onclick: (event) => {
      for (const other of examples) other.removeAttribute("aria-pressed");
      event.currentTarget.setAttribute("aria-pressed", "true");
      classify({ example: number });
    } }, el("img", { src: example.image, alt: example.name })));
  result.append(el("div", { class: "card soft hint" },
    el("p", {}, "The answer will be here: what it is, what each component voted, and where each attribute token looked."),
    el("p", {}, `It chooses from ${about.classes.length} classes: `, about.classes.slice(0, 12).join(", "),
      about.classes.length > 12 ? ", …" : "")));
  section.append(el("div", { class: "columns side" },
    el("div", {}, field.field,
      examples.length > 0 && el("div", {}, el("h3", {}, "or try one of these"), el("div", { class: "thumbs" }, examples))),
    result));
}

function show(found, colors) {
  return [
    el("div", { class: "card" },
      el("div", { class: "answer" }, el("h2", {}, found.choice), el("span", {}, percent(found.probability))),
      el("p", { class: "soft runners" }, "then ", found.top.slice(1).map(([name, p], i) =>
        el("span", {}, `${i ? ", " : ""}${name} ${percent(p)}`)))),
    el("div", { class: "card" },
      el("h3", {}, "What each component voted"),
      el("p", { class: "soft" }, `The bar is the probability it gives to “${found.choice}”, × how much its vote counts.`),
      el("div", { class: "votes" }, found.votes.map((vote) => voteRow(vote, found.choice, colors)))),
    el("div", { class: "card" },
      el("h3", {}, "Where each attribute token looked"),
      el("div", { class: "maps" }, found.maps.map((map) => el("figure", {},
        el("img", { src: map.image, alt: `attention of the ${map.attribute} token` }),
        el("figcaption", {}, el("b", { class: "tint", style: { "--c": colors[map.attribute] } }, map.attribute),
          el("span", { class: "soft" }, headsText(map.heads)))))),
      el("p", { class: "soft" }, "Bright: much attention. An attribute without heads of its own is shown over all heads.")),
  ];
}

function headsText(count) {
  return count === 0 ? "no heads of its own" : count === 1 ? "in its 1 head" : `in its ${count} heads`;
}

function voteRow(vote, choice, colors) {
  const agrees = vote.choice === choice;
  return el("div", { class: "vote" },
    el("b", { class: "tint", style: { "--c": colors[vote.component] } }, vote.component),
    el("span", { class: "soft number" }, `× ${vote.weight.toFixed(2)}`),
    bar(vote.for_answer, colors[vote.component]),
    el("span", { class: "number" }, percent(vote.for_answer)),
    el("span", { class: agrees ? "soft" : "other" }, agrees ? "agrees" : `says ${vote.choice} (${percent(vote.probability)})`));
}
