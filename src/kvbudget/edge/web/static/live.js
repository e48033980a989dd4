// The live gate: draws what the gate tells once a second, and takes up again by itself when the line is cut.
import { chartWidth, drawn, element, fetched, fill, finding, inLanguage, linkPages, number, otherLanguage, problem, refusalIn, sent, swatch, word } from "./dom.js";
import { COUNTS, LENGTHS, nearest } from "./scales.js";

const by = (id) => document.getElementById(id);
const SERIES = [["promised_blocks", "kv"], ["held_blocks", "weights"], ["elsewhere_blocks", "limit"], ["free_blocks", "activation"]];
const KEPT_MS = 900_000;
const PLACES = { max_num_seqs: COUNTS, max_context: LENGTHS }; // of the sliders of "what if"
const FORECAST_MINUTES = 15; // before that the forecast calls itself cold
const AGAIN_MS = 700; // after the last move of a slider, and while another simulation runs
const OUTCOMES = ["goodput_tokens_per_s", "slo_fraction", "finished", "refused", "timed_out", "preemptions"];
let past = {};
let now = null;
let guess = null;
let asking = null; // the question to the simulator that is under way
let waiting = null;
let found = [];
let foretold = [];

start();

function start() {
  inLanguage(new URLSearchParams(location.search).get("lang"));
  by("language").addEventListener("click", () => { otherLanguage(); draw(); });
  by("whatif").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  by("whatif").addEventListener("input", moved);
  linkPages();
  look();
  setInterval(look, 10_000);
  watch();
}

// The browser takes up a line that was cut by itself; one that was refused is asked for again.
function watch() {
  const stream = new EventSource("/api/live/stream");
  stream.addEventListener("past", (event) => {
    past = Object.fromEntries(Object.entries(JSON.parse(event.data)).map(([name, points]) => [name, points.map(point)]));
  });
  stream.addEventListener("now", (event) => {
    now = JSON.parse(event.data);
    for (const instance of now.instances) {
      const points = (past[instance.name] ??= []);
      if (!points.length || points.at(-1).at_ms < instance.at_ms) points.push(instance);
      while (points.length && points[0].at_ms < instance.at_ms - KEPT_MS) points.shift();
    }
    problem(now.problem);
    draw();
  });
  stream.addEventListener("error", () => {
    problem(word("live.cut"));
    if (stream.readyState !== EventSource.CLOSED) return;
    fetched("/api/pages").catch(() => null).then(() => setTimeout(watch, 3000));
  });
}

function point([at_ms, usable_blocks, promised_blocks, held_blocks, elsewhere_blocks, free_blocks, waiting]) {
  return { at_ms, usable_blocks, promised_blocks, held_blocks, elsewhere_blocks, free_blocks, waiting };
}

// What the gate judges when it is asked, less often than it looks.
async function look() {
  try {
    const [findings, forecast] = await Promise.all(["/v1/findings", "/v1/forecast"].map(judged));
    found = findings.instances;
    foretold = forecast.instances;
  } catch {
    return; // the stream says that the gate does not answer
  }
  draw();
}

async function judged(path) {
  const answer = await fetched(path);
  if (!answer.ok) throw new Error(path); // what was told before stays
  return answer.json();
}

// ---- what if: the sliders go up to the limits of now; a field says what the sliders cannot

function places(name) {
  const most = Math.max(1, ...(now?.instances ?? []).map((one) => one[name] ?? 0));
  return [...PLACES[name].filter((one) => one < most), most];
}

function slide() {
  const form = by("whatif");
  for (const range of form.querySelectorAll("[data-for]")) {
    const field = form[range.dataset.for], known = places(range.dataset.for);
    field.placeholder = String(known.at(-1));
    range.max = known.length - 1;
    const value = Number(field.value.trim().toLowerCase().replace(/k$/, "e3"));
    range.value = field.value.trim() && Number.isFinite(value) ? nearest(known, value) : known.length - 1;
    range.setAttribute("aria-valuetext", field.value.trim() || `${number(known.at(-1))}, ${word("live.whatif_as_now")}`);
  }
}

function moved(event) {
  const name = event.target.dataset.for;
  if (!name) { slide(); return; }
  const known = places(name), value = known[Number(event.target.value)];
  by("whatif")[name].value = value === known.at(-1) ? "" : value;
  slide();
  clearTimeout(waiting);
  waiting = setTimeout(ask, AGAIN_MS);
}

async function ask() {
  clearTimeout(waiting);
  asking?.abort();
  const form = by("whatif"), wanted = {};
  for (const name of Object.keys(PLACES)) if (form[name].value.trim()) wanted[name] = form[name].value.trim();
  if (!Object.keys(wanted).length) wanted.max_num_seqs = places("max_num_seqs").at(-1); // today twice
  const mine = (asking = new AbortController());
  by("whatif-said").textContent = word("sim.busy");
  let told;
  try {
    const answer = await sent("/api/whatif", wanted, { signal: mine.signal });
    if (answer.status === 429) { // another one is simulated, or our last one has just been given up
      if (mine === asking) waiting = setTimeout(ask, AGAIN_MS);
      return;
    }
    const document_ = await answer.json();
    if (answer.ok) guess = document_;
    else told = refusalIn(document_);
  } catch {
    told = word("live.cut");
  }
  if (mine !== asking) return;
  by("whatif-problem").hidden = !told;
  by("whatif-problem").textContent = told ?? "";
  by("whatif-said").textContent = told ? "" : `${number(guess.requests)} ${word("live.whatif_requests")}`;
  draw();
}

