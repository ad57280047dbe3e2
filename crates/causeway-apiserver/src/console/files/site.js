// One site: its gateways, its traffic, the paths of its packets, the services that run there and those that are presented there.

import { h, facts, replace, table } from "./dom.js";
import { follow, isLoaded } from "./store.js";
import { figures, historyOf, poll } from "./figures.js";
import { bytes, milliseconds } from "./format.js";
import { ofGateway, ofObject, ofSite, transports } from "./state.js";
import { pollPaths } from "./paths.js";
import { pathTable } from "./path-table.js";
import { badge, conditions, link } from "./gateway.js";
import { plot } from "./plot.js";

export function site(root, name) {
  const head = h("div");
  const drawing = plot("Traffic");
  const gatewayBox = h("section", { class: "panel", "aria-labelledby": "site-gateways" });
  const pathBox = h("section", { class: "panel", hidden: true, "aria-labelledby": "site-paths" });
  const rest = h("div");
  root.replaceChildren(head, drawing.element, gatewayBox, pathBox, rest);
  const gateways = () => follow("egateways").all().filter((gateway) => gateway.eSiteName === name);

  const names = () => gateways().map((gateway) => gateway.metadata.name);
  const stateOfGateway = (gateway) => ofGateway(gateway, figures(gateway.metadata.name), polled.known().paths);

  function renderPaths() {
    const own = new Set(names());
    const paths = polled.known().paths.filter((path) => own.has(path.gateway) || own.has(path.peer));
    pathBox.hidden = paths.length === 0;
    replace(pathBox, h("h2", { id: "site-paths" }, "Paths of packets"), pathTable(paths));
    renderGateways();
  }

  function renderGateways() {
    const rows = gateways().map((gateway) => {
      const shown = figures(gateway.metadata.name);
      const state = stateOfGateway(gateway);
      return [link("gateway", gateway.metadata.name), [badge(state), state.why ? ` ${state.why}` : ""], transports(shown) ?? "–",
        milliseconds(shown?.rttMs), bytes(shown?.sentBytes), bytes(shown?.receivedBytes), shown?.address ?? "–", shown?.software ?? "–"];
    });
    replace(gatewayBox, h("h2", { id: "site-gateways" }, "Gateways"),
      table("Gateways", ["Gateway", "State", "Transport", "Round trip", "Sent", "Received", "Seen from", "Version"], rows, "No gateway is at this site."));
    drawing.update(historyOf(names()));
  }

  function render() {
    if (!isLoaded("esites", "egateways")) return;
    const object = follow("esites").get(name);
    const state = ofSite(gateways().map(stateOfGateway));
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

  const polled = pollPaths({ names, update: renderPaths });
  render();
  const end = poll({
    names,
    fleetSize: () => follow("egateways").all().length,
    update: renderGateways,
    isExact: true,
  });
  return {
    update: render,
    destroy() {
      end();
      polled.end();
    },
  };
}

function stateOf(object) {
  const state = ofObject(object);
  return [badge(state), state.why ? ` ${state.why}` : ""];
}

export function labels(object) {
  return Object.entries(object.metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
}
