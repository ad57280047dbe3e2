// The frame: sign-in, pages by the address after #, the bar at the top.

import { h, replace, setText } from "./dom.js";
import { onSignedOut, quietMs, session, silentSince } from "./api.js";
import { clock } from "./format.js";
import * as store from "./store.js";
import * as figures from "./figures.js";
import { signIn } from "./sign-in.js";
import { map } from "./map.js";
import { site } from "./site.js";
import { gateway } from "./gateway.js";
import { service, services } from "./services.js";
import { access } from "./access.js";
import { audit } from "./audit.js";
import { caches } from "./caches.js";

const PAGES = { map, site, gateway, services, service, access, audit, caches };
const LINKS = [["map", "Map"], ["services", "Services"], ["access", "Access"], ["audit", "Audit"], ["caches", "Caches"]];
const ENDED = "Your sign-in has ended. Sign in again.";
/** Well below the time after which the server ends an idle session. */
const KEEP_MS = 4 * 60_000;
/** A visible page that has heard nothing for this long asks whether the server is still there. */
const HEARTBEAT_MS = 4_000;
const UNDER = { site: "map", gateway: "map", service: "services" };

const content = document.getElementById("content");
const bar = document.getElementById("bar");
const live = document.getElementById("live");
const pages = document.getElementById("pages");
let who = null;
let page = null;

function address() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const known = Object.hasOwn(PAGES, name) ? name : "map";
  return { name: known, argument: decodeURIComponent(rest.join("/")), query: new URLSearchParams(query ?? "") };
}

function show() {
  if (!who) return;
  page?.destroy();
  const { name, argument, query } = address();
  const current = UNDER[name] ?? name;
  replace(pages, LINKS.map(([link, text]) => h("a", { href: `#/${link}`, "aria-current": link === current ? "page" : null }, text)));
  document.title = `${argument || LINKS.find(([link]) => link === current)[1]} · Causeway`;
  page = PAGES[name](content, argument, who, query);
  tell();
}

function tell() {
  const since = silentSince();
  const isLive = store.isLive();
  live.dataset.state = isLive && !since ? "ok" : "warning";
  setText(live, since ? `no answer since ${clock(since)}` : isLive ? "live" : "connecting…");
}

/** Ends everything that asks the server, so that no call is made with a session that has ended. */
function leave() {
  who = null;
  page?.destroy();
  page = null;
  store.forget();
  figures.forget();
  bar.hidden = true;
}

function askForSignIn(notice) {
  leave();
  document.title = "Sign in · Causeway";
  signIn(content, { notice, done: begin });
}

function begin(identity) {
  who = identity;
  bar.hidden = false;
  replace(document.getElementById("who"), h("span", { class: "user" }, `${who.user} `), `(${who.role})`);
  show();
  content.focus();
}

onSignedOut(() => {
  if (who) askForSignIn(ENDED);
});
store.listen(() => {
  tell();
  page?.update();
});
window.addEventListener("hashchange", () => {
  show();
  if (who) content.focus();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // The part of the address after # names the page, so the browser must not change it.
  event.preventDefault();
  content.focus();
});
document.getElementById("sign-out").addEventListener("click", async () => {
  leave();
  content.replaceChildren();
  try {
    await session.end();
    askForSignIn("You are signed out.");
  } catch (error) {
    askForSignIn(`The sign-out did not reach the server, so the session may go on: ${error.message}`);
  }
});

// An open page keeps its session, also in the background, where nothing else is asked for.
setInterval(async () => {
  if (!who) return;
  const identity = await session.show().catch(() => who);
  if (!identity && who) askForSignIn(ENDED);
}, KEEP_MS);

// Watches may be quiet for a minute, also over a connection that is dead at its other end. A short call shows which of both it is.
setInterval(() => {
  if (!who) return;
  tell();
  if (!document.hidden && quietMs() > HEARTBEAT_MS) session.show().catch(() => null).then(tell);
}, HEARTBEAT_MS / 2);

try {
  const identity = await session.show();
  if (identity) begin(identity);
  else askForSignIn();
} catch (error) {
  askForSignIn(`The server cannot be asked: ${error.message}`);
}