function rounded(name, value) {
  return name === "slo_fraction" ? `${(100 * value).toFixed(1)}%` : number(Math.round(value));
}

function draw() {
  if (!now) return;
  slide();
  const sum = (key) => now.instances.reduce((all, one) => all + (one[key] ?? 0), 0);
  by("state").textContent = [word(`policy.${now.policy}`), now.shadow ? word("live.shadow") : "", now.draining ? word("live.draining") : ""].filter(Boolean).join(" · ");
  by("figures").replaceChildren(...[
    ["live.promised", "promised", number(sum("promised_blocks")), `${word("of")} ${number(sum("usable_blocks"))}`],
    ["live.held", "held", now.instances.every((one) => one.held_blocks === null) ? "–" : number(sum("held_blocks")), ""],
    ["live.elsewhere", "elsewhere", number(sum("elsewhere_blocks")), ""],
    ["live.free", "free", number(sum("free_blocks")), ""],
    ["live.running", "running", number(sum("requests_in_all")), ""],
    ["live.waiting", "waiting", number(now.queue.requests), `${number(now.queue.tokens)} token`],
  ].map(([key, name, value, note]) => element("div", {}, element("dt", {}, word(key)), element("dd", { "data-figure": name }, value, element("small", {}, note)))));
  by("legend").replaceChildren(...SERIES.map(([key, colour]) => swatch(colour, word(`live.${key.split("_")[0]}`))));
  by("pools").replaceChildren(...now.instances.map((instance) => pool(instance)));
  by("requests").replaceChildren(...now.instances.map((instance) => holders(instance)));
  tables();
}

