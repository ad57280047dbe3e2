// May this client use this service, why, by which policy, and how is every hop on the way?
//
// The server decides with the functions of the gateways. The state of the hops comes from objects and figures; an admin can
// also have the path tried now, which asks the gateways themselves.

import { field, h, replace, table } from "./dom.js";
import { get, post } from "./api.js";
import { follow, isLoaded } from "./store.js";
import { figures, poll } from "./figures.js";
import { milliseconds } from "./format.js";
import { OK, UNKNOWN, condition, ofGateway, ofObject, transports, worst } from "./state.js";
import { badge, link } from "./gateway.js";
import { policyRow } from "./services.js";

const RECHECK_MS = 1_000;

export function access(root, _, who, query) {
  const lists = { site: h("datalist", { id: "sites" }), client: h("datalist", { id: "clients" }), service: h("datalist", { id: "known-services" }) };
  const choice = (name, label, list, help) => field(label, h("input", { id: `access-${name}`, name, list, value: query.get(name) ?? "", autocomplete: "off", placeholder: help, required: name !== "client" }));
  const form = h("form", { class: "filters", onsubmit(event) { event.preventDefault(); submit(); } },
    choice("site", "Client's site", "sites", "site"), lists.site,
    choice("client", "Client", "clients", "host or address; empty: unknown host"), lists.client,
    choice("service", "Service", "known-services", "service"), lists.service,
    h("button", { type: "submit", class: "primary" }, "Check"));
  const verdict = h("div", { role: "status" });
  const hops = h("div");
  const tried = h("div", { role: "status" });
  root.replaceChildren(h("h1", null, "Access"), form, verdict, hops, tried);
  const input = (name) => form.elements.namedItem(name);
  let asked = null;
  let answer = null;
  let timer = null;

  function submit() {
    const wanted = Object.fromEntries(["site", "client", "service"].map((name) => [name, input(name).value.trim()]));
    const hash = `#/access?${new URLSearchParams(wanted)}`;
    // The address can be sent to a colleague; the page stays.
    history.replaceState(null, "", hash);
    asked = wanted;
    tried.replaceChildren();
    check();
  }

  /** Once a second at most: a large fleet changes all the time. */
  function checkSoon() {
    timer ??= setTimeout(() => {
      timer = null;
      check();
    }, RECHECK_MS);
  }

  async function check() {
    const mine = asked;
    try {
      const found = await get(`/causeway/v1/access?${new URLSearchParams(mine)}`);
      if (mine !== asked) return;
      answer = found;
      renderVerdict();
    } catch (error) {
      if (mine !== asked) return;
      answer = null;
      replace(verdict, h("p", { class: "notice" }, error.message));
    }
    renderHops();
  }

  function renderVerdict() {
    const policies = [...new Set(answer.decisions.flatMap((decision) => decision.policies))];
    const client = asked.client || "An unknown host";
    replace(verdict, h("section", { class: `panel verdict ${answer.allowed ? "ok" : "failed"}` },
      h("h2", null, badge(answer.allowed ? { state: "ok", word: "Allowed" } : { state: "failed", word: "Refused" }),
        ` ${client} at ${asked.site} ${answer.allowed ? "may" : "may not"} use ${asked.service}`),
      h("ul", { class: "reasons" }, answer.decisions.map((decision) => h("li", null,
        badge({ state: decision.allowed ? "ok" : "failed", word: decision.allowed ? "allows" : "refuses" }),
        ` Gateway ${decision.gateway || "(none)"} of ${decision.site}: `,
        decision.allowed ? `allowed by ${decision.policies.join(", ")}${decision.readsRequests ? ", for the HTTP requests of its rules" : ""}` : decision.message))),
      policies.length > 0 && isLoaded("epolicies")
        && table("Policies that allow it", ["Policy", "Hosts", "Sites", "Limits", "HTTP rules"], policies.map(policyRow)),
      !answer.allowed && h("p", { class: "help" }, advice(answer))));
  }

  function advice({ decisions }) {
    const first = decisions.find((decision) => !decision.allowed);
    if (first.refusal === "not-exposed") return `Add ${asked.site} to eSites of a ServiceExpose of ${asked.service}.`;
    if (first.refusal === "not-allowed") {
      const attached = exposesAt().flatMap((expose) => expose.ePolicys ?? []);
      return attached.length ? `The policies of the exposure are ${[...new Set(attached)].join(", ")}. Name the host in allowedServers or its site in allowedSites of one of them.`
        : "The exposure has no policy. Attach an EPolicy in ePolicys.";
    }
    if (first.refusal === "no-netmap") return `No gateway is at ${first.site}. causeway token create --site ${first.site} makes one.`;
    return "";
  }

  const exposesAt = () => follow("serviceexposes").all().filter((expose) => expose.eServiceName === asked.service && expose.eSites?.includes(asked.site));

  function gatewayHop(name, site) {
    const object = follow("egateways").get(name);
    if (!object) return [`Gateway of ${site}`, { state: "failed", word: "none", why: `no EGateway is at ${site}` }, ""];
    const shown = figures(name);
    const detail = shown?.transport ? `${transports(shown)}, ${milliseconds(shown.rttMs)}, netmap ${shown.generation ?? "–"}` : "";
    return [["Gateway ", link("gateway", name), ` of ${site}`], ofGateway(object, shown), detail];
  }

  /** The gateways on the way, and between two edges the cloud, which joins their channels. */
  function gatewayHops(decisions) {
    const hops = decisions.map((decision) => gatewayHop(decision.gateway, decision.site));
    if (decisions.length < 2 || decisions.some((decision) => decision.site === "cloud")) return hops;
    const cloud = ["Cloud, which joins the channels of both", { state: OK, word: "connected", why: "" }, ""];
    return [hops[0], cloud, ...hops.slice(1)];
  }

  /** The EServer of the client: by its name or its address, at this site alone. */
  function serverOfClient() {
    const here = follow("eservers").all().filter((server) => server.eSiteName === asked.site);
    return here.find((server) => server.metadata.name === asked.client) ?? here.find((server) => asked.client !== "" && server.ip === asked.client);
  }

  /** The exposures that present the service there, as one hop: the address is there when one of them is ready. */
  function exposureHop() {
    const exposes = exposesAt();
    if (exposes.length === 0) return [`Exposure to ${asked.site}`, { state: "failed", word: "not exposed", why: "" }, ""];
    const states = exposes.map(ofObject);
    const best = states.find((state) => state.state === OK) ?? states[0];
    return [`Exposure to ${asked.site}: ${exposes.map((expose) => expose.metadata.name).join(", ")}`, best, exposes.map((expose) => expose.dnsName).filter(Boolean).join(", ")];
  }

  /** All addresses of the service there: one for each family. */
  function addressHop(service) {
    const presences = follow("virtualpresences").all().filter((one) => one.eServiceName === asked.service && one.eSiteName === asked.site);
    if (presences.length === 0) return [`Address at ${asked.site}`, { state: "failed", word: "no address", why: "" }, ""];
    const states = presences.map(ofObject);
    const state = states.find((one) => one.state === worst(states.map((found) => found.state)));
    const shown = (ip) => (ip.includes(":") ? `[${ip}]:${service.port}` : `${ip}:${service.port}`);
    return [`Address at ${asked.site}`, state, presences.map((one) => shown(one.virtualIp)).join(", ")];
  }

  function renderHops() {
    if (!asked || !isLoaded("egateways", "eservices", "serviceexposes", "virtualpresences", "eservers", "epolicies")) return;
    const service = follow("eservices").get(asked.service);
    if (!service) return replace(hops);
    const server = serverOfClient();
    // At its own site a service needs neither.
    const isLocal = service.eSiteName === asked.site && exposesAt().length === 0;
    const backends = condition(service, "BackendsAnswer");
    const backendState = !backends ? { state: UNKNOWN, word: "no report", why: "" }
      : { state: backends.status === "True" ? OK : backends.status === "False" ? "failed" : UNKNOWN, word: backends.reason, why: backends.message };
    const rows = [
      [server ? `Client ${server.metadata.name}` : `Client ${asked.client || "(unknown host)"}`, server ? ofObject(server) : { state: UNKNOWN, word: "no EServer", why: "counts as a host of its site" }, server?.ip ?? ""],
      ...(isLocal ? [] : [exposureHop(), addressHop(service)]),
      ...gatewayHops(answer?.decisions ?? []),
      [["Service ", link("service", asked.service)], ofObject(service), `${service.protocol} ${service.port}`],
      ["Backends, as last reported", backendState, ""],
    ];
    replace(hops, h("section", { class: "panel" }, h("h2", null, "Every hop"),
      table("Every hop", ["Hop", "State", "Why", "Detail"], rows.map(([hop, state, detail]) => [hop, badge(state), state.why, detail])),
      who.role === "admin" ? h("p", { class: "buttons" }, h("button", { type: "button", onclick: tryPath }, "Try the path now"))
        : h("p", { class: "help" }, "Trying the path now needs the role admin.")));
  }

  async function tryPath() {
    const near = answer?.decisions?.[0]?.gateway;
    if (!near) return;
    replace(tried, h("p", null, "The gateways are asked…"));
    try {
      const found = await post("/causeway/v1/diagnose", { gateway: near, service: asked.service });
      const good = ["answers", "connects"];
      const rows = [
        found.presenceProblem && ["Presence", badge({ state: "failed", word: "problem" }), found.presenceProblem],
        found.farProblem ? ["Path", badge({ state: "failed", word: "broken" }), found.farProblem]
          : ["Path", badge({ state: "ok", word: "works" }), `to the backends and back in ${milliseconds(found.milliseconds)}`],
        ...(found.backends ?? []).map((one) => [`Backend ${one.backend}`, badge({ state: good.includes(one.outcome) ? "ok" : "failed", word: one.outcome }), one.detail]),
      ].filter(Boolean);
      replace(tried, h("section", { class: "panel" }, h("h2", null, `Tried now from gateway ${near}`), table("Tried now", ["Hop", "State", "Detail"], rows)));
    } catch (error) {
      replace(tried, h("p", { class: "notice" }, `The path cannot be tried: ${error.message}`));
    }
  }

  function fillLists() {
    const options = (objects) => objects.slice(0, 1000).map((object) => h("option", { value: object.metadata.name }));
    replace(lists.site, options(follow("esites").all()));
    replace(lists.service, options(follow("eservices").all()));
    const site = input("site").value.trim();
    replace(lists.client, options(follow("eservers").all().filter((server) => site === "" || server.eSiteName === site)));
  }

  function update() {
    if (!isLoaded("esites", "eservices", "eservers", "epolicies", "serviceexposes", "virtualpresences", "egateways")) return;
    fillLists();
    // A change of an object may change the decision.
    if (asked) checkSoon();
    else if (query.get("site") && query.get("service")) submit();
  }

  input("site").addEventListener("change", fillLists);
  update();
  const end = poll({
    names: () => (answer?.decisions ?? []).map((decision) => decision.gateway).filter(Boolean),
    fleetSize: () => follow("egateways").all().length,
    update: renderHops,
    isExact: true,
  });
  return {
    update,
    destroy() {
      clearTimeout(timer);
      asked = null;
      end();
    },
  };
}
