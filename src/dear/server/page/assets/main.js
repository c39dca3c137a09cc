// Opens the view named in the address, and builds it the first time.

import { ask, el, message } from "./common.js";
import { buildClassify } from "./classify.js";
import { buildHeads } from "./heads.js";
import { buildSearch } from "./search.js";

const views = { classify: buildClassify, heads: buildHeads, search: buildSearch };
const opened = new Set();

function open(about) {
  const hash = location.hash.slice(1);
  const name = hash in views ? hash : "classify";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== name;
  for (const tab of document.querySelectorAll("nav a")) {
    tab.setAttribute("aria-selected", String(tab.hash === `#${name}`));
  }
  if (!opened.has(name)) views[name](document.getElementById(name), about);
  opened.add(name);
}

try {
  const about = await ask("/api/about");
  const parts = [`${about.backbone}`, `${about.classes.length} classes`, `run ${about.run}`];
  if (about.gallery) parts.push(`gallery ${about.gallery.name}, ${about.gallery.images} images`);
  document.getElementById("about").replaceChildren(...parts.map((part) => el("span", {}, part)));
  document.title = `dear · ${about.run}`;
  addEventListener("hashchange", () => open(about));
  open(about);
} catch (error) {
  document.querySelector("main").replaceChildren(message(error.message));
}
