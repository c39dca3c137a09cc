// A line chart as SVG, in the colours of the page.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 380, HEIGHT = 220, LEFT = 46, RIGHT = 12, TOP = 10, BOTTOM = 26;

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  if (text != null) element.textContent = text;
  return element;
}

// series: {name, color, points: [[x, y], ...], pale: drawn in the background, dashed}
export function lineChart(title, series) {
  const drawn = series.filter((s) => s.points.length);
  const xs = drawn.flatMap((s) => s.points.map(([x]) => x));
  const ys = drawn.flatMap((s) => s.points.map(([, y]) => y));
  const last = Math.max(2, ...xs);
  const step = niceStep(Math.max(...ys, 1e-9) - Math.min(0, ...ys));
  const top = step * Math.ceil(Math.max(...ys, step) / step - 1e-9);
  const x = (value) => LEFT + ((value - 1) / (last - 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  const digits = [0, 1, 2, 3].find((n) => Math.abs(step * 10 ** n - Math.round(step * 10 ** n)) < 1e-6) ?? 4;
  for (let value = 0; value <= top + 1e-9; value += step) {
    svg.append(draw("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      draw("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(digits)));
  }
  svg.append(draw("text", { class: "tick", x: LEFT - 8, y: HEIGHT - 8, "text-anchor": "end" }, "epoch"));
  const every = Math.ceil(last / 10);
  for (let epoch = 1; epoch <= last; epoch += every) {
    svg.append(draw("text", { class: "tick", x: x(epoch), y: HEIGHT - 8, "text-anchor": "middle" }, epoch));
  }
  for (const s of drawn) {
    const points = s.points.map(([px, py]) => `${x(px)},${y(py)}`).join(" ");
    const line = draw("polyline", { points, class: s.pale ? "line pale" : "line", "stroke-dasharray": s.dashed ? "5 4" : null });
    line.append(draw("title", {}, s.name));
    if (s.color) line.style.setProperty("--c", s.color);
    svg.append(line);
    if (s.pale) continue;
    for (const [px, py] of s.points) {
      const dot = draw("circle", { cx: x(px), cy: y(py), r: 2.6, class: "point" });
      dot.style.setProperty("--c", s.color);
      dot.append(draw("title", {}, `${s.name}, epoch ${px}: ${py.toFixed(3)}`));
      svg.append(dot);
    }
  }
  const figure = document.createElement("figure");
  const heading = document.createElement("h3");
  heading.textContent = title;
  const legend = document.createElement("figcaption");
  for (const s of drawn.filter((one) => !one.pale)) legend.append(key(s.name, s.color));
  if (drawn.some((s) => s.pale)) legend.append(key("other runs", null));
  figure.append(heading, svg, legend);
  return figure;
}

function key(name, color) {
  const entry = document.createElement("span");
  const dot = document.createElement("i");
  dot.className = "dot";
  if (color) dot.classList.add("fill");
  if (color) dot.style.setProperty("--c", color);
  entry.append(dot, name);
  return entry;
}

function niceStep(range) {
  const rough = range / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
}
