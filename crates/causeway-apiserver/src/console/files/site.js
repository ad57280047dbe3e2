// One site: its gateways, its traffic, the services that run there and those that are presented there.

import { h, facts, replace, table } from "./dom.js";
import { follow, isLoaded } from "./store.js";
import { figures, historyOf, poll } from "./figures.js";
import { bytes, milliseconds } from "./format.js";
import { ofGateway, ofObject, ofSite } from "./state.js";
import { badge, conditions, link } from "./gateway.js";
import { plot } from "./plot.js";

export function site(root, name) {
  const head = h("div");
  const drawing = plot("Traffic");
  const gatewayBox = h("section", { class: "panel", "aria-labelledby": "site-gateways" });
  const rest = h("div");
  root.replaceChildren(head, drawing.element, gatewayBox, rest);
  const gateways = () => follow("egateways").all().filter((gateway) => gateway.eSiteName === name);

  function renderGateways() {
    const rows = gateways().map((gateway) => {
      const shown = figures(gateway.metadata.name);
      const state = ofGateway(gateway, shown);
      return [link("gateway", gateway.metadata.name), [badge(state), state.why ? ` ${state.why}` : ""], shown?.transport ?? "–",
        milliseconds(shown?.rttMs), bytes(shown?.sentBytes), bytes(shown?.receivedBytes), shown?.address ?? "–", shown?.software ?? "–"];
    });
    replace(gatewayBox, h("h2", { id: "site-gateways" }, "Gateways"),
      table("Gateways", ["Gateway", "State", "Transport", "Round trip", "Sent", "Received", "Seen from", "Version"], rows, "No gateway is at this site."));
    drawing.update(historyOf(gateways().map((gateway) => gateway.metadata.name)));
  }

  function render() {
    if (!isLoaded("esites", "egateways")) return;
    const object = follow("esites").get(name);
    const state = ofSite(gateways().map((gateway) => ofGateway(gateway, figures(gateway.metadata.name))));
    replace(head, h("p", { class: "trail" }, h("a", { href: "#/map" }, "Map")),
      h("h1", null, `Site ${name} `, object ? badge(state) : badge({ state: "failed", word: "deleted" })),
      object && facts([["Networks", object.subnets?.join(", ")], ["Labels", labels(object)]]));
    renderGateways();
    if (!isLoaded("eservices", "serviceexposes", "virtualpresences")) return;
    const running = follow("eservices").all().filter((service) => service.eSiteName === name);
    const presented = follow("virtualpresences").all().filter((presence) => presence.eSiteName === name);
    replace(rest,
      h("section", { class: "panel" }, h("h2", null, "Services that run here"),
        table("Services that run here", ["Service", "Protocol", "Port", "State"],
          running.map((service) => [link("service", service.metadata.name), service.protocol, service.port, stateOf(service)]), "None.")),
      h("section", { class: "panel" }, h("h2", null, "Services that are presented here"),
        table("Services that are presented here", ["Service", "Address", "State"],
          presented.map((presence) => [link("service", presence.eServiceName), presence.virtualIp, stateOf(presence)]), "None.")),
      object && conditions(object));
  }

  render();
  const end = poll({
    names: () => gateways().map((gateway) => gateway.metadata.name),
    fleetSize: () => follow("egateways").all().length,
    update: renderGateways,
    isExact: true,
  });
  return { update: render, destroy: end };
}

function stateOf(object) {
  const state = ofObject(object);
  return [badge(state), state.why ? ` ${state.why}` : ""];
}

export function labels(object) {
  return Object.entries(object.metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
}
