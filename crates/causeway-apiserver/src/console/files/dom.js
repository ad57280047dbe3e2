// Makes elements. Texts are always set as text; nothing here or elsewhere in the console parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An HTML element: `h("a", {href: "#/map"}, "Map")`. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replaces the content of an element. The focus stays on the link or button that says the same as before. */
export function replace(element, ...children) {
  const active = element.contains(document.activeElement) && document.activeElement !== element ? document.activeElement : null;
  element.replaceChildren();
  append(element, children);
  if (!active) return;
  const same = (found) => found.getAttribute("href") === active.getAttribute("href") && found.textContent === active.textContent
    && found.getAttribute("aria-label") === active.getAttribute("aria-label");
  [...element.querySelectorAll(active.localName)].find(same)?.focus({ preventScroll: true });
}

/** Sets a text only when it differs, so that nothing is laid out again for a value that did not change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.getAttribute("class") !== name) element.setAttribute("class", name);
}

/** Keeps one child per key, in order; makes, updates and removes children as needed. */
export function keyed(parent, items, key, make) {
  const known = (parent.causewayKeys ??= new Map());
  const seen = new Set();
  let at = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    seen.add(name);
    let entry = known.get(name);
    if (!entry) known.set(name, (entry = make(item)));
    entry.update?.(item);
    if (entry.element === at) at = at.nextSibling;
    else parent.insertBefore(entry.element, at);
  }
  for (const [name, entry] of known) {
    if (seen.has(name)) continue;
    entry.remove?.();
    entry.element.remove();
    known.delete(name);
  }
  return known;
}

/** A table with a caption for screen readers. `rows` are arrays of cells. */
export function table(caption, heads, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty || "None.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null,
      h("caption", { class: "hidden" }, caption),
      h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", null, rows.map((cells) => h("tr", null,
        cells.map((cell, index) => h("td", { "data-head": heads[index] }, cell)))))));
}

/** Names and values. */
export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

/** A label and its field, which stay together when a line wraps. */
export function field(text, input) {
  return h("span", { class: "field" }, h("label", { for: input.id }, text), input);
}

/** Asks before something is done. Resolves to true or false. */
export function confirm({ title, lines, action }) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, title),
      lines.map((line) => h("p", null, line)),
      h("div", { class: "buttons" },
        h("button", { type: "button", autofocus: true, onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
