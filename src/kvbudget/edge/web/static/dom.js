// The few pieces by which every page is built: elements, tables, words. No page writes markup out of text.
import { CHINESE, inChinese } from "./chinese.js";
import { WORDS } from "./words.js";

let language = "en";

export function word(key) {
  return WORDS[language][key] ?? key;
}

// A sentence that the planner said, in the language of the page.
export function told(text) {
  return language === "zh" ? inChinese(text) : text;
}

// A finding: what holds and what to do. In Chinese by its code, with the planner's, the gate's or the engine's own words
// to open.
export function finding({ code, message, fix }) {
  const known = language === "zh" ? CHINESE.findings[code] ?? CHINESE.verdicts[code] : undefined;
  if (!known) return [element("code", {}, code), ` ${message}. `, element("em", {}, fix)];
  const own = element("details", { lang: "en" }, element("summary", { lang: "zh-Hans" }, word("original")), `${message}. ${fix}`);
  return [element("code", {}, code), ` ${known[0]}`, element("em", {}, known[1]), own];
}

function speak(wanted) {
  language = wanted in WORDS ? wanted : "en";
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  for (const one of document.querySelectorAll("[data-w]")) one.textContent = word(one.dataset.w);
  const heading = document.querySelector("h1[data-w]");
  if (heading) document.title = `${heading.textContent} · kvbudget`;
  for (const one of document.querySelectorAll("[data-w-label]")) one.setAttribute("aria-label", word(one.dataset.wLabel));
  for (const one of document.querySelectorAll("[data-w-hint]")) one.setAttribute("placeholder", word(one.dataset.wHint));
  return language;
}

// The language of the address, else the browser's; the button that switches says the other one.
export function inLanguage(wanted) {
  const spoken = speak(wanted ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
  const button = document.getElementById("language");
  button.textContent = word("other");
  button.lang = spoken === "en" ? "zh-Hans" : "en";
}

// Turns the page to the other language; the rest of its address is its state, and stays.
export function otherLanguage() {
  const address = new URLSearchParams(location.search);
  address.set("lang", document.documentElement.lang === "en" ? "zh" : "en");
  history.replaceState(null, "", `${location.pathname}?${address}${location.hash}`);
  inLanguage(address.get("lang"));
}

// What went wrong, in the place that each page has for it; "" takes it away.
export function problem(text) {
  const place = document.getElementById("problem");
  place.hidden = !text;
  place.textContent = text;
}

// Why the API refused, and what to do where that is said.
export function refusalIn({ error }) {
  return error.fix ? `${error.message}; ${error.fix}` : error.message;
}

export function swatch(key, text) {
  const colour = element("span", { class: "swatch" });
  colour.style.background = `var(--${key})`;
  return element("span", {}, colour, text);
}

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map((child) => child instanceof Node ? child : String(child)));
  return made;
}

// columns: [key of the heading, numeric, how a row writes its cell]
export function fill(table, columns, rows, marked = () => false) {
  const head = element("thead", {}, element("tr", {}, ...columns.map(([key, numeric]) => element("th", { scope: "col", class: numeric ? "n" : undefined }, word(key)))));
  const body = element("tbody");
  for (const row of rows) {
    const cells = columns.map(([, numeric, text], index) => element(index ? "td" : "th", { scope: index ? undefined : "row", class: numeric ? "n" : undefined }, text(row) ?? ""));
    body.append(element("tr", { class: marked(row) ? "now" : undefined }, ...cells));
  }
  table.replaceChildren(head, body);
}

// Every question of a page. Who is not signed in, or no more, is led to where that is done, and back from there.
export async function fetched(path, options) {
  const answer = await fetch(path, options);
  if (answer.status !== 401) return answer;
  location.assign(`/login?next=${encodeURIComponent(`${location.pathname}${location.search}`)}${location.hash}`);
  return new Promise(() => {}); // this page is over
}

export function sent(path, document_, options = {}) {
  return fetched(path, { ...options, method: "POST", body: JSON.stringify(document_), headers: { "content-type": "application/json" } });
}

// A page that not every port has, such as that of a running gate, is linked where it is there; who signed in may leave.
export async function linkPages() {
  const answer = await fetched("/api/pages").catch(() => null);
  if (!answer?.ok) return;
  const { pages, session } = await answer.json();
  for (const link of document.querySelectorAll("nav a[hidden]")) link.hidden = !pages.includes(link.getAttribute("href"));
  const leave = document.getElementById("logout");
  leave.hidden = !session;
  leave.addEventListener("click", async () => {
    await sent("/logout", {}).catch(() => null);
    location.assign("/login");
  });
}

// As wide as the box it stands in, so that its text is as large as is written; at most so wide, at least 280.
export function chartWidth(box, most) {
  return Math.min(most, Math.max(280, Math.floor(box.clientWidth) || most));
}

export function number(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}
