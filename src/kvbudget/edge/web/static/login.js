// Signing in: the token is sent once; the browser then has a cookie that no script can read.
import { inLanguage, otherLanguage, problem, refusalIn, sent, word } from "./dom.js";

const form = document.getElementById("fields");
const asked = new URLSearchParams(location.search);

start();

async function start() {
  inLanguage(asked.get("lang") ?? wanted().searchParams.get("lang"));
  document.getElementById("language").addEventListener("click", otherLanguage);
  form.addEventListener("submit", (event) => { event.preventDefault(); signIn(); });
  // A link from another site brings no cookie, so that whoever is signed in may be led here all the same.
  const answer = await fetch("/api/session").catch(() => null);
  if (answer?.ok && (await answer.json()).signed_in) goOn();
}

async function signIn() {
  document.getElementById("ask").disabled = true;
  problem("");
  try {
    const answer = await sent("/login", { token: form.token.value });
    if (answer.ok) {
      goOn();
      return;
    }
    problem(answer.status === 403 ? word("login.wrong") : refusalIn(await answer.json()));
  } catch {
    problem(word("live.cut"));
  }
  document.getElementById("ask").disabled = false;
  form.token.select();
}

// The page that was asked for; only one of ours.
function wanted() {
  const next = new URL(asked.get("next") || "/live", location.origin);
  return next.origin === location.origin && next.pathname !== "/login" ? next : new URL("/live", location.origin);
}

function goOn() {
  const next = wanted();
  next.hash = location.hash;
  location.replace(next.href); // not its path: that of /.//other.site is an address of another site
}
