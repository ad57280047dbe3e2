// The audit as it happens: records of connections and requests with filters, and the bytes by service and subject.

import { field, h, setText } from "./dom.js";
import { lines, SignedOut } from "./api.js";
import { bytes, clock, count, visible } from "./format.js";
import { badge } from "./gateway.js";
import { bars } from "./plot.js";

const ROWS_MAX = 500;
const FILTERS = [["site", "Site"], ["gateway", "Gateway"], ["service", "Service"], ["subject", "Subject"]];
const HEADS = ["Time", "Decision", "Subject", "Service", "Reported by", "Rule or reason", "Request", "Bytes", "End"];

export function audit(root, _, who, query) {
  const inputs = Object.fromEntries(FILTERS.map(([name]) => [name, h("input", { id: `audit-${name}`, name, value: query.get(name) ?? "", autocomplete: "off" })]));
  const decision = h("select", { id: "audit-decision", name: "decision" },
    ["", "allow", "deny"].map((value) => h("option", { value, selected: value === (query.get("decision") ?? "") }, value || "all")));
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: togglePause }, "Pause");
  const told = h("span", { class: "help", role: "status" });
  const body = h("tbody");
  const services = h("ul", { class: "bars" });
  const subjects = h("ul", { class: "bars" });
  const form = h("form", { class: "filters", onsubmit(event) { event.preventDefault(); apply(); } },
    FILTERS.map(([name, label]) => field(label, inputs[name])), field("Decision", decision),
    h("button", { type: "submit", class: "primary" }, "Filter"), pause, told);
  root.replaceChildren(h("h1", null, "Audit"), form,
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("h2", null, "Bytes by service"), services),
      h("section", { class: "panel" }, h("h2", null, "Bytes by subject"), subjects)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Records, the newest first" },
      h("table", { class: "records" }, h("caption", { class: "hidden" }, "Audit records, the newest first"),
        h("thead", null, h("tr", null, HEADS.map((head) => h("th", { scope: "col" }, head)))), body)));

  let records = [];
  let waiting = [];
  let paused = false;
  let running = null;
  let scheduled = false;

  function apply() {
    const wanted = filters();
    history.replaceState(null, "", `#/audit${wanted.size ? `?${wanted}` : ""}`);
    start();
  }

  function filters() {
    const wanted = new URLSearchParams();
    for (const [name] of FILTERS) if (inputs[name].value.trim()) wanted.set(name, inputs[name].value.trim());
    if (decision.value) wanted.set("decision", decision.value);
    return wanted;
  }

  async function start() {
    running?.abort();
    const own = new AbortController();
    running = own;
    records = [];
    waiting = [];
    body.replaceChildren();
    render();
    let pauseMs = 500;
    while (!own.signal.aborted) {
      try {
        const wanted = filters();
        wanted.set("follow", "true");
        wanted.set("limit", records.length === 0 ? "200" : "1");
        tell();
        await lines(`/causeway/v1/audit?${wanted}`, own.signal, take);
      } catch (error) {
        if (own.signal.aborted || error instanceof SignedOut) return;
        setText(told, `interrupted: ${error.message}; trying again`);
        await new Promise((resolve) => setTimeout(resolve, pauseMs));
        pauseMs = Math.min(2 * pauseMs, 15_000);
      }
    }
  }

  function take(record) {
    if (!record.time || record.summary) return;
    waiting.push(record);
    if (waiting.length > ROWS_MAX) waiting.shift();
    if (!scheduled) {
      scheduled = true;
      requestAnimationFrame(() => { scheduled = false; render(); });
    }
  }

  function render() {
    if (paused) return;
    for (const record of waiting) {
      records.push(record);
      body.prepend(row(record));
    }
    waiting = [];
    records = records.slice(-ROWS_MAX);
    while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
    bars(services, top("service"), bytes);
    bars(subjects, top("subject"), bytes);
    tell();
  }

  function tell() {
    setText(told, `${paused ? "paused" : "live"}, ${count(records.length, "record")}`);
  }

  function top(key) {
    const sums = new Map();
    // Both gateways of a crossing record it; the client's gateway counts.
    for (const record of records.filter((found) => !found.clientSite || found.clientSite === found.site)) {
      const name = record[key] ? visible(record[key]) : `unknown host at ${visible(record.clientSite || record.site)}`;
      sums.set(name, (sums.get(name) ?? 0) + record.sentBytes + record.receivedBytes);
    }
    return [...sums].sort((one, other) => other[1] - one[1]).slice(0, 5);
  }

  function togglePause() {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    setText(pause, paused ? "Continue" : "Pause");
    tell();
    render();
  }

  start();
  return { update() {}, destroy: () => running?.abort() };
}

function row(record) {
  const denied = record.decision === "deny";
  const request = [record.method, record.path, record.status].filter(Boolean).join(" ");
  const subject = record.subject || record.claimedSubject || record.client || "unknown";
  const cells = [
    h("time", { datetime: record.time, title: record.time }, clock(record.time)),
    badge({ state: denied ? "failed" : "ok", word: record.decision || "–" }),
    `${visible(subject)}${record.clientSite ? ` at ${visible(record.clientSite)}` : ""}`,
    visible(record.service || "–"),
    visible(record.gateway),
    visible(denied ? record.reason || "" : record.rule || ""),
    visible(request),
    `↓${bytes(record.receivedBytes)} ↑${bytes(record.sentBytes)}`,
    visible(record.end || "") + (record.count > 1 ? ` ×${record.count}` : ""),
  ];
  return h("tr", null, cells.map((cell, index) => h("td", { "data-head": HEADS[index] }, cell)));
}

