// The map: every site around the cloud, and a tile for each with its gateways, transports, round trips and traffic; lines and rows for
// the paths of packets between gateways.

import { field, h, svg, keyed, replace, setText, setClass } from "./dom.js";
import { follow, isLoaded } from "./store.js";
import { figures, historyOf, isAllAsked, poll, rates } from "./figures.js";
import { bytes, count, milliseconds, rate } from "./format.js";
import { OK, UNKNOWN, WARNING, ofGateway, ofObject, ofSite, transports } from "./state.js";
import { pollPaths } from "./paths.js";
import { pathTable } from "./path-table.js";
import { sparkline } from "./plot.js";

/** Rows of paths on the map; the page of a site has all of its own. */
const PATHS_SHOWN = 100;

/** Sites with their gateways and states, in the order of their names. */
function overview(known) {
  const bySite = new Map();
  for (const gateway of follow("egateways").all()) {
    const list = bySite.get(gateway.eSiteName) ?? [];
    list.push(gateway);
    bySite.set(gateway.eSiteName, list);
  }
  return follow("esites").all().map((site) => {
    const gateways = bySite.get(site.metadata.name) ?? [];
    const states = gateways.map((gateway) => ofGateway(gateway, figures(gateway.metadata.name), known.paths));
    return { name: site.metadata.name, site, gateways, states, state: ofSite(states) };
  });
}

const link = (kind, name) => `#/${kind}/${encodeURIComponent(name)}`;

export function map(root) {
  const search = h("input", { id: "map-search", type: "search", placeholder: "site or gateway", oninput: render });
  const only = h("select", { id: "map-only", onchange: render },
    h("option", { value: "all" }, "all sites"), h("option", { value: "problems" }, "only problems"));
  const summary = h("div", { class: "summary" });
  const heads = [];
  const cells = ["Sites", "Gateways connected", "Exposures ready", "To sites", "From sites"].map((name) => {
    const value = h("b", null, "–");
    const head = h("span", null, name);
    heads.push(head);
    summary.append(h("div", null, head, value));
    return value;
  });
  const drawing = starMap();
  const pathBox = h("section", { class: "panel", hidden: true, "aria-labelledby": "map-paths" });
  const tiles = h("ul", { class: "tiles", id: "tiles" });
  const empty = h("p", { class: "empty", hidden: true });
  root.replaceChildren(
    h("h1", { class: "hidden" }, "Map of sites and gateways"),
    summary,
    h("div", { class: "split" },
      h("section", { class: "panel star", "aria-label": "Picture of all sites" }, drawing.element),
      h("section", { "aria-label": "Sites" },
        h("div", { class: "filters" },
          field("Find", search), field("Show", only)),
        tiles, empty)),
    pathBox);

  const visible = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) visible.add(entry.target.dataset.site);
      else visible.delete(entry.target.dataset.site);
    }
  }, { rootMargin: "200px" });

  function makeTile({ name }) {
    const badge = h("span");
    const why = h("p", { class: "why", hidden: true });
    const list = h("ul", { class: "gateways" });
    const spark = sparkline(name);
    const element = h("li", { class: "tile" },
      h("div", { class: "tile-head" }, h("a", { href: link("site", name) }, name), badge),
      list, why, spark.element);
    element.dataset.site = name;
    observer.observe(element);
    return {
      element,
      remove: () => observer.unobserve(element),
      update(item) {
        setClass(element, `tile ${item.state.state}`);
        setClass(badge, `badge ${item.state.state}`);
        setText(badge, item.state.word);
        why.hidden = !item.state.why;
        setText(why, item.state.why);
        keyed(list, item.gateways, (gateway) => gateway.metadata.name, (gateway) => makeGateway(gateway));
        spark.update(historyOf(item.gateways.map((gateway) => gateway.metadata.name)));
      },
    };
  }

  function makeGateway(gateway) {
    const name = gateway.metadata.name;
    const [transport, rtt, traffic] = [h("span", { class: "number" }), h("span", { class: "number" }), h("span", { class: "number" })];
    const dot = h("span");
    const element = h("li", null, dot, h("a", { href: link("gateway", name) }, name), transport, rtt, traffic);
    return {
      element,
      update(now) {
        const shown = figures(name);
        const state = ofGateway(now, shown, polled.known().paths);
        setClass(dot, `dot ${state.state}`);
        setText(transport, name === "cloud" ? "this cloud" : transports(shown) ?? (state.word === "connected" ? "" : state.word));
        setText(rtt, shown?.rttMs != null ? milliseconds(shown.rttMs) : "");
        setText(traffic, shown?.connected && name !== "cloud" ? `↓${bytes(shown.sentBytes)} ↑${bytes(shown.receivedBytes)}` : "");
      },
    };
  }

  let items = [];
  function render() {
    if (!isLoaded("esites", "egateways")) return;
    items = overview(polled.known());
    const word = search.value.trim().toLowerCase();
    const matches = (item) => (only.value === "all" || ![OK, UNKNOWN].includes(item.state.state))
      && (word === "" || item.name.toLowerCase().includes(word)
        || item.gateways.some((gateway) => gateway.metadata.name.toLowerCase().includes(word)));
    const shown = items.filter(matches);
    keyed(tiles, shown, (item) => item.name, makeTile);
    empty.hidden = shown.length > 0;
    setText(empty, items.length === 0 ? "There are no sites yet." : "No site matches.");
    drawing.update(items, polled.known());
    summarize();
  }

  // A gateway with a problem is connected all the same.
  const isReached = (found) => [OK, WARNING].includes(found.state);

  function summarize() {
    const gateways = items.flatMap((item) => item.gateways.map((gateway, index) => item.states[index]));
    const exposes = follow("serviceexposes").all();
    setText(cells[0], String(items.length));
    setText(cells[1], `${gateways.filter((found) => isReached(found)).length} of ${gateways.length}`);
    setText(cells[2], `${exposes.filter((expose) => ofObject(expose).state === OK).length} of ${exposes.length}`);
    const isAll = isAllAsked(follow("egateways").all().length);
    for (const [cell, direction] of [[3, "To"], [4, "From"]]) setText(heads[cell], `${direction} sites${isAll ? "" : " in view"}`);
    const now = items.flatMap((item) => item.gateways).map((gateway) => rates(gateway.metadata.name)).filter(Boolean);
    const sum = (key) => (now.length ? rate(now.reduce((total, point) => total + point[key], 0)) : "–");
    setText(cells[3], sum("sent"));
    setText(cells[4], sum("received"));
  }

  /** Figures change only the tiles that are in view. */
  function renderFigures() {
    const byName = new Map(overview(polled.known()).map((item) => [item.name, item]));
    items = [...byName.values()];
    for (const [name, entry] of tiles.causewayKeys ?? []) {
      if (visible.has(name) && byName.has(name)) entry.update(byName.get(name));
    }
    drawing.update(items, polled.known());
    summarize();
  }

  function renderPaths() {
    const { paths, unanswered, notAsked } = polled.known();
    pathBox.hidden = paths.length === 0 && unanswered.length === 0;
    replace(pathBox, h("h2", { id: "map-paths" }, "Paths of packets between gateways"),
      pathTable(paths.slice(0, PATHS_SHOWN)),
      paths.length > PATHS_SHOWN && h("p", { class: "help" }, `${count(paths.length - PATHS_SHOWN, "more path")}; the page of a site shows its own.`),
      unanswered.length > 0 && h("p", { class: "help" }, `Not told: ${unanswered.map((one) => `${one.gateway} (${one.reason})`).join(", ")}.`),
      notAsked > 0 && h("p", { class: "help" }, `${count(notAsked, "gateway")} more were not asked.`));
    renderFigures();
  }

  const inView = () => items.filter((item) => visible.has(item.name)).flatMap((item) => item.gateways.map((gateway) => gateway.metadata.name));
  const fleetSize = () => follow("egateways").all().length;
  const polled = pollPaths({
    // A fleet without communities and translated services has no paths.
    names: () => (isAllAsked(fleetSize()) ? null : inView()),
    update: renderPaths,
  });
  render();
  const end = poll({ names: inView, fleetSize, update: renderFigures });
  return {
    update: render,
    destroy() {
      end();
      polled.end();
      observer.disconnect();
    },
  };
}

