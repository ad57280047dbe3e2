// The scenarios of the console in a browser, one after the other; each names what must be true.
//
// The world is made by `tests/it/main.rs`: the sites oslo and rome are connected, oslo runs the service web, which is exposed to
// rome for the host truck. The last scenario revokes oslo; no scenario needs another one before it.

import assert from "node:assert/strict";
import { causeway, checkAccessibility, signIn, withPage } from "./browser.mjs";

const token = (role, ttl = "1h") => JSON.parse(causeway(["token", "create", "--role", role, "--ttl", ttl, "--json"]));
const viewer = token("viewer");
const admin = token("admin");

const PHONE = { viewport: { width: 390, height: 780 }, isMobile: true, hasTouch: true };

/** Waits until `found` is true. */
async function until(found) {
  const deadline = Date.now() + Number(process.env.CONSOLE_TIMEOUT_MS ?? 60_000);
  while (!(await found())) {
    if (Date.now() > deadline) throw new Error(`never true: ${found}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Keys of a user without a pointer, and what has the focus: its text, or else its ID. */
function keyboard(page) {
  const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
  const focused = () => page.evaluate(() => (document.activeElement.textContent || document.activeElement.id).trim());
  const id = () => page.evaluate(() => document.activeElement.id);
  const tabTo = async (name, { back = false, byId = false } = {}) => {
    for (let count = 0; count < 80; count += 1) {
      if ((await (byId ? id() : focused())) === name) return;
      await press(back ? "Shift+Tab" : "Tab");
    }
    throw new Error(`no Tab leads to ${name}`);
  };
  return { press, focused, tabTo };
}

/** Answers calls of the page in the server's place. `change` gets the server's own answer. */
async function change(page, pattern, change) {
  await page.route(pattern, async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: change(await response.json()) });
  });
}

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

  async "a gateway whose streams take both transports is shown with both"(page) {
    await change(page, /\/causeway\/v1\/status/, (status) => {
      const row = (transport, streams) => ({ transport, streams, sentBytes: 1, receivedBytes: 1 });
      for (const gateway of status.gateways) {
        if (gateway.name === "oslo") Object.assign(gateway, { transport: "quic", carries: [row("quic", 1), row("tcp", 3)] });
        if (gateway.name === "rome") Object.assign(gateway, { transport: "quic", carries: [row("quic", 1), row("tcp", 0)] });
      }
      return status;
    });
    await signIn(page, viewer.token);
    await page.locator('.tile[data-site="oslo"]').getByText("quic+tcp", { exact: true }).waitFor();
    await page.locator('.tile[data-site="rome"]').getByText("quic", { exact: true }).waitFor();
    await page.goto(`${process.env.CONSOLE_URL}#/gateway/oslo`);
    await page.getByText("quic+tcp", { exact: true }).waitFor();
    await page.getByText(/quic: 1 stream, .*; tcp: 3 streams/).waitFor();
  },

  async "a plain WireGuard peer is named as such, and its handshakes tell how it is"(page) {
    causeway(["apply", "-f", "-"], `
      {apiVersion: causeway.io/v1, kind: ESite, metadata: {name: office}}
---
      {apiVersion: causeway.io/v1, kind: EGateway, metadata: {name: office}, eSiteName: office, publicKey: CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=, endpoint: "203.0.113.9:51820"}`);
    await signIn(page, viewer.token);
    const tile = page.locator('.tile[data-site="office"]');
    await tile.getByText("WireGuard peer").first().waitFor();
    assert.equal(await tile.getByText("never seen").count(), 0);
    const lastHandshake = new Date().toISOString();
    await change(page, /\/causeway\/v1\/paths/, (list) => ({ ...list, paths: [{ gateway: "oslo", peer: "office", path: "direct", lastHandshake }] }));
    await page.locator('.tile.ok[data-site="office"]').waitFor();
    await page.goto(`${process.env.CONSOLE_URL}#/gateway/office`);
    await page.getByText("203.0.113.9:51820").waitFor();
    await page.getByRole("heading", { name: /Gateway office WireGuard peer/ }).waitFor();
    causeway(["delete", "egateway", "office"]);
    causeway(["delete", "esite", "office"]);
  },

  async "paths between gateways are lines and rows"(page) {
    const paths = [
      { gateway: "oslo", peer: "rome", path: "direct", endpoint: "192.0.2.1:7446", rttUs: 900, lossPercent: 6, sentBytes: 1500, receivedBytes: 0 },
      { gateway: "rome", peer: "oslo", path: "channel", rttUs: 12_340, notDirect: "none of 3 addresses answers", sentBytes: 0, receivedBytes: 1500 },
    ];
    await signIn(page, viewer.token);
    await page.locator('.tile[data-site="oslo"]').waitFor();
    const own = await page.evaluate(async () => (await fetch("/causeway/v1/paths", { headers: { "causeway-console": "1" } })).json());
    assert.deepEqual([own.paths, own.unanswered], [[], []], "a fleet without communities has no paths, and a viewer may ask");
    await change(page, /\/causeway\/v1\/paths/, (list) => ({ ...list, paths, unanswered: [{ gateway: "cloud", reason: "no answer yet" }] }));
    await page.locator('.way.direct[data-between="oslo rome"]').waitFor({ state: "attached" });
    const table = page.getByRole("region", { name: "Paths of packets between gateways" }).first();
    await table.getByText("direct, 192.0.2.1:7446").waitFor();
    await table.getByText("0.9 ms").waitFor();
    await table.getByText("none of 3 addresses answers").waitFor();
    await page.getByText("Not told: cloud (no answer yet).").waitFor();
    await checkAccessibility(page, "the map with paths");
    await page.goto(`${process.env.CONSOLE_URL}#/site/rome`);
    await page.getByText("over the channel", { exact: true }).waitFor();
    await page.goto(`${process.env.CONSOLE_URL}#/gateway/oslo`);
    await page.getByRole("heading", { name: "Paths of packets" }).waitFor();
    await checkAccessibility(page, "a gateway with paths");
  },

  async "caches of edges are shown with what is behind and what waits"(page) {
    await signIn(page, viewer.token, "#/caches");
    await page.getByText("0 edges with a copy of the Kubernetes API; 2 without one").waitFor();
    const subscription = (resource, more) => ({ resource, namespace: "", selector: "", objects: 3, bytes: 3000, watchers: 1, complete: true, live: true, lastSync: new Date().toISOString(), pinnedBy: "cloud", refused: null, ...more });
    const healthy = { failure: null, listen: "127.0.0.1:6444", connected: true, resources: 1, behind: 0, behindSince: null, objects: 3, bytes: 3000, watchers: 1, pendingWrites: 0, refusedWrites: 0, podsAtRisk: 0, budget: "", linkBytes: 9, subscriptions: [subscription("v1/pods")] };
    const since = new Date(Date.now() - 3 * 60_000).toISOString();
    await change(page, /\/causeway\/v1\/caches/, (list) => ({
      ...list,
      without: [],
      caches: [
        { gateway: "oslo", site: "oslo", ...healthy },
        { gateway: "rome", site: "rome", ...healthy, resources: 2, behind: 1, behindSince: since, pendingWrites: 4, subscriptions: [subscription("v1/secrets", { live: false, refused: "rome may not list secrets" }), subscription("v1/pods")] },
      ],
    }));
    const row = (name) => page.getByRole("row").filter({ has: page.getByRole("link", { name, exact: true }) });
    await row("oslo").getByText("in sync", { exact: true }).waitFor();
    await row("rome").getByText(/behind since 3 min/).waitFor();
    await row("rome").getByText("1 of 2 resources: v1/secrets: rome may not list secrets").waitFor();
    await row("rome").getByText("4", { exact: true }).waitFor();
    await checkAccessibility(page, "the caches");
    await page.getByLabel("Find").fill("osl");
    await row("rome").waitFor({ state: "detached" });
    await row("oslo").getByRole("link", { name: "oslo", exact: true }).first().click();
    await page.getByRole("heading", { name: "Cache of oslo" }).waitFor();
    await page.getByRole("region", { name: "Subscribed resources" }).getByText("v1/pods").waitFor();
    await checkAccessibility(page, "a cache");
  },

  async "every hop of a crossing between two edges is listed, the cloud among them"(page) {
    await signIn(page, viewer.token, "#/access?site=rome&client=10.0.0.7&service=web");
    const hops = page.getByRole("region", { name: "Every hop" });
    await hops.getByText("Client truck").waitFor();
    await hops.getByText("Cloud, which joins the channels of both").waitFor();
    const first = await hops.locator("tbody tr td:first-child").allTextContents();
    assert.deepEqual(first, ["Client truck", "Exposure to rome: web", "Address at rome", "Gateway rome of rome", "Cloud, which joins the channels of both",
      "Gateway oslo of oslo", "Service web", "Backends, as last reported"]);
  },

  async "a server that answers no more is said, and so is its return"(page) {
    await signIn(page, viewer.token);
    await page.getByText("live", { exact: true }).waitFor();
    const held = /\/causeway\/v1\/|\/console\/session/;
    // Accepted and never answered, as over a connection whose other end is gone.
    await page.route(held, () => {});
    await page.getByText(/^no answer since \d\d:\d\d:\d\d$/).waitFor();
    await checkAccessibility(page, "the map without a server");
    await page.unroute(held);
    await page.getByText("live", { exact: true }).waitFor();
  },

  async "a watch in which the server is silent for too long begins anew"(page) {
    await page.clock.install();
    const watches = [];
    page.on("request", (request) => {
      if (/egateways\?watch/.test(request.url())) watches.push(request.url());
    });
    await signIn(page, viewer.token);
    await page.locator('.tile[data-site="oslo"]').waitFor();
    await until(() => watches.length >= 1);
    const begun = watches.length;
    await page.clock.fastForward(95_000);
    await until(() => watches.length > begun);
    await page.getByText("live", { exact: true }).waitFor();
  },

  async "an interrupted audit goes on without a gap and without repeats"(page) {
    await page.clock.install();
    await signIn(page, admin.token, "#/audit");
    await page.getByText(/^live, /).waitFor();
    const diagnose = () => page.evaluate(async () => {
      const headers = { "causeway-console": "1", "content-type": "application/json" };
      return (await fetch("/causeway/v1/diagnose", { method: "POST", headers, body: JSON.stringify({ gateway: "rome", service: "web" }) })).status;
    });
    const rows = page.locator(".records tbody tr");
    const inJournal = () => page.evaluate(async () => {
      const text = await (await fetch("/causeway/v1/audit", { headers: { "causeway-console": "1" } })).text();
      return text.split("\n").filter((line) => line.trim() !== "").map((line) => JSON.parse(line)).filter((one) => one.time && !one.summary).length;
    });
    assert.equal(await diagnose(), 200);
    await until(async () => (await inJournal()) > 0 && (await rows.count()) === (await inJournal()));
    const before = await inJournal();
    // The page's stream ends; its next question is held until there are new records.
    let release = null;
    await page.route(/\/causeway\/v1\/audit\?/, async (route) => {
      await new Promise((go) => { release = go; });
      await route.continue();
    });
    await page.clock.fastForward(40_000);
    await until(() => release !== null);
    for (let count = 0; count < 3; count += 1) assert.equal(await diagnose(), 200);
    await until(async () => (await inJournal()) >= before + 3);
    release();
    await until(async () => (await rows.count()) === (await inJournal()));
    const times = await rows.locator("time").evaluateAll((all) => all.map((one) => one.title));
    assert.ok(times.length >= before + 3, `${times.length} rows, ${before} before the interruption`);
  },

  async "a large fleet: figures of what is not in view are not shown, and all in view are asked for"(page) {
    const crowd = Array.from({ length: 210 }, (_, number) => `crowd-${String(number).padStart(3, "0")}`);
    const object = (kind, name, more) => JSON.stringify({ apiVersion: "causeway.io/v1", kind, metadata: { name }, ...more });
    // The last tile, so that the others stay in view.
    const all = [object("ESite", "zone"), ...crowd.map((name) => object("EGateway", name, { eSiteName: "zone" }))].join("\n---\n");
    causeway(["apply", "-f", "-"], all);
    try {
      const asked = new Set();
      page.on("request", (request) => {
        for (const name of new URL(request.url()).searchParams.getAll("gateway")) asked.add(name);
      });
      await signIn(page, viewer.token);
      await page.locator('.tile[data-site="oslo"]').getByText(/ms$/).waitFor();
      await page.getByText("To sites in view", { exact: true }).waitFor();
      const isKnown = () => page.evaluate(async () => (await import("/console/figures.js")).figures("oslo") !== undefined);
      assert.ok(await isKnown());
      await page.goto(`${process.env.CONSOLE_URL}#/site/zone`);
      await page.getByRole("heading", { name: /Site zone/ }).waitFor();
      await until(() => crowd.every((name) => asked.has(name)));
      await until(async () => !(await isKnown()));
    } finally {
      causeway(["delete", "-f", "-"], all);
    }
  },

  async "traffic is plotted by service and by subject"(page) {
    await signIn(page, viewer.token, "#/audit");
    // The modules of the page itself: bytes count when a connection ends, once for both of its gateways.
    const found = await page.evaluate(async () => {
      const { Traffic } = await import("/console/traffic.js");
      const traffic = new Traffic();
      const now = Date.parse("2026-11-19T12:00:05Z");
      const record = (time, subject, more) => traffic.add({ time, durationMs: 0, site: "rome", clientSite: "rome", sentBytes: 100, receivedBytes: 900, ...more }, { service: "web", subject });
      record("2026-11-19T11:59:31Z", "truck");
      record("2026-11-19T11:59:32Z", "truck", { site: "oslo" });
      record("2026-11-19T11:58:00Z", "van", { durationMs: 91_000 });
      record("2026-11-19T11:00:00Z", "old");
      const [web] = traffic.top("service", 5, now);
      return { web: web.total, subjects: traffic.top("subject", 5, now).map((row) => [row.name, row.total]), last: web.history.filter((point) => point.sent > 0), points: web.history.length };
    });
    assert.equal(found.web, 2000);
    assert.deepEqual(found.subjects, [["truck", 1000], ["van", 1000]]);
    assert.deepEqual(found.last, [{ at: Date.parse("2026-11-19T11:59:30Z"), sent: 20, received: 180 }]);
    assert.equal(found.points, 89, "15 minutes less the period that goes on");
    await page.getByRole("img", { name: /^Traffic of these records: .*\/s to services/ }).waitFor();
    await page.goto(`${process.env.CONSOLE_URL}#/service/web`);
    await page.getByRole("heading", { name: "Traffic by subject" }).waitFor();
    await page.getByRole("img", { name: /^Traffic: .*\/s to services/ }).waitFor();
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
    const { press, focused, tabTo } = keyboard(page);
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

  async "filters, access and audit work by keyboard alone"(page) {
    const { press, focused, tabTo } = keyboard(page);
    await page.goto(process.env.CONSOLE_URL);
    await page.getByLabel("API token").waitFor();
    await page.keyboard.type(admin.token);
    await press("Enter");
    await page.locator('.tile[data-site="rome"]').waitFor();
    await tabTo("map-search");
    await page.keyboard.type("rom");
    await page.locator('.tile[data-site="oslo"]').waitFor({ state: "detached" });
    await press("Tab");
    assert.match(await focused(), /all sites/, "the choice of what is shown follows the search");
    await press("ArrowDown");
    await page.getByText("No site matches.").waitFor();
    await tabTo("Access", { back: true });
    await press("Enter");
    await page.getByRole("heading", { name: "Access", exact: true }).waitFor();
    await tabTo("access-site");
    for (const text of ["rome", "truck", "web"]) {
      await page.keyboard.type(text);
      await press("Tab");
    }
    assert.equal(await focused(), "Check");
    await press("Enter");
    await page.getByText("truck at rome may use web").waitFor();
    await tabTo("Try the path now");
    await press("Enter");
    await page.getByText(/to the backends and back in/).waitFor();
    await tabTo("Audit", { back: true });
    await press("Enter");
    await page.getByRole("region", { name: /Records/ }).getByText("web").first().waitFor();
    await tabTo("Pause");
    await press("Space");
    await page.getByRole("button", { name: "Continue", pressed: true }).waitFor();
    await press("Space");
    await page.getByRole("button", { name: "Pause", pressed: false }).waitFor();
    await tabTo("audit-decision", { back: true, byId: true });
    await page.keyboard.type("deny");
    await press("Tab");
    assert.equal(await focused(), "Filter");
    await press("Enter");
    await page.getByText("live, 0 records").waitFor();
    await tabTo("Caches", { back: true });
    await press("Enter");
    await page.getByRole("heading", { name: "Caches", exact: true }).waitFor();
    await tabTo("Sign out", { back: true });
    await press("Enter");
    await page.getByText("You are signed out.").waitFor();
    assert.equal(await focused(), "token", "the next sign-in begins in its field");
  },

  async "an admin drains a gateway by keyboard alone"(page) {
    const { press, focused, tabTo } = keyboard(page);
    await page.goto(`${process.env.CONSOLE_URL}#/gateway/rome`);
    await page.getByLabel("API token").waitFor();
    await page.keyboard.type(admin.token);
    await press("Enter");
    for (const [button, after] of [["Drain", "End drain"], ["End drain", "Drain"]]) {
      await page.getByRole("button", { name: button, exact: true }).waitFor();
      await tabTo(button);
      await press("Enter");
      await page.getByRole("dialog").waitFor();
      assert.equal(await focused(), "Cancel", "the safe answer has the focus");
      await press("Tab");
      assert.equal(await focused(), button);
      await press("Enter");
      await page.getByRole("button", { name: after, exact: true }).waitFor();
    }
    assert.ok(!JSON.parse(causeway(["status", "--json"])).gateways.find((one) => one.name === "rome").draining);
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
      for (const hash of ["#/map", "#/site/oslo", "#/gateway/oslo", "#/services", "#/service/web", "#/access?site=rome&client=truck&service=web", "#/audit", "#/caches"]) {
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
// `2/3` is every third scenario, beginning with the second; each part has a fleet of its own.
const [part, parts] = (process.env.CONSOLE_PART ?? "1/1").split("/").map(Number);
for (const [index, [name, scenario]] of Object.entries(scenarios).entries()) {
  if (index % parts !== part - 1) continue;
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
