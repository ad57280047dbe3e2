// The paths of packets between gateways: direct, relayed or over the channel, as the gateways tell the cloud.
//
// Asked for while the page is visible. The cloud asks the gateways and keeps their answers for some seconds.

import { get } from "./api.js";
import { milliseconds } from "./format.js";

const PERIOD_MS = 5_000;
/** Names in one question; more would make the address too long. */
const NAMES_MAX = 100;

/** The answer of the cloud while nothing is known. */
const NOTHING = { paths: [], unanswered: [], notAsked: 0, notShown: 0 };

/** Asks for the paths of the gateways that `names` returns; null: of all. Returns `{known, end}`. */
export function pollPaths({ names, update }) {
  const stopped = new AbortController();
  let latest = NOTHING;
  let timer = null;
  async function ask() {
    const wanted = names();
    if (wanted && wanted.length === 0) return NOTHING;
    const query = new URLSearchParams((wanted ?? []).slice(0, NAMES_MAX).map((name) => ["gateway", name]));
    return { ...NOTHING, ...await get(`/causeway/v1/paths?${query}`, stopped.signal) };
  }
  async function tick() {
    if (!document.hidden) {
      // On a failure the bar says that the server does not answer. What is not known is not shown.
      latest = await ask().catch(() => NOTHING);
      if (!stopped.signal.aborted) update();
    }
    if (!stopped.signal.aborted) timer = setTimeout(tick, PERIOD_MS);
  }
  tick();
  return {
    known: () => latest,
    end() {
      stopped.abort();
      clearTimeout(timer);
    },
  };
}

/** The path in words. */
export function way(path) {
  if (path.path === "direct") return path.endpoint ? `direct, ${path.endpoint}` : "direct";
  if (path.path === "relayed") return path.relay ? `relayed by ${path.relay}` : "relayed";
  if (path.path === "channel") return "over the channel";
  if (path.path === "none") return "no packet yet";
  return path.path;
}

/** The state of a path as a badge. A path over the channel works, and is slower than need be. */
export function ofPath(path) {
  const state = { direct: "ok", relayed: "ok", channel: "warning" }[path.path] ?? "unknown";
  return { state, word: path.path === "none" ? "unused" : path.path };
}

export function roundTrip(path) {
  return path.rttUs != null ? milliseconds(path.rttUs / 1000) : "–";
}
