// The scenarios of the console in a browser, one after the other; each names what must be true.
//
// The world is made by `tests/it/main.rs`: the sites oslo and rome are connected, oslo runs the service web, which is exposed to
// rome for the host truck. The last scenario revokes oslo.

import assert from "node:assert/strict";
import { causeway, checkAccessibility, signIn, withPage } from "./browser.mjs";

const token = (role, ttl = "1h") => JSON.parse(causeway(["token", "create", "--role", role, "--ttl", ttl, "--json"]));
const viewer = token("viewer");
const admin = token("admin");

const PHONE = { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true };

/** Steps, or the options of the browser and steps. */
const scenarios = {
  async "a wrong token is refused, and the page says so"(page) {
    page.expects = ["401"];
    await signIn(page, "causeway-api-wrong");
    await page.getByRole("alert").getByText("This token is not accepted").waitFor();
    await checkAccessibility(page, "the sign-in");
    assert.equal(await page.getByRole("link", { name: "Map" }).count(), 0);
  },

  async "the sign-in is kept in a cookie that no script reads, and the token nowhere"(page) {
    await signIn(page, viewer.token);
    await page.getByRole("link", { name: "Map" }).waitFor();
    const [cookie] = await page.context().cookies();
    assert.deepEqual([cookie.httpOnly, cookie.secure, cookie.sameSite, cookie.path], [true, true, "Strict", "/"]);
    assert.equal(await page.evaluate(() => document.cookie + localStorage.length + sessionStorage.length), "00");
    assert.ok(!cookie.value.includes(viewer.token.slice(-20)));
    await page.reload();
    await page.getByRole("link", { name: "Map" }).waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("You are signed out.").waitFor();
    assert.equal((await page.context().cookies()).length, 0);
  },

  async "the cookie is worth nothing without the header of the console"(page) {
    page.expects = ["401", "400"];
    await signIn(page, admin.token);
    await page.getByRole("link", { name: "Map" }).waitFor();
    const codes = await page.evaluate(async () => {
      const code = async (path, headers, method = "GET") => (await fetch(path, { headers, method })).status;
      return [
        await code("/causeway/v1/status", {}),
        await code("/causeway/v1/status", { "causeway-console": "1" }),
        await code("/console/session", {}, "DELETE"),
      ];
    });
    assert.deepEqual(codes, [401, 200, 400]);
  },

  async "the map shows sites and gateways with state, transport, round trip and bytes"(page) {
    await signIn(page, viewer.token);
    const tile = (name) => page.locator(`.tile[data-site="${name}"]`);
    await tile("oslo").getByText("connected").waitFor();
    await tile("oslo").getByText(/^(quic|tcp)$/).waitFor();
    await tile("oslo").getByText(/ms$/).waitFor();
    await tile("oslo").getByText(/↓.*↑/).waitFor();
    await tile("bare").getByText("no gateway").first().waitFor();
    await page.getByText("live", { exact: true }).waitFor();
    await checkAccessibility(page, "the map");
    await tile("oslo").getByRole("link", { name: "oslo", exact: true }).first().click();
    await page.getByRole("heading", { name: /Site oslo/ }).waitFor();
    await page.getByRole("heading", { name: "Services that run here" }).waitFor();
    await page.getByRole("img", { name: /Traffic: .*\/s to the site/ }).waitFor();
    await checkAccessibility(page, "a site");
  },

  async "a change appears by itself, and so does its end"(page) {
    await signIn(page, viewer.token);
    await page.locator('.tile[data-site="oslo"]').waitFor();
    causeway(["apply", "-f", "-"], "{apiVersion: causeway.io/v1, kind: ESite, metadata: {name: appearing}}");
    await page.locator('.tile[data-site="appearing"]').waitFor();
    causeway(["delete", "esite", "appearing"]);
    await page.locator('.tile[data-site="appearing"]').waitFor({ state: "detached" });
  },

  async "services are listed with where they are present"(page) {
    await signIn(page, viewer.token, "#/services");
    const row = page.getByRole("row").filter({ hasText: "web" });
    await row.getByText(/rome \d/).waitFor();
    await checkAccessibility(page, "the services");
    await row.getByRole("link", { name: "web" }).click();
    await page.getByRole("heading", { name: /Service web/ }).waitFor();
    await page.getByText("trucks").first().waitFor();
    await checkAccessibility(page, "a service");
  },

  async "a refused client is explained, and an allowed one is named with its policy"(page) {
    await signIn(page, viewer.token, "#/access");
    const ask = async (client) => {
      await page.getByLabel("Client's site").fill("rome");
      await page.getByLabel("Client", { exact: true }).fill(client);
      await page.getByLabel("Service", { exact: true }).fill("web");
      await page.getByRole("button", { name: "Check" }).click();
    };
    await ask("10.0.0.99");
    await page.getByText("10.0.0.99 at rome may not use web").waitFor();
    await page.getByText("no policy of service web allows an unknown host at rome").first().waitFor();
    await page.getByText("The policies of the exposure are trucks").waitFor();
    await ask("truck");
    await page.getByText("truck at rome may use web").waitFor();
    await page.getByText("allowed by trucks").first().waitFor();
    await page.getByRole("region", { name: "Every hop" }).getByText("Gateway").first().waitFor();
    await page.getByText("Trying the path now needs the role admin").waitFor();
    await checkAccessibility(page, "access");
    // A change of the policy changes the answer on the open page.
    causeway(["apply", "-f", "-"], "{apiVersion: causeway.io/v1, kind: EPolicy, metadata: {name: trucks}, allowedServers: []}");
    await page.getByText("truck at rome may not use web").waitFor();
    causeway(["apply", "-f", "-"], "{apiVersion: causeway.io/v1, kind: EPolicy, metadata: {name: trucks}, allowedServers: [truck]}");
    await page.getByText("truck at rome may use web").waitFor();
  },

  async "an admin has the path tried, and the audit shows it live"(page) {
    await signIn(page, admin.token, "#/access?site=rome&client=truck&service=web");
    await page.getByRole("button", { name: "Try the path now" }).click();
    await page.getByText(/to the backends and back in/).waitFor();
    await page.getByRole("region", { name: "Tried now" }).getByText("answers", { exact: true }).waitFor();
    await page.getByRole("link", { name: "Audit" }).click();
    await page.getByRole("region", { name: /Records/ }).getByText("web").first().waitFor();
    await checkAccessibility(page, "the audit");
    await page.getByLabel("Decision").selectOption("deny");
    await page.getByRole("button", { name: "Filter" }).click();
    await page.getByText("live, 0 records").waitFor();
  },

  async "everything works by keyboard alone"(page) {
    const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
    const focused = () => page.evaluate(() => document.activeElement.textContent || document.activeElement.id);
    const tabTo = async (name) => {
      for (let count = 0; count < 60; count += 1) {
        if ((await focused()).trim() === name) return;
        await press("Tab");
      }
      throw new Error(`no Tab leads to ${name}`);
    };
    await page.goto(process.env.CONSOLE_URL);
    await page.getByLabel("API token").waitFor();
    // The field has the focus already.
    await page.keyboard.type(admin.token);
    await press("Enter");
    await page.locator('.tile[data-site="rome"]').waitFor();
    // After a sign-in the focus is on the content; backwards are the bar and, first of all, the skip link.
    for (let count = 0; count < 10 && (await focused()) !== "Skip to content"; count += 1) await press("Shift+Tab");
    assert.equal(await focused(), "Skip to content");
    await press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "content");
    await tabTo("rome");
    await press("Enter");
    await page.getByRole("heading", { name: /Site rome/ }).waitFor();
    await tabTo("Services");
    await press("Enter");
    await page.getByRole("heading", { name: "Services", exact: true }).waitFor();
    await page.goto(`${process.env.CONSOLE_URL}#/gateway/rome`);
    await page.getByRole("heading", { name: /Gateway rome/ }).waitFor();
    await tabTo("Revoke");
    await press("Enter");
    await page.getByRole("dialog").waitFor();
    assert.equal(await focused(), "Cancel");
    await press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    assert.equal(await focused(), "Revoke", "the focus is where it was");
  },

  async "an ended sign-in is said, and asked for again on the same page"(page) {
    page.expects = ["401"];
    const short = token("viewer", "1h");
    await signIn(page, short.token, "#/services");
    await page.getByRole("heading", { name: "Services", exact: true }).waitFor();
    causeway(["token", "delete", short.id]);
    await page.getByText("Your sign-in has ended. Sign in again.").waitFor();
    await page.getByLabel("API token").fill(viewer.token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("heading", { name: "Services", exact: true }).waitFor();
  },

  async "a sign-in ends with its token"(page) {
    page.expects = ["401"];
    const brief = token("viewer", "5s");
    await signIn(page, brief.token);
    await page.getByText("Your sign-in has ended. Sign in again.").waitFor();
  },

  async "a viewer sees no buttons that change something, and the API refuses"(page) {
    page.expects = ["403"];
    await signIn(page, viewer.token, "#/gateway/oslo");
    await page.getByText("Netmap in force").waitFor();
    for (const name of ["Address as seen", "Version", "Certificate"]) await page.getByText(name, { exact: true }).waitFor();
    await page.getByText(/^causeway \d/).waitFor();
    assert.equal(await page.getByRole("button", { name: "Revoke" }).count(), 0);
    assert.equal(await page.getByRole("button", { name: "Drain" }).count(), 0);
    const code = await page.evaluate(async () => (await fetch("/causeway/v1/revoke", {
      method: "POST", headers: { "causeway-console": "1", "content-type": "application/json" }, body: JSON.stringify({ gateway: "oslo" }),
    })).status);
    assert.equal(code, 403);
    await checkAccessibility(page, "a gateway");
  },

  "on a phone, light and dark, every page fits and is readable": [PHONE, async (page) => {
    await signIn(page, viewer.token);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      for (const hash of ["#/map", "#/site/oslo", "#/gateway/oslo", "#/services", "#/service/web", "#/access?site=rome&client=truck&service=web", "#/audit"]) {
        await page.goto(`${process.env.CONSOLE_URL}${hash}`);
        await page.locator("main .badge, main .help[role=status]").first().waitFor();
        const [width, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(width <= screen, `${hash} is ${width} wide on a screen of ${screen}`);
        await checkAccessibility(page, `${hash}, ${colorScheme}, on a phone`);
      }
    }
  }],

  async "an admin drains a gateway and ends the drain"(page) {
    await signIn(page, admin.token, "#/gateway/oslo");
    const confirm = async (button) => {
      await page.getByRole("button", { name: button, exact: true }).click();
      await page.getByRole("dialog").getByRole("button", { name: button, exact: true }).click();
    };
    await confirm("Drain");
    await page.getByText("gets no new connections", { exact: true }).waitFor();
    await page.getByRole("heading", { name: "Gateway oslo draining" }).waitFor();
    assert.ok(JSON.parse(causeway(["status", "--json"])).gateways.find((one) => one.name === "oslo").draining);
    await checkAccessibility(page, "a gateway of an admin");
    await confirm("End drain");
    await page.getByText("The drain of oslo has ended.").waitFor();
    await page.getByRole("button", { name: "Drain", exact: true }).waitFor();
  },

  async "an admin revokes a gateway after a question"(page) {
    await signIn(page, admin.token, "#/gateway/oslo");
    await page.getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("dialog").getByText("Its key is refused from now on").waitFor();
    await checkAccessibility(page, "the question");
    await page.getByRole("button", { name: "Cancel" }).click();
    assert.ok(JSON.parse(causeway(["status", "--json"])).gateways.find((one) => one.name === "oslo").connected);
    await page.getByRole("button", { name: "Revoke" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Revoke" }).click();
    await page.getByText("Gateway oslo is revoked.").waitFor();
    await page.getByRole("heading", { name: /revoked/ }).waitFor();
  },
};

let failed = 0;
for (const [name, scenario] of Object.entries(scenarios)) {
  if (process.env.CONSOLE_ONLY && !name.includes(process.env.CONSOLE_ONLY)) continue;
  const begun = Date.now();
  try {
    const [options, steps] = Array.isArray(scenario) ? scenario : [{}, scenario];
    await withPage(options, steps);
    console.log(`ok      ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack ?? error}`);
  }
}
process.exit(failed ? 1 : 0);
