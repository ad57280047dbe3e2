// Takes the screenshots of docs/ from a running fleet: CONSOLE_URL, CONSOLE_TOKEN and a folder as the argument.

import { join } from "node:path";
import { signIn, withPage } from "./browser.mjs";

const folder = process.argv[2];
const [site, client, service, gateway] = (process.env.CONSOLE_EXAMPLE ?? "oslo,10.0.0.99,plant-dashboard,berlin-gateway").split(",");

const settle = async (page) => {
  await page.getByText("live", { exact: true }).waitFor();
  // Plots need some samples.
  await page.waitForTimeout(Number(process.env.CONSOLE_SETTLE ?? 12_000));
};

const desktop = { viewport: { width: 1180, height: 720 } };
const phone = { viewport: { width: 390, height: 780 }, deviceScaleFactor: 1, isMobile: true, hasTouch: true };

for (const [name, options, hash, full] of [
  ["console-light", { ...desktop, colorScheme: "light" }, "#/map"],
  ["console-dark", { ...desktop, colorScheme: "dark" }, "#/map"],
  ["console-phone", { ...phone, colorScheme: "light" }, "#/map"],
  ["console-gateway", { ...desktop, colorScheme: "light" }, `#/gateway/${gateway}`],
  ["console-access", { ...desktop, colorScheme: "light" }, `#/access?site=${site}&client=${client}&service=${service}`],
  ["console-services", { ...desktop, colorScheme: "dark" }, "#/services"],
  ["console-audit", { ...desktop, colorScheme: "light" }, "#/audit"],
  ["console-audit-phone", { ...phone, colorScheme: "dark" }, "#/audit"],
]) {
  if (process.env.CONSOLE_ONLY && !name.includes(process.env.CONSOLE_ONLY)) continue;
  await withPage(options, async (page) => {
    await signIn(page, process.env.CONSOLE_TOKEN, hash);
    await settle(page);
    await page.screenshot({ path: join(folder, `${name}.png`), fullPage: full ?? false });
    console.log(name);
  });
}
