// The audit as it happens: records of connections and requests with filters, and their bytes over time, by service and by subject.

import { field, h, setText } from "./dom.js";
import { bytes, clock, count, visible } from "./format.js";
import { badge } from "./gateway.js";
import { bars, plot } from "./plot.js";
import { followRecords, namesOf } from "./records.js";
import { DIRECTIONS, MINUTES, SPAN_MS, Traffic } from "./traffic.js";

const ROWS_MAX = 500;
/** Records from before the page was opened: for the plots more than the rows. */
const PAST_MAX = 1_000;
/** Services and subjects that have a row. */
const NAMES_SHOWN = 8;
const PLOTS_MS = 1_000;
const FILTERS = [["site", "Site"], ["gateway", "Gateway"], ["service", "Service"], ["subject", "Subject"]];
const HEADS = ["Time", "Decision", "Subject", "Service", "Reported by", "Rule or reason", "Request", "Bytes", "End"];

export function audit(root, _, who, query) {
  const inputs = Object.fromEntries(FILTERS.map(([name]) => [name, h("input", { id: `audit-${name}`, name, value: query.get(name) ?? "", autocomplete: "off" })]));
  const decision = h("select", { id: "audit-decision", name: "decision" },
    ["", "allow", "deny"].map((value) => h("option", { value, selected: value === (query.get("decision") ?? "") }, value || "all")));
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: togglePause }, "Pause");
  const told = h("span", { class: "help", role: "status" });
  const body = h("tbody");
  const services = h("ul", { class: "bars", "aria-labelledby": "by-service" });
  const subjects = h("ul", { class: "bars", "aria-labelledby": "by-subject" });
  const form = h("form", { class: "filters", onsubmit(event) { event.preventDefault(); apply(); } },
    FILTERS.map(([name, label]) => field(label, inputs[name])), field("Decision", decision),
    h("button", { type: "submit", class: "primary" }, "Filter"), pause, told);
  const drawing = plot("Traffic of these records", { words: DIRECTIONS, minutes: MINUTES, waiting: "no record yet" });
  root.replaceChildren(h("h1", null, "Audit"), form, drawing.element,
    h("p", { class: "help" }, `The bytes of a connection or request count when it ends. The last ${MINUTES} minutes are shown.`),
    h("div", { class: "columns" },
      h("section", { class: "panel" }, h("h2", { id: "by-service" }, "Traffic by service"), services),
      h("section", { class: "panel" }, h("h2", { id: "by-subject" }, "Traffic by subject"), subjects)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Records, the newest first" },
      h("table", { class: "records" }, h("caption", { class: "hidden" }, "Audit records, the newest first"),
        h("thead", null, h("tr", null, HEADS.map((head) => h("th", { scope: "col" }, head)))), body)));

  let shown = 0;
  let waiting = [];
  let paused = false;
  let end = null;
  let scheduled = false;
  let traffic = new Traffic();
  let trouble = "";

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

  function start() {
    end?.();
    shown = 0;
    waiting = [];
    traffic = new Traffic();
    body.replaceChildren();
    end = followRecords({
      filters: filters(),
      limit: PAST_MAX,
      take,
      opened() { setTrouble(""); },
      interrupted(why) { setTrouble(`interrupted: ${why}; trying again`); },
    });
    renderPlots();
  }

  function setTrouble(text) {
    trouble = text;
    tell();
  }

  function take(record) {
    traffic.add(record, namesOf(record));
    waiting.push(record);
    if (waiting.length > ROWS_MAX) waiting.shift();
    if (!scheduled) {
      scheduled = true;
      requestAnimationFrame(() => { scheduled = false; render(); });
    }
  }

  function render() {
    if (paused) return;
    for (const record of waiting) body.prepend(row(record));
    shown = Math.min(shown + waiting.length, ROWS_MAX);
    waiting = [];
    while (body.childElementCount > ROWS_MAX) body.lastElementChild.remove();
    tell();
  }

  function renderPlots() {
    if (paused || document.hidden) return;
    const now = Date.now();
    drawing.update(traffic.history(now));
    bars(services, top("service", now), bytes, SPAN_MS);
    bars(subjects, top("subject", now), bytes, SPAN_MS);
  }

  /** A name leads to the records of that service or subject alone; a host without a name cannot be asked for. */
  function top(key, now) {
    const href = (name) => `#/audit?${new URLSearchParams({ ...Object.fromEntries(filters()), [key]: name })}`;
    const isName = (name) => !/[ –]/.test(name);
    return traffic.top(key, NAMES_SHOWN, now).map((row) => ({ ...row, name: visible(row.name), href: isName(row.name) ? href(row.name) : null }));
  }

  function tell() {
    setText(told, trouble || `${paused ? "paused" : "live"}, ${count(shown, "record")}`);
  }

  function togglePause() {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    setText(pause, paused ? "Continue" : "Pause");
    tell();
    render();
    renderPlots();
  }

  start();
  const plots = setInterval(renderPlots, PLOTS_MS);
  return {
    update() {},
    destroy() {
      clearInterval(plots);
      end?.();
    },
  };
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

