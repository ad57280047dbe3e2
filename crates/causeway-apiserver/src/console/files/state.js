// Decides the state of gateways, sites and services from their objects and figures. Pure.

export const OK = "ok";
export const WARNING = "warning";
export const FAILED = "failed";
export const UNKNOWN = "unknown";

const RANK = { [OK]: 0, [UNKNOWN]: 1, [WARNING]: 2, [FAILED]: 3 };

/** The worst of several states. */
export function worst(states) {
  return states.reduce((one, other) => (RANK[other] > RANK[one] ? other : one), OK);
}

export function condition(object, type) {
  return object?.status?.conditions?.find((found) => found.type === type);
}

/** The first condition that is not true, the summary `Ready` last. */
export function complaint(object) {
  const failing = (object?.status?.conditions ?? []).filter((found) => found.status === "False");
  return failing.find((found) => found.type !== "Ready") ?? failing[0];
}

/** A host that runs WireGuard and no Causeway: it has a key and an address, and no channel to the cloud. */
export function isPlainWireGuard(gateway) {
  return Boolean(gateway.publicKey && gateway.endpoint);
}

/** The state of a gateway in words: `{state, word, why}`. `paths` are those that gateways tell of. */
export function ofGateway(gateway, figures, paths = []) {
  if (isPlainWireGuard(gateway)) return ofWireGuardPeer(paths.filter((path) => path.peer === gateway.metadata.name));
  const connected = condition(gateway, "Connected");
  // The figures are newer than the condition, which waits some seconds before it changes.
  const isConnected = figures ? figures.connected : connected?.status === "True";
  if (!isConnected && (figures?.identity?.revoked || (!figures && connected?.reason === "Revoked"))) {
    return { state: FAILED, word: "revoked", why: "its key was revoked; a new join token enrols it again" };
  }
  if (gateway.metadata.name !== "cloud" && !isConnected) {
    if (!connected && !figures?.lastSeen && !figures?.identity) {
      return { state: UNKNOWN, word: "never seen", why: "no host has joined as this gateway" };
    }
    const why = connected?.status === "False" ? connected.message : figures?.lastDisconnectReason || "";
    return { state: FAILED, word: "away", why };
  }
  const problem = complaint(gateway);
  if (problem && problem.type !== "Connected" && problem.reason !== "Away") {
    return { state: WARNING, word: "problem", why: problem.message };
  }
  if (gateway.drain) return { state: WARNING, word: "draining", why: "it gets no new connections" };
  return { state: OK, word: "connected", why: "" };
}

/** A WireGuard session is renewed at least this often while packets cross (whitepaper, section 6.1: 120 s, and 180 s to its end). */
const SESSION_MS = 180_000;

/** A plain WireGuard peer tells nothing about itself: only the handshakes with it show that it is there. */
function ofWireGuardPeer(paths) {
  const handshakes = paths.map((path) => Date.parse(path.lastHandshake)).filter((at) => !Number.isNaN(at));
  if (handshakes.some((at) => Date.now() - at < SESSION_MS)) return { state: OK, word: "WireGuard peer", why: "" };
  return { state: UNKNOWN, word: "WireGuard peer", why: "it has no channel; no gateway told of a handshake with it in the last three minutes, as also when no packet crosses" };
}

/** The transports of a channel: the one of the control link, and the other one while it carries streams. */
export function transports(figures) {
  if (!figures?.transport) return undefined;
  const beside = (figures.carries ?? []).filter((row) => row.transport !== figures.transport && row.streams > 0);
  return [figures.transport, ...beside.map((row) => row.transport)].join("+");
}

/** The state of a site: that of its gateways. One that is connected is enough to be reached. */
export function ofSite(states) {
  if (states.length === 0) return { state: UNKNOWN, word: "no gateway", why: "no EGateway is at this site" };
  const ok = states.filter((found) => found.state === OK).length;
  if (ok === states.length) return { state: OK, word: "connected", why: "" };
  const first = states.find((found) => found.state === FAILED) ?? states.find((found) => found.state !== OK);
  if (ok > 0 || states.some((found) => found.state === WARNING)) {
    return { state: WARNING, word: ok > 0 && states.length > 1 ? `${ok} of ${states.length} gateways` : "problem", why: first.why };
  }
  return { ...first };
}

/** The state of an object by its conditions. */
export function ofObject(object) {
  if (!object) return { state: FAILED, word: "missing", why: "it does not exist" };
  const problem = complaint(object);
  if (problem) return { state: FAILED, word: problem.reason || problem.type, why: problem.message };
  const ready = condition(object, "Ready");
  return ready ? { state: OK, word: "ready", why: "" } : { state: UNKNOWN, word: "not judged yet", why: "" };
}
