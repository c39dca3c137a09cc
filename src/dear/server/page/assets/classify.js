// Classify: an image in; its class, what decided for it, and where the model looked.

import { ask, bar, el, imageField, percent, worker } from "./common.js";

export function buildClassify(section, about) {
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
      return show(answer, Object.fromEntries(answer.maps.map((map) => [map.component, map.color])));
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
    el("p", {}, "The answer appears here: the class, what decided for it, and where the model looked."),
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
    el("div", { class: "card" }, answer.votes.length === 1 && answer.without ? losses(answer, colors) : votes(answer, colors)),
    el("div", { class: "card" },
      el("h3", {}, answer.votes.length === 1 ? "Where it looked" : "Where each component looked"),
      el("div", { class: "maps" }, answer.maps.map((map) => el("figure", {},
        el("img", { src: map.image, alt: `attention of ${map.component}` }),
        el("figcaption", {}, el("b", { class: "tint", style: { "--c": colors[map.component] } }, map.component),
          el("span", { class: "soft" }, map.heads))))),
      el("p", { class: "soft" }, "Bright: much attention, averaged over the heads named below each picture.")),
  ];
}

function votes(answer, colors) {
  return [
    el("h3", {}, "Votes of the components"),
    el("p", { class: "soft" }, `Bar: how far a component puts “${answer.choice}” ahead of the next best class, times its weight; pale bars speak against the answer.`),
    rows(answer.votes.map((vote) => ({
      name: vote.component,
      factor: `× ${vote.weight.toFixed(2)}`,
      length: vote.lead,
      say: vote.choice === answer.choice ? "agrees" : `alone: ${vote.choice} (${percent(vote.probability)})`,
    })), colors),
  ];
}

function losses(answer, colors) {
  const lead = answer.votes[0].lead;
  return [
    el("h3", {}, "What the heads of each attribute decide"),
    el("p", { class: "soft" }, `Bar: what the lead of “${answer.choice}” over the next best class, ${lead.toFixed(2)}, loses without the heads of an attribute; pale bars speak against the answer.`),
    rows(answer.without.map((other) => ({
      name: other.attribute,
      factor: "",
      length: lead - other.lead,
      say: `without it: ${other.choice === answer.choice ? "still " : ""}${other.choice}, ${percent(other.probability)}`,
    })), colors),
  ];
}

function rows(entries, colors) {
  const most = Math.max(...entries.map(({ length }) => Math.abs(length))) || 1;
  return el("div", { class: "votes" }, entries.map(({ name, factor, length, say }) => {
    const part = Math.abs(length) / most;
    return el("div", { class: "vote", style: { "--say": 0.45 + 0.55 * part } },
      el("b", { class: "tint", style: { "--c": colors[name] } }, name),
      el("span", { class: "soft number" }, factor),
      bar(part, colors[name], length < 0),
      el("span", { class: "number" }, `${length < 0 ? "−" : "+"}${Math.abs(length).toFixed(2)}`),
      el("span", { class: "say" }, say));
  }));
}
