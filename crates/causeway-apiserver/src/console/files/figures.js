// Figures that move fast: transport, round trip and bytes of gateways, asked for every two seconds.
//
// Only for gateways that the visible page shows, and only while the page is visible. Rates and plots come from the samples. Figures of a
// gateway that is no longer asked for are soon not shown any more: its conditions, which are watched, say then how it is.

import { get } from "./api.js";

const PERIOD_MS = 2_000;
/** Until the page knows its first gateways. */
const SOON_MS = 200;
/** Five minutes. */
const SAMPLES_MAX = 150;
/** Up to this number all gateways are asked for, so that plots have a past when a page is opened. */
const ALL_MAX = 200;
/** Names in one question; more would make the address too long. */
const NAMES_MAX = 100;
/** Older figures are not shown: some questions may fail before. */
const FRESH_MS = 10_000;

const known = new Map();
let wanted = null;
let timer = null;
let running = null;

/** The last answer about a gateway, unless it is old. */
export function figures(gateway) {
  const entry = known.get(gateway);
  return entry && Date.now() - entry.at <= FRESH_MS ? entry.latest : undefined;
}

/** Bytes per second to and from a gateway, of the last two samples. */
export function rates(gateway) {
  if (!figures(gateway)) return undefined;
  const points = history(gateway);
  return points.length === 0 ? undefined : points[points.length - 1];
}

/** `{at, sent, received}` in bytes per second, the oldest first. */
export function history(gateway) {
  const samples = known.get(gateway)?.samples ?? [];
  const points = [];
  for (let index = 1; index < samples.length; index += 1) {
    const [before, after] = [samples[index - 1], samples[index]];
    const seconds = (after.at - before.at) / 1000;
    // A new session counts from zero.
    const gain = (key) => (after[key] >= before[key] ? after[key] - before[key] : after[key]);
    if (seconds > 0) points.push({ at: after.at, sent: gain("sent") / seconds, received: gain("received") / seconds });
  }
  return points;
}

/** The sum of the rates of several gateways over time, on a common grid of periods. */
export function historyOf(gateways) {
  const sums = new Map();
  for (const gateway of gateways) {
    for (const point of history(gateway)) {
      const slot = Math.round(point.at / PERIOD_MS);
      const sum = sums.get(slot) ?? { at: slot * PERIOD_MS, sent: 0, received: 0 };
      sum.sent += point.sent;
      sum.received += point.received;
      sums.set(slot, sum);
    }
  }
  return [...sums.values()].sort((one, other) => one.at - other.at);
}

function take(overview, at) {
  const entry = known.get(overview.name) ?? { samples: [] };
  entry.latest = overview;
  entry.at = at;
  if (overview.connected) {
    entry.samples.push({ at, sent: overview.sentBytes, received: overview.receivedBytes });
    if (entry.samples.length > SAMPLES_MAX) entry.samples.shift();
  }
  known.set(overview.name, entry);
}

/** True if all gateways of a fleet of this size are asked for, not only those in view. */
export function isAllAsked(fleetSize) {
  return fleetSize <= ALL_MAX;
}

async function ask() {
  const { names: wantedNames, fleetSize, isExact, update } = wanted;
  const { signal } = running;
  const names = wantedNames();
  if (names.length === 0) return SOON_MS;
  const isAll = isAllAsked(fleetSize()) && !isExact;
  for (let at = 0; at === 0 || (at < names.length && !isAll); at += NAMES_MAX) {
    const query = isAll ? "" : names.slice(at, at + NAMES_MAX).map((name) => `&gateway=${encodeURIComponent(name)}`).join("");
    const answer = await get(`/causeway/v1/status?show=gateways${query}`, signal);
    const now = Date.now();
    for (const overview of answer.gateways) take(overview, now);
  }
  if (!signal.aborted) update();
  return PERIOD_MS;
}

async function tick() {
  clearTimeout(timer);
  const own = running;
  let pause = PERIOD_MS;
  if (!document.hidden && wanted) {
    try {
      pause = await ask();
    } catch {
      // The bar says that the server does not answer. Figures that are old by now disappear; the next tick tries again.
      if (own === running) wanted?.update();
    }
  }
  if (own === running && !own.signal.aborted) timer = setTimeout(tick, pause);
}

/** Begins to ask for the gateways that `names` returns; `isExact`: for no other ones. Returns the function that ends it. */
export function poll({ names, fleetSize, update, isExact }) {
  running?.abort();
  running = new AbortController();
  const own = running;
  wanted = { names, fleetSize, update, isExact };
  tick();
  return () => {
    own.abort();
    if (own === running) {
      clearTimeout(timer);
      wanted = null;
    }
  };
}

export function forget() {
  known.clear();
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && wanted) tick();
});
