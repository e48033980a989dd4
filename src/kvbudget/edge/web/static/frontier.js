// The chart of requests at once against their length, and where the page stands in it.
import { chartWidth, drawn, number, word } from "./dom.js";

export function frontier(box, answer) {
  const points = answer.points.filter((point) => point.requests > 0);
  const here = answer.present;
  if (!points.length) { box.replaceChildren(); return; }
  const width = chartWidth(box, 720), height = 260, left = width < 480 ? 44 : 64, right = 16, top = 14, bottom = 44;
  const lengths = points.map((p) => p.length).concat(here.length), counts = points.map((p) => p.requests).concat(here.requests);
  const x = axis(Math.min(...lengths), Math.max(...lengths), left, width - right);
  const y = axis(Math.max(1, Math.min(...counts)), Math.max(...counts), height - bottom, top);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${word("frontier")}: ${number(here.requests)} × ${number(here.length)}` });
  for (const tick of ticks(lengths, width / 90)) svg.append(drawn("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: height - bottom }), drawn("text", { x: x(tick), y: height - bottom + 16, "text-anchor": "middle" }, short(tick)));
  for (const tick of ticks(counts, 7)) svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), drawn("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  const line = points.map((p, index) => `${index ? "L" : "M"}${x(p.length).toFixed(1)} ${y(p.requests).toFixed(1)}`).join("");
  svg.append(drawn("path", { class: "area", d: `${line}L${x(points.at(-1).length).toFixed(1)} ${height - bottom}L${x(points[0].length).toFixed(1)} ${height - bottom}Z` }));
  svg.append(drawn("path", { class: "line", d: line }));
  svg.append(drawn("circle", { class: "here", cx: x(here.length), cy: y(here.requests), r: 6 }));
  const late = x(here.length) > width / 2;
  svg.append(drawn("text", { class: "here-text", x: x(here.length) + (late ? -10 : 10), y: Math.max(top + 10, y(here.requests) - (late ? 26 : 12)), "text-anchor": late ? "end" : "start" }, `${number(here.requests)} × ${number(here.length)}`));
  svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, word("axis.length")));
  box.replaceChildren(svg);
}

function axis(low, high, from, to) {
  const [first, last] = [Math.log(low), Math.log(Math.max(high, low * 1.01))];
  return (value) => from + (to - from) * (Math.log(Math.max(value, low)) - first) / (last - first);
}

function ticks(values, most) {
  const low = Math.max(1, Math.min(...values)), high = Math.max(...values), found = [];
  for (let tick = 2 ** Math.ceil(Math.log2(low)); tick <= high; tick *= 2) found.push(tick);
  const every = Math.ceil(found.length / most);
  return found.filter((_, index) => index % every === 0);
}

function short(value) {
  if (value >= 2 ** 20) return `${value / 2 ** 20}m`;
  return value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : number(value);
}
