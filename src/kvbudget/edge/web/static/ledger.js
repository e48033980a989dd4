// The KV ledger: sends the fields to the planner, draws what it answers, keeps the state in the address.
import { element, fetched, fill, finding, inLanguage, linkPages, number, otherLanguage, problem, refusalIn, swatch, told, word } from "./dom.js";
import { CHINESE } from "./chinese.js";
import { frontier } from "./frontier.js";
import { COUNTS, LENGTHS, nearest } from "./scales.js";

const form = document.getElementById("fields");
const by = (id) => document.getElementById(id);
const SCALES = { lengths: LENGTHS, counts: COUNTS };
const OPEN = ["concurrency", "block"]; // set to their default they say more than left alone
const PASTED = "pasted"; // what the catalogue shows while a config.json is in force; no model is called so
const PARTS = ["weights", "activation", "cuda_graphs", "non_torch", "kv", "free"];

let defaults = {};
let examples = [];
let config = "";
let kept = "";
let keptConfig = ""; // the config.json of what was kept, where one was pasted
let shown = null;
const said = new Set(); // fields of OPEN that somebody set; the others are an example, or the engine's own
let asked = 0;
let waiting = null;
let retrying = null;

start();

async function start() {
  const address = new URLSearchParams(location.search);
  inLanguage(address.get("lang"));
  const answer = await fetched("/api/catalogue").catch(() => null);
  if (!answer?.ok) {
    problem(word("unreachable"));
    setTimeout(start, 2000);
    return;
  }
  const known = await answer.json();
  defaults = known.defaults;
  examples = known.examples;
  for (const name of known.models) form.model.append(element("option", { value: name }, name));
  for (const gpu of known.gpus) form.gpu.append(element("option", { value: gpu.key }, `${gpu.name} (${gpu.text})`));
  for (const one of known.precisions) form.dtype.append(element("option", { value: one.name }, one.name));
  linkPages();
  await read();
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  by("language").addEventListener("click", () => { otherLanguage(); slide(); draw(); });
  by("pin").addEventListener("click", keep);
  by("unpin").addEventListener("click", () => { kept = ""; draw(); });
  by("share").addEventListener("click", copy);
  by("to-examples").addEventListener("click", () => by("h-examples").focus());
  by("forget").addEventListener("click", () => { config = ""; by("config").value = ""; refresh(); });
  by("config").addEventListener("input", () => { config = by("config").value.trim(); refresh(); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", dropped);
  addEventListener("resize", () => { if (shown) frontier(by("frontier"), shown.frontier); });
  addEventListener("popstate", () => read().then(refresh));
  addEventListener("keydown", (event) => { if (event.key === "Escape" && kept) by("unpin").click(); });
  refresh();
}

// ---- state: the fields are in the query, a pasted config and what was kept behind the #

async function read() {
  const address = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(defaults)) {
    if (!form.elements[name]) continue;
    const wanted = address.get(name) ?? value;
    const field = form.elements[name];
    choose(field, wanted);
    if (OPEN.includes(name) && address.has(name)) said.add(name);
    else said.delete(name);
  }
  const behind = new URLSearchParams(location.hash.slice(1));
  kept = behind.get("kept") ?? "";
  keptConfig = behind.has("kept-config") ? await unpacked(behind.get("kept-config")) : "";
  config = behind.has("config") ? await unpacked(behind.get("config")) : "";
  by("config").value = config;
  if (config) by("paste").open = true;
  slide();
}

function choose(field, wanted) {
  if (field.tagName === "SELECT" && wanted && ![...field.options].some((option) => option.value === wanted)) field.append(element("option", { value: wanted }, wanted));
  field.value = wanted;
}

function query() {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(defaults)) {
    const field = form.elements[name];
    const given = !field ? value : field.value === PASTED ? "" : field.value.trim();
    if (given !== "" && (OPEN.includes(name) ? said.has(name) : given !== value)) found.set(name, given);
  }
  return found;
}

