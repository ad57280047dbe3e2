// Prints first paint and frame times of the console with many sites and exposures. Measures, asserts nothing about the times.

import { causeway, signIn, withPage } from "./browser.mjs";

const SITES = Number(process.env.CONSOLE_SITES ?? 1000);
const EXPOSURES = Number(process.env.CONSOLE_EXPOSURES ?? 5000);
const PART = 2000;

function objects() {
  const all = [];
  const add = (kind, name, fields) => all.push(JSON.stringify({ apiVersion: "causeway.io/v1", kind, metadata: { name }, ...fields }));
  const site = (number) => `site-${String(number % SITES).padStart(4, "0")}`;
  for (let number = 0; number < SITES; number += 1) {
    add("ESite", site(number), {});
    add("EGateway", `gateway-${String(number).padStart(4, "0")}`, { eSiteName: site(number) });
  }
  add("EPolicy", "everyone", { allowedSites: ["cloud"] });
  for (let number = 0; number < EXPOSURES; number += 1) {
    const name = `service-${String(number).padStart(4, "0")}`;
    add("EService", name, { eSiteName: site(number), ip: "10.0.0.1", port: 80 });
    add("ServiceExpose", name, { eServiceName: name, eSites: [site(number + 1)], ePolicys: ["everyone"] });
  }
  return all;
}

function seconds(begun) {
  return ((performance.now() - begun) / 1000).toFixed(1);
}

let begun = performance.now();
const all = objects();
for (let at = 0; at < all.length; at += PART) causeway(["apply", "-f", "-"], all.slice(at, at + PART).join("\n---\n"));
console.log(`${all.length} objects applied in ${seconds(begun)} s`);
begun = performance.now();
for (;;) {
  const count = causeway(["get", "vp", "-o", "name"]).trim().split("\n").length;
  if (count >= EXPOSURES) break;
}
console.log(`presences made in ${seconds(begun)} s more`);

const frames = () => new Promise((resolve) => {
  const times = [];
  let last = performance.now();
  let top = 0;
  const begin = last;
  const step = (now) => {
    times.push(now - last);
    last = now;
    top += 40;
    window.scrollTo(0, top);
    if (now - begin < 10_000) requestAnimationFrame(step);
    else resolve(times.slice(1).sort((one, other) => one - other));
  };
  requestAnimationFrame(step);
});

const told = (times) => {
  const at = (part) => times[Math.min(times.length - 1, Math.floor(times.length * part))].toFixed(1);
  return `${times.length} frames in 10 s, median ${at(0.5)} ms, 95 % below ${at(0.95)} ms, longest ${at(1)} ms`;
};

const token = causeway(["token", "create", "--role", "viewer", "--ttl", "1h"]).trim();
await withPage({}, async (page) => {
  await signIn(page, token);
  await page.locator(".tile").first().waitFor();
  await page.reload();
  await page.locator(`.tile[data-site="site-${String(SITES - 1).padStart(4, "0")}"]`).waitFor({ state: "attached" });
  const paint = await page.evaluate(() => ({
    first: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
    now: performance.now(),
    tiles: document.querySelectorAll(".tile").length,
    elements: document.querySelectorAll("*").length,
    heap: performance.memory?.usedJSHeapSize,
  }));
  console.log(`map: first contentful paint after ${paint.first?.toFixed(0)} ms, all ${paint.tiles} sites within ${paint.now.toFixed(0)} ms, ${paint.elements} elements, heap ${(paint.heap / 1e6).toFixed(0)} MB`);
  console.log(`map, scrolling: ${told(await page.evaluate(frames))}`);
  await page.getByRole("link", { name: "Services" }).click();
  const shown = Date.now();
  await page.getByText(`${EXPOSURES} exposures`).waitFor();
  console.log(`services: ${EXPOSURES} exposures within ${Date.now() - shown} ms of the click`);
  console.log(`services, scrolling: ${told(await page.evaluate(frames))}`);
});
