// All services and where they are present, and one service in detail.

import { facts, field, h, replace, setText, table } from "./dom.js";
import { follow, isLoaded } from "./store.js";
import { bytes, count, visible } from "./format.js";
import { ofObject } from "./state.js";
import { badge, conditions, link } from "./gateway.js";
import { bars, plot } from "./plot.js";
import { followRecords, namesOf } from "./records.js";
import { DIRECTIONS, MINUTES, SPAN_MS, Traffic } from "./traffic.js";

/** Rows that are shown at once; more on demand. */
const ROWS = 200;
/** Records from before the page was opened, for its plots. */
const PAST_MAX = 1_000;
const SUBJECTS_SHOWN = 8;
const PLOTS_MS = 1_000;

/** Presences by service, made once per change. */
function presencesByService() {
  const found = new Map();
  for (const presence of follow("virtualpresences").all()) {
    const list = found.get(presence.eServiceName) ?? [];
    list.push(presence);
    found.set(presence.eServiceName, list);
  }
  return found;
}

function group(objects, key) {
  const found = new Map();
  for (const object of objects) found.set(object[key], [...(found.get(object[key]) ?? []), object]);
  return found;
}

export function services(root) {
  const search = h("input", { id: "service-search", type: "search", placeholder: "service, site, name or policy", oninput: render });
  const only = h("select", { id: "service-only", onchange: render },
    h("option", { value: "all" }, "all services"), h("option", { value: "problems" }, "only problems"));
  const told = h("p", { class: "help", role: "status" });
  const box = h("div");
  let shownMax = ROWS;
  const more = h("button", { type: "button", onclick: () => { shownMax += ROWS; render(); } }, "Show more");
  root.replaceChildren(h("h1", null, "Services"),
    h("div", { class: "filters" }, field("Find", search), field("Show", only)),
    told, box, more);

  function render() {
    if (!isLoaded("eservices", "serviceexposes", "virtualpresences")) return;
    const presences = presencesByService();
    const exposes = group(follow("serviceexposes").all(), "eServiceName");
    const word = search.value.trim().toLowerCase();
    const all = follow("eservices").all().map((service) => {
      const name = service.metadata.name;
      const ours = exposes.get(name) ?? [];
      const problem = [service, ...ours].map(ofObject).find((state) => state.state === "failed");
      return { service, name, ours, there: presences.get(name) ?? [], problem, state: problem ?? ofObject(service) };
    });
    const text = (row) => [row.name, row.service.eSiteName, ...row.ours.flatMap((expose) => [expose.dnsName, ...(expose.eSites ?? []), ...(expose.ePolicys ?? [])])].join(" ").toLowerCase();
    const matching = all.filter((row) => (only.value === "all" || row.problem) && (word === "" || text(row).includes(word)));
    setText(told, `${count(matching.length, "service")} of ${all.length}, ${count(follow("serviceexposes").all().length, "exposure")}`);
    const rows = matching.slice(0, shownMax).map((row) => [
      link("service", row.name),
      row.service.eSiteName ? link("site", row.service.eSiteName) : "–",
      `${row.service.protocol} ${row.service.port}`,
      presentAt(row.ours, row.there),
      row.ours.map((expose) => expose.dnsName).filter(Boolean).join(", ") || "–",
      [...new Set(row.ours.flatMap((expose) => expose.ePolicys ?? []))].join(", ") || "none",
      [badge(row.state), row.state.why ? h("span", { class: "why" }, ` ${row.state.why}`) : ""],
    ]);
    replace(box, table("Services", ["Service", "Runs at", "Protocol", "Present at", "DNS name", "Policies", "State"], rows, "No service matches."));
    more.hidden = matching.length <= shownMax;
  }

  render();
  return { update: render, destroy() {} };
}

const SITES_SHOWN = 4;

function presentAt(exposes, presences) {
  const sites = [...new Set(exposes.flatMap((expose) => expose.eSites ?? []))];
  if (sites.length === 0) return "nowhere";
  const address = (site) => presences.find((presence) => presence.eSiteName === site)?.virtualIp;
  const said = sites.slice(0, SITES_SHOWN).map((site) => `${site} ${address(site) ?? "(no address)"}`).join(", ");
  return sites.length > SITES_SHOWN ? `${said} and ${sites.length - SITES_SHOWN} more` : said;
}

