// Prints first paint and frame times of the console with many sites and exposures. Measures, asserts nothing about the times.
// With BENCH_RESULTS, the figures are also appended to that file for docs/benchmarks.md (bench/src/results.rs has its form).

import { appendFileSync } from "node:fs";

import { causeway, signIn, withPage } from "./browser.mjs";

const SITES = Number(process.env.CONSOLE_SITES ?? 1000);
const EXPOSURES = Number(process.env.CONSOLE_EXPOSURES ?? 5000);
const SECONDS = Number(process.env.CONSOLE_SECONDS ?? 10);
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

const count = (kind) => causeway(["get", kind, "-o", "name"]).split("\n").filter((line) => line !== "").length;

// The fleet may have objects already.
const expected = { exposures: count("serviceexposes") + EXPOSURES, presences: count("virtualpresences") + EXPOSURES };
let begun = performance.now();
const all = objects();
for (let at = 0; at < all.length; at += PART) causeway(["apply", "-f", "-"], all.slice(at, at + PART).join("\n---\n"));
console.log(`${all.length} objects applied in ${seconds(begun)} s`);
begun = performance.now();
for (;;) {
  if (count("virtualpresences") >= expected.presences) break;
  await new Promise((resolve) => setTimeout(resolve, 200));
}
console.log(`presences made in ${seconds(begun)} s more`);

const frames = (seconds) => new Promise((resolve) => {
  const times = [];
  let last = performance.now();
  let top = 0;
  const begin = last;
  const step = (now) => {
    times.push(now - last);
    last = now;
    top += 40;
    window.scrollTo(0, top);
    if (now - begin < seconds * 1000) requestAnimationFrame(step);
    else resolve(times.slice(1).sort((one, other) => one - other));
  };
  requestAnimationFrame(step);
});

const record = (figure, result) => {
  if (!process.env.BENCH_RESULTS) return;
  const line = { command: "bench/run console", figure: `console, ${SITES} sites, ${EXPOSURES} exposures: ${figure}`, goal: "", result };
  appendFileSync(process.env.BENCH_RESULTS, `${JSON.stringify(line)}\n`);
};

const told = (times) => {
  const at = (part) => times[Math.min(times.length - 1, Math.floor(times.length * part))].toFixed(1);
  return `${times.length} frames in ${SECONDS} s, median ${at(0.5)} ms, 95 % below ${at(0.95)} ms, longest ${at(1)} ms`;
};

async function scroll(page, name) {
  const times = await page.evaluate(frames, SECONDS);
  console.log(`${name}, scrolling: ${told(times)}`);
  record(`${name}, scrolling: frame time that 95 % are below, ms`, times[Math.floor(times.length * 0.95)]);
}

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
  record("map, first contentful paint, ms", paint.first);
  record("map, all sites shown, ms", paint.now);
  await scroll(page, "map");
  await page.getByRole("link", { name: "Services" }).click();
  const shown = Date.now();
  await page.getByText(`${expected.exposures} exposures`).waitFor();
  const took = Date.now() - shown;
  console.log(`services: ${EXPOSURES} exposures within ${took} ms of the click`);
  record("services, all exposures shown after the click, ms", took);
  await scroll(page, "services");
});