function pool(instance) {
  const points = past[instance.name] ?? [];
  const width = chartWidth(by("pools"), 960), height = 150, left = width < 480 ? 48 : 60, right = 8, top = 8, bottom = 22;
  const most = Math.max(1, instance.usable_blocks, ...points.map((one) => Math.max(one.promised_blocks, one.held_blocks ?? 0)));
  const end = instance.at_ms, start_ = Math.min(points[0]?.at_ms ?? end, end - 60_000);
  const x = (at) => left + (width - left - right) * (at - start_) / (end - start_);
  const y = (blocks) => height - bottom - (height - top - bottom) * blocks / most;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${instance.name}: ${word("live.promised")} ${instance.promised_blocks}, ${word("live.held")} ${instance.held_blocks ?? "–"}, ${word("of")} ${instance.usable_blocks}` });
  for (const tick of [0, instance.usable_blocks]) svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), drawn("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
  svg.append(drawn("text", { x: left, y: height - 6 }, `−${duration(end - start_)}`), drawn("text", { x: width - right, y: height - 6, "text-anchor": "end" }, word("now")));
  for (const [key, colour] of SERIES) {
    const known = points.filter((one) => one[key] !== null);
    if (!known.length) continue;
    const line = known.map((one, index) => `${index ? "L" : "M"}${x(one.at_ms).toFixed(1)} ${y(one[key]).toFixed(1)}`).join("");
    const path = drawn("path", { d: line, fill: "none", "stroke-width": 2 });
    path.style.stroke = `var(--${colour})`;
    svg.append(path);
  }
  return element("div", { class: "chart" }, element("h3", {}, instance.name), svg);
}

function holders(instance) {
  const longest = Math.max(1, ...instance.requests.map((one) => one.left_ms));
  const bar = element("div", { class: "groups", role: "img", "aria-label": `${instance.name}: ${number(instance.requests_in_all)}` });
  for (const one of instance.requests) {
    const piece = element("i", { title: `${one.tenant}: ${number(one.blocks)} ${word("fig.blocks")}, ${answered(one)} / ${number(one.max_new_tokens)} token, ${seconds(one.left_ms)}` });
    piece.style.flexGrow = String(one.blocks);
    piece.style.background = "var(--kv)";
    piece.style.opacity = String(0.35 + 0.65 * one.left_ms / longest);
    bar.append(piece);
  }
  const free = element("i", { title: word("part.free") });
  free.style.flexGrow = String(Math.max(0, instance.usable_blocks - instance.requests.reduce((all, one) => all + one.blocks, 0)));
  free.style.background = "var(--free)";
  bar.append(free);
  return element("div", {}, element("p", { class: "note" }, `${instance.name}: ${number(instance.requests_in_all)}`), bar);
}

// Of what is not streamed nobody sees how far it is.
function answered(one) {
  return one.is_watched === false ? word("live.not_seen") : number(one.seen_tokens);
}

// Under a quarter of an hour of traffic a figure would say more than is known.
function enough(row) {
  return Boolean(row.forecast) && row.forecast.maturity !== "cold";
}

function foreseen(row) {
  if (enough(row)) return `${number(row.forecast.expected)} (${number(row.forecast.low)}–${number(row.forecast.high)})`;
  const seen = (row.minutes ?? []).filter((one) => one !== null).length;
  return `${word("live.too_little")} (${number(Math.min(seen, FORECAST_MINUTES))} / ${FORECAST_MINUTES} min)`;
}

function duration(ms) {
  return ms < 120_000 ? `${Math.round(ms / 1000)} s` : `${Math.round(ms / 60_000)} min`;
}

function seconds(ms) {
  return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
}

function tables() {
  const where = now.instances.length > 1 ? [["col.instance", false, (row) => row.instance]] : [];
  fill(by("t-holders"), [
    ["col.tenant", false, (row) => row.tenant], ...where, ["col.blocks_held", true, (row) => number(row.blocks)],
    ["col.left", true, (row) => seconds(row.left_ms)], ["col.age", true, (row) => seconds(row.age_ms)],
    ["col.answer", true, (row) => `${answered(row)} / ${number(row.max_new_tokens)}`],
    ["col.prompt", true, (row) => number(row.prompt_tokens)],
  ], now.instances.flatMap((instance) => instance.requests.map((one) => ({ ...one, instance: instance.name }))));
  fill(by("t-queue"), [
    ["col.tenant", false, (row) => row.tenant], ...where, ["col.priority", true, (row) => row.priority],
    ["col.blocks_wanted", true, (row) => number(row.blocks)], ["col.waits_for", false, (row) => word(`why.${row.why}`)],
    ["col.waited", true, (row) => seconds(row.waited_ms)], ["col.left_waiting", true, (row) => seconds(row.left_ms)],
    ["col.expected", true, (row) => row.expected_ms ? seconds(row.expected_ms) : "–"],
    ["col.deadline", true, (row) => seconds(row.deadline_in_ms)],
  ], now.queue.next);
  by("findings").replaceChildren(...found.flatMap((one) => one.findings.map(({ code, severity, message, actions: [first] }) => {
    const fix = first ? `${first.what} (${word(`cost.${first.cost}`)})` : "";
    return element("li", { class: severity }, `${one.instance}: `, ...finding({ code, message, fix }));
  })));
  fill(by("t-forecast"), [
    ["col.instance", false, (row) => row.name], ["col.demand", true, (row) => number(row.demand_tokens)],
    ["col.pool_tokens", true, (row) => number(row.capacity_tokens)],
    ["col.expected_most", true, foreseen],
    ["col.likely", true, (row) => enough(row) ? row.forecast.probability.toLocaleString("en-US", { style: "percent", maximumFractionDigits: 1 }) : "–"],
    ["col.free_in_10", true, (row) => number(row.drain?.free_blocks_in_10_s)], ["col.free_in_60", true, (row) => number(row.drain?.free_blocks_in_60_s)],
  ], foretold, (row) => enough(row) && row.forecast.alarm);
  fill(by("t-tenants"), [
    ["col.tenant", false, (row) => row.tenant], ["live.promised", true, (row) => number(row.promised_blocks)],
    ["live.waiting", true, (row) => number(row.waiting)],
  ], now.tenants);
  fill(by("t-instances"), [
    ["col.instance", false, (row) => row.name], ["col.state", false, (row) => state(row)],
    ["live.promised", true, (row) => number(row.promised_blocks)], ["live.held", true, (row) => number(row.held_blocks)],
    ["live.elsewhere", true, (row) => number(row.elsewhere_blocks)], ["col.pool", true, (row) => number(row.usable_blocks)],
    ["col.cap", true, (row) => number(row.max_context)], ["col.tier", true, (row) => row.tier],
  ], now.instances);
  if (guess) {
    fill(by("t-whatif"), [
      ["col.figure", false, (name) => word(`sim.${{ goodput_tokens_per_s: "goodput", slo_fraction: "in_time" }[name] ?? name}`)],
      ["now", true, (name) => rounded(name, guess.now[name])], ["live.then", true, (name) => rounded(name, guess.then[name])],
    ], OUTCOMES);
  }
  const ends = [...Object.entries(now.outcomes).map(([name, count]) => ["", name, count]), ...Object.entries(now.refusals).map(([name, count]) => ["refused", name, count])];
  fill(by("t-ends"), [
    ["col.outcome", false, ([kind, name]) => kind ? `${word("live.refused")}: ${word(`refusal.${name}`)}` : word(`outcome.${name}`)], ["col.requests", true, ([, , count]) => number(count)],
  ], ends);
}

function state(row) {
  if (row.draining) return word("live.draining");
  if (!row.up) return row.problem || word("live.down");
  return row.ejected ? word("live.ejected") : word("live.up");
}