async function remember() {
  const address = query();
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (!(name in defaults)) address.append(name, value); // the language, and what is not ours
  }
  const behind = new URLSearchParams();
  if (config) behind.set("config", await packed(config));
  if (kept) behind.set("kept", kept);
  if (kept && keptConfig) behind.set("kept-config", await packed(keptConfig));
  const text = `${address}`, hash = `${behind}`;
  history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}${hash ? `#${hash}` : ""}`);
}

async function packed(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(text) {
  try {
    const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
    return await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).text();
  } catch {
    return "";
  }
}

function changed(event) {
  const source = event.target;
  if (source.dataset.for) form.elements[source.dataset.for].value = source.dataset.scale ? SCALES[source.dataset.scale][Number(source.value)] : source.value;
  else slide();
  for (const name of OPEN) if ([source.name, source.dataset.for].includes(name)) said.add(name);
  if (source.name === "model" && source.value !== PASTED) { config = ""; by("config").value = ""; }
  if (source.id !== "config") refresh();
}

function slide() {
  for (const range of form.querySelectorAll("[data-for]")) {
    const value = Number(form.elements[range.dataset.for].value.trim().replace(/k$/i, "000"));
    const scale = SCALES[range.dataset.scale];
    if (scale) range.max = scale.length - 1;
    if (Number.isFinite(value)) range.value = scale ? nearest(scale, value) : value;
    range.setAttribute("aria-valuetext", form.elements[range.dataset.for].value);
  }
  if (config) form.model.value = PASTED;
  else if (form.model.value === PASTED) form.model.value = "";
  form.model.querySelector(`[value="${PASTED}"]`).hidden = !config;
  by("shape").hidden = Boolean(form.model.value);
}

// ---- asking the planner: one question at a time, the newest wins

function refresh() {
  slide();
  clearTimeout(waiting);
  waiting = setTimeout(ask, 15);
}

async function plan(fields, text) {
  const given = text ? { method: "POST", body: text, headers: { "content-type": "application/json" } } : {};
  const answer = await fetched(`/api/plan?${fields}`, given);
  return [answer.ok, await answer.json()];
}

async function ask() {
  const mine = (asked += 1);
  clearTimeout(retrying);
  await remember();
  let good, document_;
  try {
    [good, document_] = await plan(query(), config);
  } catch {
    problem(word("unreachable"));
    retrying = setTimeout(ask, 2000);
    return;
  }
  if (mine !== asked) return;
  if (!good) {
    problem(told(refusalIn(document_)));
    return;
  }
  problem("");
  shown = document_;
  if (!said.has("block")) choose(form.elements.block, String(shown.plan.engine.block_size));
  draw();
}

// ---- drawing

function draw() {
  if (!shown) return;
  figures("figures", facts(shown));
  costs(shown.cost);
  worked();
  by("verdict").replaceChildren(element("strong", { class: shown.verdict.good ? "good" : "bad" }, shown.sized_to_need ? "" : told(shown.verdict.word)), " ", shown.sized_to_need ? "" : sentence(shown));
  by("formula").replaceChildren(...shown.formula.map((line) => element("li", {}, told(line))));
  bar(shown.bar);
  frontier(by("frontier"), shown.frontier);
  tables(shown);
  exports();
  for (const one of document.querySelectorAll("[data-shows]")) one.hidden = shown[one.dataset.shows].length === 0;
  compare();
  remember();
}

// What the verdict amounts to; where it is an error, the first of them, as it is told below.
function sentence({ verdict, findings }) {
  const first = findings.find((one) => one.severity === "error");
  const known = document.documentElement.lang === "en" || verdict.good ? undefined : CHINESE.findings[first?.code];
  return known ? `${first.code}：${known[1]}` : told(verdict.sentence);
}

function facts(document_) {
  const f = document_.figures;
  return [
    ["fig.per_token", f.per_token.text, `${number(f.per_token.bytes)} B`],
    ["fig.needed", f.held.text, inBlocks(f.blocks, f.held, f.needed)],
    ["fig.tokens_per_mib", number(f.tokens_per_mib), ""],
    ["fig.one_request", f.one_request_held.text, inBlocks(f.blocks_per_request, f.one_request_held, f.one_request)],
    ["fig.tail", number(f.tail_slots), f.tail_text],
    ...(document_.sized_to_need ? [] : [
      ["fig.ceiling", number(f.ceiling), `${f.target === null ? "" : `${word("wanted")} ${number(f.target)}; `}${word("limited_by")} ${word(`by.${f.limited_by}`)}`],
      ["fig.pool_tokens", number(f.pool_tokens), f.pool.text],
    ]),
    ...(document_.cost?.known ? [["fig.million", document_.cost.rates.at(-1).output_text, word("fig.busy_all")]] : []),
  ];
}

// Of one GPU: what two states differ in where a card is given.
function parts(document_) {
  return document_.bar.map((part) => [`part.${part.key}`, part.text]);
}

// What the pool pays is in whole blocks; the bytes of the tokens alone stand beside it where they differ.
function inBlocks(blocks, held, exact) {
  return `${number(blocks)} ${word("fig.blocks")}${held.bytes === exact.bytes ? "" : `; ${exact.text} ${word("exactly")}`}`;
}

// What to look at where the page stands at a worked example, and the way to all of them.
function worked() {
  const here = examples.find((one) => one.page === location.pathname && one.query === `${query()}` && one.kept === kept);
  by("example").hidden = !here;
  by("example").textContent = here ? `${word(`example.${here.key}`)}: ${word(`example.${here.key}.look`)}` : "";
  const lang = document.documentElement.lang === "en" ? "en" : "zh";
  by("examples").replaceChildren(...examples.map((one) => {
    const address = new URL(one.address, location.origin);
    address.searchParams.set("lang", lang);
    const link = element("a", { href: `${address.pathname}${address.search}${address.hash}`, "aria-current": one === here ? "true" : undefined }, word(`example.${one.key}`));
    return element("li", {}, link, element("span", { class: "note" }, word(`example.${one.key}.look`)));
  }));
}

function figures(place, rows) {
  by(place).replaceChildren(...rows.map(([key, value, note]) => element("div", {}, element("dt", {}, word(key)), element("dd", { "data-figure": key.slice(4) }, value, element("small", {}, note)))));
}

function costs(cost) {
  by("cost").hidden = !cost;
  if (!cost) return;
  by("cost-unknown").hidden = cost.known;
  by("cost-rates").hidden = !cost.known;
  by("cost-assumed").hidden = cost.lengths !== "assumed";
  figures("cost-figures", !cost.known ? [] : [
    ["fig.hour", cost.hour_text, cost.price_text], ["fig.speed", cost.speed_text, word(`source.${cost.source}`)],
    ["fig.at_once", number(cost.concurrency), `${cost.lengths_text} token`],
  ]);
  fill(by("t-cost"), [
    ["col.busy", false, (row) => row.busy_text], ["col.million_output", true, (row) => row.output_text],
    ["col.million_total", true, (row) => row.total_text],
  ], cost.rates ?? []);
}

function bar(parts) {
  const pieces = parts.map((part) => {
    const piece = element("i", { title: `${word(`part.${part.key}`)}: ${part.text}` });
    piece.style.width = `${100 * part.share}%`;
    piece.style.background = `var(--${PARTS.includes(part.key) ? part.key : "free"})`;
    return piece;
  });
  by("bar").replaceChildren(...pieces);
  by("bar").setAttribute("aria-label", parts.map((part) => `${word(`part.${part.key}`)} ${part.text}`).join(", "));
  fill(by("t-bar"), [
    ["col.part", false, (part) => swatch(part.key, word(`part.${part.key}`))],
    ["col.size", true, (part) => part.text],
    ["col.share", true, (part) => `${(100 * part.share).toFixed(1)}%`],
    ["col.source", false, (part) => word(`source.${part.source}`)],
    ["col.note", false, (part) => told(part.note)],
  ], parts);
}

function kind(group) {
  return `${word(`kind.${group.kind}`)}${group.window ? ` ${number(group.window)}` : ""}`;
}

function tables(document_) {
  fill(by("t-percentiles"), [
    ["col.percentile", false, (row) => row.name], ["col.length", true, (row) => number(row.length)],
    ["col.at_once", true, (row) => number(row.requests)],
  ], document_.percentiles);
  const groups = document_.groups, all = groups.reduce((sum, group) => sum + group.blocks, 0) || 1;
  by("groups").replaceChildren(...groups.map((group, index) => {
    const piece = element("i", { title: `${kind(group)}: ${number(group.blocks)}` });
    piece.style.flexGrow = String(Math.max(group.blocks / all, 0.005));
    piece.style.background = `var(--${PARTS[(index + 4) % 5]})`;
    return piece;
  }));
  by("groups").setAttribute("aria-label", groups.map((group) => `${kind(group)} ${number(group.blocks)}`).join(", "));
  fill(by("t-groups"), [
    ["col.kind", false, (row) => swatch(PARTS[(groups.indexOf(row) + 4) % 5], kind(row))], ["col.groups", true, (row) => row.groups],
    ["col.layers", true, (row) => row.layers], ["col.block", true, (row) => number(row.block_size)],
    ["col.page", true, (row) => `${number(row.page_size_bytes)} B`], ["col.blocks", true, (row) => number(row.blocks)],
  ], groups);
  fill(by("t-changes"), [
    ["col.change", false, (row) => word(`change.${row.code}`)], ["col.before", true, (row) => told(row.before)],
    ["col.after", true, (row) => told(row.after)], ["col.needed", true, (row) => row.needed.text],
    ["col.ratio", true, (row) => row.ratio_text],
    ...(document_.sized_to_need ? [] : [["col.at_once", true, (row) => row.refused ? "–" : number(row.ceiling)]]),
  ], document_.changes);
  fill(by("t-tail"), [
    ["col.block", true, (row) => number(row.block)], ["col.length", true, (row) => number(row.length)],
    ["col.blocks", true, (row) => number(row.blocks)], ["col.slots", true, (row) => number(row.slots)],
    ["col.share", true, (row) => row.text],
  ], document_.tail, (row) => row.now);
  fill(by("t-splits"), [
    ["col.requests", true, (row) => number(row.requests)], ["col.length", true, (row) => number(row.length)],
    ["col.held", true, (row) => row.held.text], ["col.slots", true, (row) => number(row.slots)],
    ["col.blocks", true, (row) => number(row.blocks_each)], ["col.share_one", true, (row) => row.share_text],
  ], document_.splits, (row) => row.requests === document_.figures.concurrency);
  fill(by("t-naive"), [
    ["col.formula", false, (row) => told(row.name)], ["col.said", true, (row) => told(row.said_text)],
    ["col.ours", true, (row) => told(row.ours_text)], ["col.ratio", true, (row) => row.ratio_text], ["col.why", false, (row) => told(row.why)],
  ], document_.naive);
  fill(by("t-retreat"), [
    ["col.step", false, (row) => told(row.name)], ["col.flag", false, (row) => told(row.flag)],
    ["col.cost", false, (row) => word(`cost.${row.cost}`)],
    ["col.at_once", true, (row) => row.together ? number(row.together.p95) : "–"],
    ["col.note", false, (row) => row.together ? told(row.note) : `${word("cannot")}: ${told(row.note)}`],
  ], document_.retreat, (row) => row.enough === true);
  by("findings").replaceChildren(...document_.findings.map((one) => element("li", { class: one.severity }, ...finding(one))));
}

function exports() {
  for (const link of document.querySelectorAll("[data-export]")) {
    const name = link.dataset.export;
    link.href = `/api/export/${name}?${query()}`;
    link.download = config && name.startsWith("plan.") ? `${modelName()}.${name}` : name;
    const model = Boolean(form.model.value);
    link.hidden = Boolean(link.dataset.needs) && (!model || (link.dataset.needs === "card" && shown.sized_to_need));
    link.onclick = config ? (event) => { event.preventDefault(); exportPasted(name, link.download); } : null;
  }
}

// A report of a pasted config.json is called by its architecture; the budget finds its config.json by name.
function modelName() {
  return (shown.plan.model.architectures[0] ?? "pasted").replaceAll(/[^\w-]+/g, "-").slice(0, 60);
}

async function exportPasted(name, file) {
  const answer = await fetched(`/api/export/${name}?${query()}`, { method: "POST", body: config, headers: { "content-type": "application/json" } });
  if (!answer.ok) { problem((await answer.json()).error.message); return; }
  const link = element("a", { href: URL.createObjectURL(await answer.blob()), download: file });
  link.click();
  URL.revokeObjectURL(link.href);
}

// ---- comparing, sharing

function keep() {
  kept = `${query()}` || "layers=32";
  keptConfig = config;
  compare();
  remember();
}

async function compare() {
  by("compare").hidden = by("unpin").hidden = !kept;
  if (!kept) return;
  let good, other;
  try { [good, other] = await plan(kept, keptConfig); } catch { return; }
  if (!good || !shown) { kept = ""; by("compare").hidden = by("unpin").hidden = true; return; }
  const before = new Map([...facts(other), ...parts(other)]);
  fill(by("t-compare"), [
    ["col.figure", false, ([key]) => word(key)], ["kept", true, ([key]) => before.get(key) ?? "–"], ["now", true, ([, value]) => value],
  ], [...facts(shown), ...parts(shown)]);
}

async function copy() {
  await remember();
  try {
    await navigator.clipboard.writeText(location.href);
    by("said").textContent = word("copied");
  } catch {
    by("said").textContent = location.href;
  }
}

function dropped(event) {
  const file = event.dataTransfer?.files?.[0];
  if (!file) return;
  event.preventDefault();
  file.text().then((text) => {
    config = text.trim();
    by("config").value = config;
    by("paste").open = true;
    refresh();
  });
}

