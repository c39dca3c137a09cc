// Classify: an image in; its class, the vote of each component, and where each of them looked.

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
      const answer = await ask("/api/classify", values, body, "POST");
      field.show(answer.seen);
      return show(answer, colors);
    } catch (error) {
      field.show(null);
      throw error;
    }
  });
  const examples = about.examples.map((example, number) =>
    el("button", { class: "thumb", title: `example: ${example.name}`, onclick: (event) => {
      for (const other of examples) other.removeAttribute("aria-pressed");
      event.currentTarget.setAttribute("aria-pressed", "true");
      classify({ example: number });
    } }, el("img", { src: example.image, alt: example.name })));
  result.append(el("div", { class: "card soft hint" },
    el("p", {}, "The answer appears here: the class, the vote of each component, and where each component looked."),
    el("p", {}, `The model chooses from ${about.classes.length} classes: `, about.classes.slice(0, 12).join(", "),
      about.classes.length > 12 ? ", …" : "")));
  section.append(el("div", { class: "columns side" },
    el("div", {}, field.field,
      examples.length > 0 && el("div", {}, el("h3", {}, "Or try an example"), el("div", { class: "thumbs" }, examples))),
    result));
}

function show(answer, colors) {
  return [
    el("div", { class: "card" },
      el("div", { class: "answer" }, el("h2", {}, answer.choice), el("span", {}, percent(answer.probability))),
      el("p", { class: "soft runners" }, "next: ", answer.top.slice(1).map(([name, p], i) =>
        el("span", {}, `${i ? ", " : ""}${name} ${percent(p)}`)))),
    el("div", { class: "card" },
      el("h3", {}, "Votes of the components"),
      el("p", { class: "soft" }, `Bar: how far a component puts “${answer.choice}” ahead of the next best class, times its weight; pale: it votes against.`),
      el("div", { class: "votes" }, answer.votes.map((vote) => voteRow(vote, answer, colors)))),
    el("div", { class: "card" },
      el("h3", {}, "Where each component looked"),
      el("div", { class: "maps" }, answer.maps.map((map) => el("figure", {},
        el("img", { src: map.image, alt: `attention of ${map.component}` }),
        el("figcaption", {}, el("b", { class: "tint", style: { "--c": colors[map.component] } }, map.component),
          el("span", { class: "soft" }, map.heads))))),
      el("p", { class: "soft" }, "Bright: much attention, averaged over the heads named below each picture.")),
  ];
}

function voteRow(vote, answer, colors) {
  const agrees = vote.choice === answer.choice;
  const most = Math.max(...answer.votes.map((other) => Math.abs(other.lead))) || 1;
  const say = Math.abs(vote.lead) / most; // its part in the decision
  return el("div", { class: "vote", style: { "--say": 0.45 + 0.55 * say } },
    el("b", { class: "tint", style: { "--c": colors[vote.component] } }, vote.component),
    el("span", { class: "soft number" }, `× ${vote.weight.toFixed(2)}`),
    bar(say, colors[vote.component], vote.lead < 0),
    el("span", { class: "number" }, `${vote.lead < 0 ? "−" : "+"}${Math.abs(vote.lead).toFixed(2)}`),
    el("span", { class: "say" }, agrees ? "agrees" : `alone: ${vote.choice} (${percent(vote.probability)})`));
}
