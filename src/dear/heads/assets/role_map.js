// A role map and the evidence for each head, for the page of `dear app` and for the file of `dear roles --html`.
// Texts are set as text only, never as HTML: phrases come from files of the user's.

export function el(tag, props = {}, ...children) {
  const { class: names, style, ...rest } = props;
  const element = document.createElement(tag);
  if (names) element.className = names;
  for (const [name, value] of Object.entries(style ?? {})) element.style.setProperty(name, value);
  for (const [name, value] of Object.entries(rest)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export function bar(share, color, pale = false) {
  const width = `${Math.max(0, Math.min(100, 100 * share))}%`;
  return el("div", { class: "bar" }, el("div", { class: pale ? "fill pale" : "fill", style: { width, "--c": color } }));
}

// The grid of all heads, the last layer on top. A click or an arrow key calls `choose` with a cell and its button.
export function roleMap(map, choose) {
  const buttons = map.cells.map((cell) => headButton(cell, map, (button) => {
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    choose(cell, button);
  }));
  const rows = [...map.layers].reverse().map((layer) => [
    el("span", { class: "soft layer" }, `layer ${layer}`),
    buttons.filter((_, i) => map.cells[i].layer === layer),
  ]);
  const columns = Array.from({ length: map.heads }, (_, i) => el("span", { class: "soft column" }, `${i}`));
  const grid = el("div", { class: "grid", style: { "--heads": map.heads } },
    rows.flat(2), el("span", { class: "soft layer" }, "head"), columns);
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [1, 0], ArrowDown: [-1, 0] }[event.key];
    const from = map.cells[buttons.indexOf(event.target)];
    if (!step || !from) return;
    const layer = map.layers[map.layers.indexOf(from.layer) + step[0]];
    const next = buttons[map.cells.findIndex((cell) => cell.layer === layer && cell.head === from.head + step[1])];
    if (next) { event.preventDefault(); next.focus(); next.click(); }
  });
  const card = el("div", { class: "card" },
    el("h3", {}, "Roles of the attention heads"),
    el("p", { class: "soft" }, [map.summary, map.origin].filter(Boolean).join(" · ")),
    grid,
    el("p", { class: "soft legend" }, Object.values(map.roles).map((role) => el("span", {}, `${role.mark} ${role.name}`)),
      map.legend && el("span", {}, map.legend)));
  return { card, buttons };
}

function headButton(cell, map, choose) {
  const role = map.roles[cell.role];
  return el("button", {
    class: `head ${isDark(cell.color, cell.strength) ? "strong" : ""}`,
    style: { "--color": cell.color, "--strength": `${100 * cell.strength}%` },
    "aria-label": `layer ${cell.layer}, head ${cell.head}: ${role.name}${cell.concept ? `, ${cell.concept}` : ""}`,
    "data-head": `${cell.layer}.${cell.head}`,
    "aria-pressed": "false",
    onclick: (event) => choose(event.currentTarget),
  },
  el("b", {}, cell.concept ?? "–"),
  el("span", {}, el("i", {}, role.mark), el("i", {}, cell.number)));
}

// Whether a colour mixed with white still needs white letters. On the dark page letters are light anyway.
function isDark(color, strength) {
  const [red, green, blue] = [1, 3, 5].map((i) => (strength * parseInt(color.slice(i, i + 2), 16)) / 255 + 1 - strength);
  return 0.299 * red + 0.587 * green + 0.114 * blue < 0.58;
}

// All that the map has about one head.
export function evidence(cell, map) {
  return [about(cell, map), el("div", { class: "columns halves" }, distribution(cell, map), phrases(cell))];
}

function about(cell, map) {
  const role = map.roles[cell.role];
  const entropy = cell.entropy == null ? "" : ` · Concept Entropy ${cell.entropy.toFixed(2)} nats`;
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

function distribution(cell, map) {
  if (!cell.distribution.length) return null;
  const lifted = cell.distribution.some((part) => part.lift != null), size = (part) => (lifted ? part.lift ?? 0 : part.share);
  const sorted = [...cell.distribution].sort((a, b) => size(b) - size(a)), most = lifted ? Math.max(...sorted.map(size)) : 1;
  const share = (part) => `${(100 * part.share).toFixed(0)}%`;
  return el("div", { class: "card" }, el("h3", {}, cell.phrases.length ? "Concepts of its phrases" : "What its output varies with"),
    el("div", { class: "rows" }, sorted.map((part) => [
      el("span", { class: map.core.includes(part.concept) ? "core" : "" }, part.concept), bar(size(part) / most, part.color),
      el("span", { class: "number" }, lifted ? [`${size(part).toFixed(1)} x `, el("small", { class: "soft" }, share(part))] : share(part)),
    ]).flat()),
    lifted && el("p", { class: "soft" },
      "How much more its output varies with each than that of the mean head, by which heads are ranked; small: the share of its variance."));
}

function phrases(cell) {
  if (!cell.phrases.length) return null;
  const most = Math.max(...cell.phrases.map((phrase) => phrase.variance));
  const all = cell.phrases.reduce((sum, phrase) => sum + phrase.variance, 0);
  return el("div", { class: "card" }, el("h3", {}, "Phrases that describe it"),
    el("div", { class: "rows phrases" }, cell.phrases.map((phrase) => [
      el("span", {}, el("i", { class: "dot fill", title: phrase.concept, style: { "--c": phrase.color } }), phrase.text),
      bar(phrase.variance / most, phrase.color), el("span", { class: "number" }, `${(100 * phrase.variance).toFixed(1)}%`),
    ]).flat()),
    el("p", { class: "soft" }, "The number is the share of the head's variance that the phrase explains; ",
      `together they explain ${(100 * all).toFixed(1)}%.`));
}

// Two rows of pictures: those that a head responds to most, and least.
export function pictureRows(most, least, titles) {
  return el("div", { class: "columns pair" }, [["most", most, titles[0]], ["least", least, titles[1]]].map(([side, urls, title]) =>
    el("div", {}, el("p", {}, title),
      el("div", { class: "thumbs wide" }, urls.map((url) => url && el("img", { src: url, alt: `${side} output` }))))));
}
