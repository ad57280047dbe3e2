// The copies of the Kubernetes API at the edges: in sync or since when not, their size, and the writes that wait.
//
// The cloud asks the edges and keeps their answers for some seconds; this page asks while it is visible.

import { facts, field, h, replace, setText, table } from "./dom.js";
import { get } from "./api.js";
import { follow, isLoaded } from "./store.js";
import { ago, bytes, count, duration } from "./format.js";
import { FAILED, OK, WARNING, isPlainWireGuard } from "./state.js";
import { badge, link } from "./gateway.js";

const PERIOD_MS = 5_000;
/** Names in one question; more would make the address too long. */
const NAMES_MAX = 100;
const HEADS = ["Edge", "Site", "State", "Resources", "Objects", "Bytes", "Pending writes", "Watchers", "Why"];
const RESOURCE_HEADS = ["Resource", "Namespace", "Selector", "State", "Objects", "Bytes", "Watchers", "Last sync", "Kept by"];

export function caches(root, name) {
  const search = h("input", { id: "cache-search", type: "search", placeholder: "edge or site", oninput: renderSoon });
  const told = h("p", { class: "help", role: "status" });
  const box = h("div");
  const detail = h("div");
  root.replaceChildren(
    name ? h("p", { class: "trail" }, h("a", { href: "#/caches" }, "Caches")) : null,
    h("h1", null, name ? `Cache of ${name}` : "Caches"),
    ...(name ? [] : [h("div", { class: "filters" }, field("Find", search))]),
    told, box, detail);
  const stopped = new AbortController();
  let answer = null;
  let timer = null;

  const edges = () => follow("egateways").all().filter((gateway) => gateway.metadata.name !== "cloud" && !isPlainWireGuard(gateway));
  const matches = (gateway) => [gateway.metadata.name, gateway.eSiteName].some((text) => text.toLowerCase().includes(search.value.trim().toLowerCase()));

  async function ask() {
    if (!isLoaded("egateways") || document.hidden) return;
    let names = edges().filter(matches).map((gateway) => gateway.metadata.name);
    if (name) names = [name];
    const asked = names.slice(0, NAMES_MAX);
    const query = new URLSearchParams(asked.map((one) => ["gateway", one]));
    answer = asked.length === 0 ? { caches: [], unanswered: [], notAsked: 0 } : await get(`/causeway/v1/caches?${query}`, stopped.signal);
    answer.notAsked += names.length - asked.length;
    if (!stopped.signal.aborted) render();
  }

  async function tick() {
    clearTimeout(timer);
    try {
      await ask();
    } catch (error) {
      if (!stopped.signal.aborted) setText(told, `The edges cannot be asked: ${error.message}`);
    }
    clearTimeout(timer);
    if (!stopped.signal.aborted) timer = setTimeout(tick, answer ? PERIOD_MS : 200);
  }

  function renderSoon() {
    clearTimeout(timer);
    timer = setTimeout(tick, 200);
    if (answer) render();
  }

  function render() {
    const shown = answer.caches.filter((cache) => name || matches({ metadata: { name: cache.gateway }, eSiteName: cache.site }));
    const parts = [`${count(shown.length, "edge")} with a copy of the Kubernetes API`];
    if (answer.without?.length) parts.push(`${answer.without.length} without one`);
    if (answer.unanswered.length) parts.push(`not told: ${answer.unanswered.map((one) => `${one.gateway} (${one.reason})`).join(", ")}`);
    if (answer.notAsked) parts.push(`${answer.notAsked} not asked: narrow the search`);
    setText(told, parts.join("; "));
    const rows = shown.map((cache) => {
      const state = ofCache(cache);
      return [link("caches", cache.gateway), link("site", cache.site), badge(state), cache.resources, cache.objects, bytes(cache.bytes), cache.pendingWrites, cache.watchers, state.why];
    });
    replace(box, table("Caches of edges", HEADS, rows, "No edge told of a copy of the Kubernetes API."));
    if (name) renderDetail(shown.find((cache) => cache.gateway === name));
  }

  function renderDetail(cache) {
    if (!cache) return replace(detail);
    replace(detail,
      h("section", { class: "panel" }, facts([
        ["Served at", cache.listen],
        ["Link to the cloud", cache.connected ? "up" : "down"],
        ["Writes that wait for the API server", String(cache.pendingWrites)],
        ["Writes that it refused", String(cache.refusedWrites)],
        ["Pods that would not survive a restart without the cloud", String(cache.podsAtRisk)],
        ["Bytes on the link today", bytes(cache.linkBytes)],
      ])),
      h("section", { class: "panel" }, h("h2", null, "Subscribed resources"),
        table("Subscribed resources", RESOURCE_HEADS, cache.subscriptions.map((one) => {
          const state = ofSubscription(one);
          return [one.resource, one.namespace || "all", one.selector || "–", [badge(state), state.why ? ` ${state.why}` : ""], one.objects, bytes(one.bytes), one.watchers,
            one.lastSync ? ago(one.lastSync) : "never", { cloud: "the cloud", edge: "the edge" }[one.pinnedBy] ?? "its clients"];
        }), "Nothing is subscribed."),
        cache.resources > cache.subscriptions.length && h("p", { class: "help" }, `${cache.resources - cache.subscriptions.length} more are not listed; causeway cache on the host shows them.`)));
  }

  tick();
  return {
    update() {},
    destroy() {
      stopped.abort();
      clearTimeout(timer);
    },
  };
}

/** The state of a copy in words. */
export function ofCache(cache, now = Date.now()) {
  if (cache.failure) return { state: FAILED, word: "not served", why: cache.failure };
  const since = (time) => (time ? `since ${duration((now - Date.parse(time)) / 1000)}` : "since it began");
  if (cache.behind > 0) {
    const refused = cache.subscriptions.find((one) => one.refused);
    const why = refused ? `${refused.resource}: ${refused.refused}` : cache.connected ? "the cloud does not send them now" : "there is no link to the cloud";
    return { state: WARNING, word: `behind ${since(cache.behindSince)}`, why: `${cache.behind} of ${count(cache.resources, "resource")}: ${why}` };
  }
  if (!cache.connected) return { state: WARNING, word: "no link", why: "the copy is as it was when the link ended" };
  if (cache.budget) return { state: WARNING, word: "in sync", why: cache.budget };
  return { state: OK, word: "in sync", why: "" };
}

function ofSubscription(one) {
  if (one.refused) return { state: FAILED, word: "refused", why: one.refused };
  if (one.live) return { state: OK, word: "in sync", why: "" };
  return { state: WARNING, word: one.complete ? "behind" : "incomplete", why: "" };
}
