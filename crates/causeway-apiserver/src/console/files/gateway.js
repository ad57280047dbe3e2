// One gateway: its channel, its identity, its conditions, and for admins revoke and drain.

import { confirm, facts, h, replace, setText, table } from "./dom.js";
import { patch, post } from "./api.js";
import { follow, isLoaded } from "./store.js";
import { figures, history, poll } from "./figures.js";
import { ago, bytes, count, milliseconds, until } from "./format.js";
import { isPlainWireGuard, ofGateway, transports } from "./state.js";
import { pollPaths } from "./paths.js";
import { pathTable } from "./path-table.js";
import { plot } from "./plot.js";

export function link(kind, name) {
  return h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, name);
}

export function badge({ state, word }) {
  return h("span", { class: `badge ${state}` }, word);
}

export function conditions(object) {
  const rows = (object.status?.conditions ?? []).map((found) => {
    const state = found.status === "True" ? "ok" : found.status === "False" ? "failed" : "unknown";
    return [found.type, badge({ state, word: found.status }), found.reason, found.message, ago(found.lastTransitionTime)];
  });
  return h("section", { class: "panel" }, h("h2", null, "Conditions"),
    table("Conditions", ["Condition", "Status", "Reason", "Message", "Since"], rows, "No condition is reported."));
}

export function gateway(root, name, who) {
  const head = h("div");
  const outcome = h("p", { class: "notice", role: "alert" });
  const actions = h("div", { class: "buttons", hidden: who.role !== "admin" });
  const drawing = plot("Traffic");
  const channel = h("section", { class: "panel", "aria-label": "Channel and identity" });
  const pathBox = h("section", { class: "panel", hidden: true, "aria-labelledby": "gateway-paths" });
  const rest = h("div");
  root.replaceChildren(head, actions, outcome, channel, drawing.element, pathBox, rest);
  const object = () => follow("egateways").get(name);
  const isDrained = () => object()?.drain === true;

  function renderFigures() {
    const now = object();
    if (!now) return;
    const shown = figures(name);
    const state = ofGateway(now, shown, polled.known().paths);
    replace(head, h("p", { class: "trail" }, h("a", { href: "#/map" }, "Map"), " / ", link("site", now.eSiteName)),
      h("h1", null, `Gateway ${name} `, badge(state)),
      state.why && h("p", { class: "why" }, state.why));
    const carries = (shown?.carries ?? []).map((one) => `${one.transport}: ${count(one.streams, "stream")}, ↓${bytes(one.sentBytes)} ↑${bytes(one.receivedBytes)}`).join("; ");
    const expires = shown?.certificateExpires ?? shown?.identity?.expires;
    replace(channel, facts([
      ["Address as seen", shown?.address],
      ["Address in its site", now.ip],
      ["Version", shown?.software],
      ["WireGuard key", isPlainWireGuard(now) ? now.publicKey : ""],
      ["WireGuard address", isPlainWireGuard(now) ? now.endpoint : ""],
      ["Transport", transports(shown)],
      ["Round trip", shown?.rttMs != null ? milliseconds(shown.rttMs) : ""],
      ["Sent to it", shown?.connected ? bytes(shown.sentBytes) : ""],
      ["Received from it", shown?.connected ? bytes(shown.receivedBytes) : ""],
      ["Streams", carries],
      ["Why so", shown?.carriesReason],
      ["Netmap in force", shown?.generation],
      ["Certificate", expires ? `expires ${until(expires)}, ${expires.slice(0, 10)}` : ""],
      ["Identity", shown?.identity?.revoked ? `revoked at ${shown.identity.at}` : shown?.identity ? "enrolled" : ""],
      [shown?.connected ? "Connected" : "Away", shown?.since ? ago(shown.since) : ""],
      ["Last seen", shown?.lastSeen && !shown.connected ? ago(shown.lastSeen) : ""],
      ["Last disconnect", shown?.lastDisconnectReason],
      ["Clock", Math.abs(shown?.clockAheadSeconds ?? 0) > 2 ? `${shown.clockAheadSeconds} s ahead of the cloud` : ""],
      ["Two processes", shown?.takeovers ? `${shown.takeovers} takeovers, from ${shown.rivalAddresses.join(", ")}` : ""],
      ["Presence range", now.virtualPresenceIPcidr],
      ["Priority", now.priority || ""],
      ["Drain", isDrained() ? "gets no new connections" : ""],
    ]));
    drawing.update(history(name));
  }

  function render() {
    if (!isLoaded("egateways", "esites")) return;
    const now = object();
    if (!now) {
      replace(head, h("h1", null, `Gateway ${name}`), h("p", null, "It does not exist, or was deleted."));
      actions.hidden = true;
      return;
    }
    renderFigures();
    setText(drain, isDrained() ? "End drain" : "Drain");
    revoke.disabled = drain.disabled = name === "cloud" || isPlainWireGuard(now);
    replace(rest, conditions(now));
  }

  function renderPaths() {
    const paths = polled.known().paths.filter((path) => path.gateway === name || path.peer === name);
    pathBox.hidden = paths.length === 0;
    replace(pathBox, h("h2", { id: "gateway-paths" }, "Paths of packets"), pathTable(paths));
    renderFigures();
  }

  async function act(what, call) {
    setText(outcome, "");
    try {
      setText(outcome, await call());
    } catch (error) {
      setText(outcome, `${what} failed: ${error.message}`);
    }
  }

  const revoke = h("button", {
    type: "button", class: "danger",
    async onclick() {
      const yes = await confirm({
        title: `Revoke gateway ${name}?`,
        lines: ["Its key is refused from now on and its session is cut at once, with all connections through it.",
          "It comes back only when its host joins with a new token."],
        action: "Revoke",
      });
      if (yes) await act("Revoke", async () => {
        const done = await post("/causeway/v1/revoke", { gateway: name });
        return done.keys?.length ? `Gateway ${name} is revoked.` : `Gateway ${name} had no key to revoke.`;
      });
    },
  }, "Revoke");

  const drain = h("button", {
    type: "button",
    async onclick() {
      const drained = isDrained();
      const others = follow("egateways").all().filter((one) => one.eSiteName === object().eSiteName && one.metadata.name !== name && !one.drain);
      const yes = await confirm(drained
        ? { title: `End the drain of ${name}?`, lines: ["It gets new connections again."], action: "End drain" }
        : {
          title: `Drain gateway ${name}?`,
          lines: ["It gets no new connections from other sites. Open connections go on until they end.",
            others.length ? `Other gateways there: ${others.map((one) => one.metadata.name).join(", ")}.`
              : "The site has no other gateway in service: its services cannot be reached until the drain ends."],
          action: "Drain",
        });
      if (yes) await act("Drain", async () => {
        await patch(`/apis/causeway.io/v1/egateways/${encodeURIComponent(name)}`, { drain: drained ? null : true });
        return drained ? `The drain of ${name} has ended.` : `Gateway ${name} is draining.`;
      });
    },
  }, "Drain");
  actions.append(drain, revoke);

  const polled = pollPaths({ names: () => [name], update: renderPaths });
  render();
  const end = poll({ names: () => [name], fleetSize: () => follow("egateways").all().length, update: renderFigures, isExact: true });
  return {
    update: render,
    destroy() {
      end();
      polled.end();
    },
  };
}