/** Paths that have a line, the best first: of two gateways of a site the better one is drawn. Those over the channel go through the cloud. */
const RANK = ["direct", "relayed", "channel"];
const WORDS = { direct: "go directly", relayed: "go through a relay", channel: "go over the channels" };
/** More lines than these cannot be told apart. */
const LINES_MAX = 200;

/** The cloud in the middle, sites on rings around it. A picture only: the tiles say the same and take the keyboard. */
function starMap() {
  const size = 400;
  const links = svg("g");
  const between = svg("g");
  const dots = svg("g");
  const names = svg("g", { class: "names" });
  const label = h("p", { class: "legend-line" });
  const drawing = svg("svg", { viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": "Sites around the cloud" },
    links, between, svg("circle", { class: "hub", cx: size / 2, cy: size / 2, r: 17 }),
    svg("text", { class: "hub-name", x: size / 2, y: size / 2 + 4 }, "cloud"), dots, names);
  let drawn = "";
  let drawnBetween = "";
  let marks = new Map();

  function lay(items) {
    links.replaceChildren();
    dots.replaceChildren();
    names.replaceChildren();
    marks = new Map();
    const sites = items.filter((item) => item.name !== "cloud");
    const rings = sites.length <= 24 ? 1 : Math.ceil(Math.sqrt(sites.length / 28));
    const radius = (ring) => (rings === 1 ? 140 : 55 + ((ring + 1) * 130) / rings);
    const shares = Array.from({ length: rings }, (_, ring) => radius(ring));
    const whole = shares.reduce((sum, share) => sum + share, 0);
    let next = 0;
    shares.forEach((share, ring) => {
      const here = ring === rings - 1 ? sites.length - next : Math.round((sites.length * share) / whole);
      for (let index = 0; index < here; index += 1) {
        const item = sites[next + index];
        if (!item) return;
        const angle = (2 * Math.PI * index) / here - Math.PI / 2 + Math.PI / here + ring * 0.4;
        const [x, y] = [size / 2 + share * Math.cos(angle), size / 2 + share * Math.sin(angle)];
        const line = svg("line", { x1: size / 2, y1: size / 2, x2: x.toFixed(1), y2: y.toFixed(1) });
        const title = svg("title");
        const dot = svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: sites.length <= 24 ? 10 : sites.length <= 200 ? 5 : 3 }, title);
        dot.addEventListener("click", () => { location.hash = link("site", item.name); });
        links.append(line);
        dots.append(dot);
        const mark = { line, dot, title, text: null, x, y };
        if (sites.length <= 24) {
          const text = item.name.length > 16 ? `${item.name.slice(0, 15)}…` : item.name;
          names.append(svg("text", { x: x.toFixed(1), y: (y + 25).toFixed(1) }, text));
          mark.figure = svg("text", { class: "figure", x: ((x + size / 2) / 2).toFixed(1), y: ((y + size / 2) / 2 + 3).toFixed(1) });
          names.append(mark.figure);
        }
        marks.set(item.name, mark);
      }
      next += here;
    });
  }

  /** A line between two sites for packets that do not go through the cloud; bent, so that it does not cross the hub. */
  function drawPaths(items, { paths }) {
    const siteOf = new Map(items.flatMap((item) => item.gateways.map((gateway) => [gateway.metadata.name, item.name])));
    const pairs = new Map();
    for (const path of paths) {
      // The standby gateway of a site tells of no packet; the line is that of the pair which has some.
      if (!RANK.includes(path.path)) continue;
      const ends = [siteOf.get(path.gateway), siteOf.get(path.peer)].sort();
      if (!marks.has(ends[0]) || !marks.has(ends[1]) || ends[0] === ends[1]) continue;
      const key = ends.join(" ");
      const shown = pairs.get(key);
      if (!shown || RANK.indexOf(path.path) < RANK.indexOf(shown.path)) pairs.set(key, { ends, path: path.path });
    }
    const drawnPaths = [...pairs].filter(([, pair]) => RANK.includes(pair.path)).slice(0, LINES_MAX);
    const text = drawnPaths.map(([key, pair]) => `${key} ${pair.path}`).join("\n");
    if (text === drawnBetween) return;
    drawnBetween = text;
    between.replaceChildren(...drawnPaths.map(([, pair]) => {
      const [one, other] = pair.ends.map((end) => marks.get(end));
      const [x, y] = [(one.x + other.x) / 2, (one.y + other.y) / 2];
      // Away from the hub; opposite sites have no such direction, so any will do.
      const [away, up] = [x - size / 2, y - size / 2];
      const bend = Math.hypot(away, up) < 30 ? [40, 40] : [away * 0.35, up * 0.35];
      const curve = `M${one.x.toFixed(1)} ${one.y.toFixed(1)} Q${(x + bend[0]).toFixed(1)} ${(y + bend[1]).toFixed(1)} ${other.x.toFixed(1)} ${other.y.toFixed(1)}`;
      return svg("path", { class: `way ${pair.path}`, d: curve, "data-between": pair.ends.join(" ") }, svg("title", null, `${pair.ends.join(" and ")}: packets ${WORDS[pair.path]}`));
    }));
  }

  return {
    element: h("div", null, drawing, label),
    update(items, known) {
      const key = items.map((item) => item.name).join(" ");
      if (key !== drawn) {
        lay(items);
        drawn = key;
        drawnBetween = "";
        between.replaceChildren();
        const heights = [...marks.values()].map((mark) => Number(mark.dot.getAttribute("cy")));
        const [low, high] = [Math.min(size / 2, ...heights) - 30, Math.max(size / 2, ...heights) + 40];
        drawing.setAttribute("viewBox", `10 ${low} ${size - 20} ${high - low}`);
      }
      drawPaths(items, known);
      const totals = { ok: 0, warning: 0, failed: 0, unknown: 0 };
      for (const item of items) {
        totals[item.state.state] += 1;
        const mark = marks.get(item.name);
        if (!mark) continue;
        setClass(mark.line, `link ${item.state.state}`);
        setClass(mark.dot, `site ${item.state.state}`);
        setText(mark.title, `${item.name}: ${item.state.word}${item.state.why ? `, ${item.state.why}` : ""}`);
        if (mark.figure) {
          const shown = item.gateways.map((gateway) => figures(gateway.metadata.name)).find((found) => found?.connected);
          setText(mark.figure, shown?.rttMs != null ? `${transports(shown)} ${milliseconds(shown.rttMs)}` : "");
        }
      }
      const said = `${count(totals.ok, "site")} connected, ${totals.warning} with problems, ${totals.failed} away, ${totals.unknown} in an unknown state`;
      setText(label, said);
      drawing.setAttribute("aria-label", said);
    },
  };
}