export function service(root, name) {
  const box = h("div");
  const rest = h("div");
  const drawing = plot("Traffic", { words: DIRECTIONS, minutes: MINUTES, waiting: "no record yet" });
  const subjects = h("ul", { class: "bars", "aria-labelledby": "service-subjects" });
  const charts = h("div", null, drawing.element,
    h("section", { class: "panel" }, h("h2", { id: "service-subjects" }, "Traffic by subject"), subjects,
      h("p", { class: "help" }, "From audit records: the bytes of a connection or request count when it ends. ",
        h("a", { href: `#/audit?${new URLSearchParams({ service: name })}` }, "The records"))));
  root.replaceChildren(box, charts, rest);
  const traffic = new Traffic();
  const end = followRecords({ filters: { service: name }, limit: PAST_MAX, take: (record) => traffic.add(record, namesOf(record)) });

  function renderPlots() {
    if (document.hidden) return;
    const now = Date.now();
    drawing.update(traffic.history(now));
    const href = (subject) => (subject.includes(" ") ? null : `#/audit?${new URLSearchParams({ service: name, subject })}`);
    bars(subjects, traffic.top("subject", SUBJECTS_SHOWN, now).map((row) => ({ ...row, name: visible(row.name), href: href(row.name) })), bytes, SPAN_MS);
  }

  function render() {
    if (!isLoaded("eservices", "serviceexposes", "virtualpresences", "epolicies")) return;
    const object = follow("eservices").get(name);
    if (!object) {
      replace(box, h("h1", null, `Service ${name}`), h("p", null, "It does not exist, or was deleted."));
      replace(rest);
      return;
    }
    const exposes = follow("serviceexposes").all().filter((expose) => expose.eServiceName === name);
    const presences = follow("virtualpresences").all().filter((presence) => presence.eServiceName === name);
    const sites = [...new Set(exposes.flatMap((expose) => expose.eSites ?? []))].sort();
    const policies = [...new Set(exposes.flatMap((expose) => expose.ePolicys ?? []))].sort();
    const backends = object.endpoints?.length ? object.endpoints.map((one) => `${one.ip}:${one.port || object.port}`).join(", ") : `${object.ip || object.domainName}:${object.port}`;
    replace(box,
      h("p", { class: "trail" }, h("a", { href: "#/services" }, "Services")),
      h("h1", null, `Service ${name} `, badge(ofObject(object))),
      facts([["Runs at", link("site", object.eSiteName)], ["Protocol", `${object.protocol}, port ${object.port}`], ["Backends", backends],
        ["DNS names", exposes.map((expose) => expose.dnsName).filter(Boolean).join(", ")]]));
    replace(rest,
      h("section", { class: "panel" }, h("h2", null, "Present at"),
        table("Present at", ["Site", "Address", "State", "Access"], sites.map((site) => {
          const there = presences.filter((presence) => presence.eSiteName === site);
          const state = there.length ? ofObject(there[0]) : { state: "failed", word: "no address", why: "" };
          return [link("site", site), there.map((presence) => presence.virtualIp).join(", ") || "–", [badge(state), state.why ? ` ${state.why}` : ""],
            h("a", { href: `#/access?${new URLSearchParams({ site, service: name })}`, "aria-label": `Check access from ${site}` }, "check")];
        }), "It is not exposed to any site.")),
      h("section", { class: "panel" }, h("h2", null, "Policies"),
        table("Policies", ["Policy", "Hosts", "Sites", "Limits", "HTTP rules"], policies.map((policy) => policyRow(policy)), "No policy is attached, so no client may use it.")),
      exposes.map((expose) => h("section", { "aria-label": `Exposure ${expose.metadata.name}` }, conditions(expose))));
  }

  render();
  renderPlots();
  const plots = setInterval(renderPlots, PLOTS_MS);
  return {
    update: render,
    destroy() {
      clearInterval(plots);
      end();
    },
  };
}

export function policyRow(name) {
  const policy = follow("epolicies").get(name);
  if (!policy) return [name, badge({ state: "failed", word: "does not exist" }), "", "", ""];
  const limits = Object.entries(policy.limits ?? {}).map(([key, value]) => `${key} ${value}`).join(", ");
  const rules = (policy.http ?? []).map((rule) => `${rule.methods?.join(" ") || "any method"} ${rule.paths?.join(" ") || "any path"}`).join("; ");
  return [name, policy.allowedServers?.join(", ") || "–", policy.allowedSites?.join(", ") || "–", limits || "none", rules || "every request"];
}
