// Heads: the role map; a click on a head shows the evidence for its role and the pictures it responds to.

import { ask, el, worker } from "./common.js";
import { evidence, pictureRows, roleMap } from "./role_map.js";

export function buildHeads(section) {
  worker(section)(async () => {
    const map = await ask("/api/heads");
    const detail = el("div", { class: "result", "aria-live": "polite" });
    const { card, buttons } = roleMap(map, chooser(map, detail));
    const core = map.cells.findIndex((cell) => cell.role === "core_attribute");
    buttons[Math.max(0, core)].click();
    return [card, detail];
  }, "reading the role map …");
}

function chooser(map, detail) {
  const run = worker(detail);
  let latest = null;
  return (cell) => {
    latest = cell;
    const pictures = el("div", { class: "card" });
    run(() => [...evidence(cell, map), pictures]);
    worker(pictures)(async () => {
      // The server reads the pictures once, after the first click; until then it reports its progress.
      for (;;) {
        const extremes = await ask("/api/head-pictures", { layer: cell.layer, head: cell.head });
        if (extremes.of == null) return picturesOf(extremes);
        if (latest !== cell) return null;
        pictures.replaceChildren(el("p", { class: "soft" },
          `reading ${extremes.of} pictures, only this once: ${extremes.done} done …`));
        await new Promise((resolve) => setTimeout(resolve, 500));
      }
    }, "reading the pictures …");
  };
}

function picturesOf(extremes) {
  const titles = extremes.along ? [`Most output along “${extremes.along}”`, "Least output along it"]
    : ["One end of the direction in which its output varies most", "The other end"];
  return [
    el("h3", {}, "Pictures it responds to"),
    pictureRows(extremes.most, extremes.least, titles),
    el("p", { class: "soft" }, `Chosen from ${extremes.count} pictures of ${extremes.source}.`),
  ];
}
