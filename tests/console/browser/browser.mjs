// Debian's chromium under playwright-core, and what every test of the console watches for.

import { createRequire } from "node:module";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const modules = process.env.CONSOLE_MODULES;
const require = createRequire(join(modules, "package.json"));
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

export const URL_OF_CONSOLE = process.env.CONSOLE_URL;
const ORIGIN = new URL(URL_OF_CONSOLE).origin;

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--ignore-certificate-errors"];

/** A client command against the cloud, as its admin. */
export function causeway(args, input) {
  return execFileSync(process.env.CAUSEWAY_PROGRAM, args, {
    input, encoding: "utf8", env: { ...process.env, CAUSEWAY_KUBECONFIG: process.env.CONSOLE_KUBECONFIG, NO_COLOR: "1" },
    stdio: ["pipe", "pipe", "pipe"],
  });
}

/** Runs `steps` with a page of its own. Fails on errors in the browser's console and on requests to other origins. */
export async function withPage(options, steps) {
  const profile = mkdtempSync(join(tmpdir(), "causeway-console-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CONSOLE_CHROMIUM || "/usr/bin/chromium",
    headless: true,
    args: FLAGS,
    ignoreHTTPSErrors: true,
    viewport: { width: 1280, height: 800 },
    ...options,
  });
  const problems = [];
  try {
    const page = context.pages()[0] ?? await context.newPage();
    page.setDefaultTimeout(Number(process.env.CONSOLE_TIMEOUT_MS ?? 60_000));
    page.on("console", (message) => {
      // A refused call is shown by the page; the browser adds a line of its own for each, which `expects` names.
      const isExpected = (page.expects ?? []).some((part) => message.text().includes(part));
      if (message.type() === "error" && !isExpected) problems.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => problems.push(`error: ${error.stack ?? error}`));
    page.on("request", (request) => {
      if (new URL(request.url()).origin !== ORIGIN) problems.push(`request to another origin: ${request.url()}`);
    });
    await serveFromDisk(page);
    await steps(page);
  } finally {
    // A call that the scenario answers itself may be under way.
    for (const page of context.pages()) await page.unrouteAll({ behavior: "ignoreErrors" });
    await context.close();
    rmSync(profile, { recursive: true, force: true });
  }
  if (problems.length) throw new Error(problems.join("\n"));
}

/** With CONSOLE_FILES the files come from that folder: for work on the page without building the binary again. */
async function serveFromDisk(page) {
  const folder = process.env.CONSOLE_FILES;
  if (!folder) return;
  await page.route((url) => url.pathname.startsWith("/console") && url.pathname !== "/console/session", async (route) => {
    const response = await route.fetch();
    const name = new URL(route.request().url()).pathname.replace(/^\/console\/?/, "") || "index.html";
    // A file that the program does not have yet.
    const added = response.ok() ? {} : { status: 200, contentType: "text/javascript; charset=utf-8" };
    await route.fulfill({ response, body: readFileSync(join(folder, name)), ...added });
  });
}

export async function signIn(page, token, hash = "") {
  await page.goto(`${URL_OF_CONSOLE}${hash}`);
  await page.getByLabel("API token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
}

/** Serious and critical findings of axe-core fail. */
export async function checkAccessibility(page, what) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
  if (serious.length) {
    const told = serious.map((one) => `${one.id}: ${one.help}\n  ${one.nodes.slice(0, 3).map((node) => node.html).join("\n  ")}`);
    throw new Error(`axe-core on ${what}:\n${told.join("\n")}`);
  }
}
