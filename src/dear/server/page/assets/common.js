// Shared by all views: making elements, requests to the server, the field for an image.

import { el } from "./role_map.js";

export { bar, el } from "./role_map.js";

export async function ask(path, values = {}, body = undefined, method = undefined) {
  let response;
  try {
    response = await fetch(`${path}?${new URLSearchParams(values)}`, { method: method ?? (body ? "POST" : "GET"), body });
  } catch {
    throw new Error("dear does not answer: check that it is still running.");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Runs a job and shows its result, or its error, in a place; a newer job replaces an older one.
export function worker(place) {
  let latest = 0;
  return async (job, waiting = "…") => {
    const number = ++latest;
    place.classList.add("busy");
    if (!place.hasChildNodes()) place.append(el("p", { class: "soft" }, waiting));
    try {
      const result = await job();
      if (number === latest) place.replaceChildren(...[result].flat().filter(Boolean));
    } catch (error) {
      if (number === latest) place.replaceChildren(message(error.message));
    }
    if (number === latest) place.classList.remove("busy");
  };
}

export function message(text) {
  return el("p", { class: "message", role: "alert" }, text);
}

// A field for one image: click, drop or paste. `take` gets the file, or an Error if it is too large.
export function imageField(about, hint, take) {
  const receive = (file) => {
    if (!file) return;
    take(file.size > about.max_bytes ? new Error(about.too_many_bytes) : file);
  };
  const input = el("input", { type: "file", accept: "image/*", "aria-label": hint });
  input.addEventListener("change", () => { receive(input.files[0]); input.value = ""; });
  const preview = el("img", { alt: "the chosen image", hidden: true });
  const text = el("span", {}, el("b", {}, hint), el("br"), "or drop or paste one here");
  const field = el("label", { class: "drop" }, input, preview, text);
  for (const kind of ["dragover", "dragleave", "drop"]) {
    field.addEventListener(kind, (event) => {
      event.preventDefault();
      field.classList.toggle("over", kind === "dragover");
      if (kind === "drop") receive(event.dataTransfer.files[0]);
    });
  }
  document.addEventListener("paste", (event) => {
    if (field.offsetParent) receive([...event.clipboardData.files].find((f) => f.type.startsWith("image/")));
  });
  const show = (url) => { preview.hidden = !url; text.hidden = Boolean(url); if (url) preview.src = url; };
  return { field, show };
}

export const percent = (share) => `${(100 * share).toFixed(0)}%`;
