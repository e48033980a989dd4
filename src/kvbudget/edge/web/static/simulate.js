// The simulation page: sends a load and policies to the simulator of this machine and draws what it answers.
import { chartWidth, drawn, element, fetched, fill, inLanguage, linkPages, number, otherLanguage, problem, refusalIn, sent, word } from "./dom.js";

const form = document.getElementById("fields");
const by = (id) => document.getElementById(id);
const COLOURS = ["non_torch", "weights", "cuda_graphs", "kv", "limit"];
const NUMBERS = ["requests", "num_blocks", "block_size", "max_num_seqs", "max_model_len"];
let shown = null;

start();

async function start() {
  inLanguage(new URLSearchParams(location.search).get("lang"));
  linkPages();
  const known = await (await fetched("/api/scenarios")).json();
  form.scenario.append(...known.scenarios.map((one) => element("option", {}, one.name)));
  form.scenario.value = new URLSearchParams(location.search).get("scenario") ?? "overload-1.3";
  form.scenario.addEventListener("change", say);
  form.addEventListener("submit", (event) => { event.preventDefault(); run(); });
  by("language").addEventListener("click", () => { otherLanguage(); say(); draw(); });
  addEventListener("resize", draw);
  say();
}

function say() {
  by("about").textContent = word(`scenario.${form.scenario.value}`);
}

async function wanted() {
  const asked = {
    policies: [...by("policies").querySelectorAll("input:checked")].map((one) => one.value),
    rates: form.rates.value.split(",").filter((text) => text.trim()).map(Number),
  };
  for (const name of NUMBERS) if (form[name].value.trim()) asked[name] = Number(form[name].value);
  const file = form.trace.files[0];
  if (file) asked.trace = await file.text();
  else asked.scenario = form.scenario.value;
  return asked;
}

async function run() {
  problem("");
  by("run").disabled = true;
  by("busy").textContent = word("sim.busy");
  try {
    const answer = await sent("/api/simulate", await wanted());
    const document_ = await answer.json();
    if (answer.ok) shown = document_;
    else problem(refusalIn(document_));
  } catch {
    problem(word("unreachable"));
  }
  by("run").disabled = false;
  by("busy").textContent = "";
  draw();
}

function draw() {
  if (!shown) return;
  for (const one of document.querySelectorAll("#results section")) one.hidden = false;
  const policies = [...new Set(shown.runs.map((one) => one.policy))];
  const colour = (policy) => `var(--${COLOURS[policies.indexOf(policy) % COLOURS.length]})`;
  by("legend").replaceChildren(...policies.map((policy) => {
    const mark = element("span", { class: "swatch" });
    mark.style.background = colour(policy);
    return element("span", {}, mark, policy);
  }));
  curve(policies, colour);
  fill(by("t-runs"), [
    ["sim.policy", false, (row) => row.policy], ["sim.rate", true, (row) => row.rate],
    ["sim.goodput", true, (row) => number(Math.round(row.goodput_tokens_per_s))],
    ["sim.to_oracle", true, (row) => row.oracle_ratio === null ? "–" : row.oracle_ratio.toFixed(2)],
    ["sim.in_time", true, (row) => `${(100 * row.slo_fraction).toFixed(1)}%`],
    ["sim.finished", true, (row) => number(row.finished)], ["sim.refused", true, (row) => number(row.refused)],
    ["sim.timed_out", true, (row) => number(row.timed_out)], ["sim.preemptions", true, (row) => number(row.preemptions)],
    ["sim.ttft", true, (row) => row.ttft_s.p99 === null ? "–" : `${row.ttft_s.p99.toFixed(2)} s`],
    ["sim.pool", true, (row) => `${(100 * row.pool_use_mean).toFixed(0)}%`],
  ], shown.runs);
  by("command").replaceChildren(...shown.command.split(" ").flatMap((part) => [element("span", {}, part), " "]));
}

function curve(policies, colour) {
  const width = chartWidth(by("curve"), 720), height = 280, left = width < 480 ? 50 : 70, right = 16, top = 14, bottom = 44;
  const rates = [...new Set(shown.runs.map((one) => one.rate))].sort((a, b) => a - b);
  const most = Math.max(1, ...shown.runs.map((one) => one.goodput_tokens_per_s));
  const span = Math.max(rates.at(-1) - rates[0], 1e-9);
  const x = (rate) => rates.length === 1 ? (left + width - right) / 2 : left + (width - left - right) * (rate - rates[0]) / span;
  const y = (value) => height - bottom - (height - top - bottom) * value / most;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": word("sim.curve") });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(share * most), y2: y(share * most) }), drawn("text", { x: left - 8, y: y(share * most) + 4, "text-anchor": "end" }, number(Math.round(share * most))));
  for (const rate of rates) svg.append(drawn("text", { x: x(rate), y: height - bottom + 16, "text-anchor": "middle" }, `${rate}×`));
  svg.append(drawn("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, word("sim.rate")));
  for (const policy of policies) {
    const runs = shown.runs.filter((one) => one.policy === policy).sort((a, b) => a.rate - b.rate);
    const path = drawn("path", { fill: "none", "stroke-width": 2.5, d: runs.map((one, index) => `${index ? "L" : "M"}${x(one.rate).toFixed(1)} ${y(one.goodput_tokens_per_s).toFixed(1)}`).join("") });
    path.style.stroke = colour(policy);
    svg.append(path);
    for (const one of runs) {
      const dot = drawn("circle", { cx: x(one.rate), cy: y(one.goodput_tokens_per_s), r: 4 }, drawn("title", {}, `${policy} ${one.rate}×: ${number(Math.round(one.goodput_tokens_per_s))}`));
      dot.style.fill = colour(policy);
      svg.append(dot);
    }
  }
  by("curve").replaceChildren(svg);
}
