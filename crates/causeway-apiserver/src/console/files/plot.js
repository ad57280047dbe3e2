// Plots of traffic as SVG: a sparkline for a tile, a larger one with a scale for a page.

import { h, svg, replace, setText } from "./dom.js";
import { rate } from "./format.js";

function points(values, width, height, top, count) {
  const step = width / Math.max(1, count - 1);
  const offset = width - (values.length - 1) * step;
  return values.map((value, index) => `${(offset + index * step).toFixed(1)},${(height - (value / top) * height).toFixed(1)}`).join(" ");
}

const peak = (history) => Math.max(1, ...history.map((point) => Math.max(point.sent, point.received)));

/** A sparkline of both directions; `update(history)` draws it again. */
export function sparkline(label) {
  const [width, height, count] = [120, 22, 60];
  const sent = svg("polyline", { class: "line sent" });
  const received = svg("polyline", { class: "line received" });
  const element = svg("svg", { class: "spark", viewBox: `0 -1 ${width} ${height + 2}`, "aria-hidden": "true", preserveAspectRatio: "none" }, sent, received);
  element.dataset.label = label;
  return {
    element,
    update(history) {
      const shown = history.slice(-count);
      const top = peak(shown);
      sent.setAttribute("points", points(shown.map((point) => point.sent), width, height, top, count));
      received.setAttribute("points", points(shown.map((point) => point.received), width, height, top, count));
    },
  };
}

/** A plot of the last five minutes with a scale, a legend and a text for screen readers. */
export function plot(title) {
  const [width, height, count] = [600, 120, 150];
  const sent = svg("polyline", { class: "line sent" });
  const received = svg("polyline", { class: "line received" });
  const grid = [0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: width, y1: height * part, y2: height * part }));
  const drawing = svg("svg", { class: "plot", viewBox: `0 -2 ${width} ${height + 4}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, grid, sent, received);
  const top = h("span", { class: "scale" });
  const now = [h("b", null, "–"), h("b", null, "–")];
  const element = h("figure", { class: "plot-box" },
    h("figcaption", null,
      h("span", null, title), top,
      h("span", { class: "legend sent" }, "to the site ", now[0]),
      h("span", { class: "legend received" }, "from the site ", now[1])),
    drawing,
    h("p", { class: "axis" }, h("span", null, "5 min ago"), h("span", null, "now")));
  return {
    element,
    update(history) {
      const shown = history.slice(-count);
      const highest = peak(shown);
      sent.setAttribute("points", points(shown.map((point) => point.sent), width, height, highest, count));
      received.setAttribute("points", points(shown.map((point) => point.received), width, height, highest, count));
      const last = shown[shown.length - 1];
      setText(top, shown.length ? `top of the scale: ${rate(highest)}` : "collecting samples");
      setText(now[0], rate(last?.sent));
      setText(now[1], rate(last?.received));
      drawing.setAttribute("aria-label", `${title}: ${rate(last?.sent)} to the site, ${rate(last?.received)} from the site`);
    },
  };
}

/** Bars of names and byte counts, the largest first. */
export function bars(element, rows, format) {
  const top = Math.max(1, ...rows.map(([, value]) => value));
  replace(element, rows.map(([name, value]) => h("li", null,
    h("span", { class: "bar-name" }, name),
    h("meter", { min: 0, max: top, value, "aria-label": `${name}: ${format(value)}` }),
    h("span", { class: "number" }, format(value)))));
}
