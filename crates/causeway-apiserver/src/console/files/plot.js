// Plots of traffic as SVG: a sparkline for a tile, a larger one with a scale for a page.

import { h, svg, replace, setText } from "./dom.js";
import { rate } from "./format.js";

/** Places values by their time: the newest sample of all is at the right end, `spanMs` before it at the left one. */
function points(history, key, width, height, top, spanMs) {
  const end = history[history.length - 1]?.at;
  return history.map((point) => `${(width - ((end - point.at) / spanMs) * width).toFixed(1)},${(height - (point[key] / top) * height).toFixed(1)}`).join(" ");
}

const within = (history, spanMs) => history.filter((point) => history[history.length - 1].at - point.at <= spanMs);

const peak = (history) => Math.max(1, ...history.map((point) => Math.max(point.sent, point.received)));

/** A sparkline of both directions; `update(history)` draws it again. */
export function sparkline(label, spanMs = 120_000) {
  const [width, height] = [120, 22];
  const sent = svg("polyline", { class: "line sent" });
  const received = svg("polyline", { class: "line received" });
  const element = svg("svg", { class: "spark", viewBox: `0 -1 ${width} ${height + 2}`, "aria-hidden": "true", preserveAspectRatio: "none" }, sent, received);
  element.dataset.label = label;
  return {
    element,
    update(history) {
      const shown = within(history, spanMs);
      const top = peak(shown);
      sent.setAttribute("points", points(shown, "sent", width, height, top, spanMs));
      received.setAttribute("points", points(shown, "received", width, height, top, spanMs));
    },
  };
}

const OF_SITES = { sent: "to the site", received: "from the site" };

/** A plot of the last minutes with a scale, a legend and a text for screen readers. `words` name the two directions. */
export function plot(title, { words = OF_SITES, minutes = 5, waiting = "collecting samples" } = {}) {
  const [width, height] = [600, 120];
  const spanMs = minutes * 60_000;
  const sent = svg("polyline", { class: "line sent" });
  const received = svg("polyline", { class: "line received" });
  const grid = [0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: width, y1: height * part, y2: height * part }));
  const drawing = svg("svg", { class: "plot", viewBox: `0 -2 ${width} ${height + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, grid, sent, received);
  const top = h("span", { class: "scale" });
  const now = [h("b", null, "–"), h("b", null, "–")];
  const element = h("figure", { class: "plot-box" },
    h("figcaption", null,
      h("span", null, title), top,
      h("span", { class: "legend sent" }, `${words.sent} `, now[0]),
      h("span", { class: "legend received" }, `${words.received} `, now[1])),
    drawing,
    h("p", { class: "axis" }, h("span", null, `${minutes} min ago`), h("span", null, "now")));
  return {
    element,
    update(history) {
      const shown = within(history, spanMs);
      const highest = peak(shown);
      sent.setAttribute("points", points(shown, "sent", width, height, highest, spanMs));
      received.setAttribute("points", points(shown, "received", width, height, highest, spanMs));
      const last = shown[shown.length - 1];
      setText(top, shown.length ? `top of the scale: ${rate(highest)}` : waiting);
      setText(now[0], rate(last?.sent));
      setText(now[1], rate(last?.received));
      drawing.setAttribute("aria-label", `${title}: ${rate(last?.sent)} ${words.sent}, ${rate(last?.received)} ${words.received}`);
    },
  };
}

/** A row for each name: its total as a bar, and its traffic over time. `rows` are `{name, href, total, history}`, the largest first. */
export function bars(element, rows, format, spanMs) {
  const top = Math.max(1, ...rows.map((row) => row.total));
  replace(element, rows.map(({ name, href, total, history }) => {
    const spark = sparkline(name, spanMs);
    spark.update(history);
    return h("li", null,
      h(href ? "a" : "span", { class: "bar-name", href }, name),
      h("meter", { min: 0, max: top, value: total, "aria-label": `${name}: ${format(total)}` }),
      spark.element,
      h("span", { class: "number" }, format(total)));
  }));
}
