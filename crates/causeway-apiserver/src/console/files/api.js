// Calls of the API. The cookie of the sign-in goes with them by itself; the header says that this page makes the call.

const HEADERS = { "Causeway-Console": "1" };

/** The server does not accept the sign-in (any more). */
export class SignedOut extends Error {}

/** A refusal of the server, with its sentence. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server sends nothing more. A connection may be dead at its other end without a sign of it here. */
export class Silent extends Error {}

/** An answer that takes longer has met a dead connection. */
const ANSWER_MS = 15_000;
/** The gateways that are asked have as long, and the cloud waits for them. */
const ACTION_MS = 30_000;
/** A call that waits for longer makes the page say so. */
const PATIENCE_MS = 6_000;

let signedOut = () => {};
/** The time of the first call since the server was last heard; null: it has answered every call. */
let askedAt = null;
let heardAt = Date.now();

/** Names the function that is called when a call finds that the sign-in has ended. */
export function onSignedOut(call) {
  signedOut = call;
}

function heard() {
  askedAt = null;
  heardAt = Date.now();
}

/** The time since which the server answers no call; null while it does. */
export function silentSince(now = Date.now()) {
  return askedAt !== null && now - askedAt > PATIENCE_MS ? new Date(askedAt) : null;
}

/** Milliseconds since the server was last heard. */
export const quietMs = () => Date.now() - heardAt;

/**
 * Makes a call and hands on the text of the response as it arrives. Fails with `Silent` when nothing arrives for `silenceMs`;
 * `isQuiet`: the response is a stream in which silence is normal, so that it does not count as a call without an answer.
 */
async function exchange(path, { signal, silenceMs = ANSWER_MS, isQuiet = false, opened, ...options }, take) {
  const own = new AbortController();
  const stop = () => own.abort(signal.reason);
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop, { once: true });
  let timer = null;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => own.abort(new Silent(`no answer within ${silenceMs / 1000} s`)), silenceMs);
  };
  try {
    wait();
    if (!isQuiet) askedAt ??= Date.now();
    const response = await send(path, { ...options, signal: own.signal });
    heard();
    opened?.();
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    while (reader) {
      wait();
      const { value, done } = await reader.read();
      heard();
      if (done) return;
      take(value);
    }
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

async function answer(path, options = {}) {
  let text = "";
  await exchange(path, options, (part) => { text += part; });
  return text;
}

async function send(path, options = {}) {
  const response = await fetch(path, {
    ...options,
    headers: { ...HEADERS, ...options.headers },
    credentials: "same-origin",
    cache: "no-store",
    redirect: "error",
  });
  if (response.ok) return response;
  heard();
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).message || message;
  } catch {
    // The body is no Status; the code says enough.
  }
  if (response.status === 401 && !options.isSignIn) {
    signedOut();
    throw new SignedOut(message);
  }
  throw new Refused(response.status, message);
}

const json = (method, body) => ({ method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), silenceMs: ACTION_MS });

export async function get(path, signal) {
  return JSON.parse(await answer(path, { signal }));
}

export async function post(path, body) {
  return JSON.parse(await answer(path, json("POST", body)));
}

/** A merge patch of one object. */
export async function patch(path, body) {
  const options = json("PATCH", body);
  options.headers["Content-Type"] = "application/merge-patch+json";
  return JSON.parse(await answer(path, options));
}

/**
 * Calls `opened` when the server accepts the call and `take` with each JSON line of the response as it arrives. Ends with the
 * response, or with `Silent` after `silenceMs` without a byte.
 */
export async function lines(path, { signal, silenceMs, opened, take }) {
  let rest = "";
  await exchange(path, { signal, silenceMs, opened, isQuiet: true }, (part) => {
    const parts = (rest + part).split("\n");
    rest = parts.pop();
    for (const line of parts) if (line.trim() !== "") take(JSON.parse(line));
  });
}

export const session = {
  /** The user and the role, or null when no user is signed in here. */
  async show() {
    const who = JSON.parse(await answer("/console/session", { isSignIn: true }));
    return who.user ? who : null;
  },
  async begin(token) {
    return JSON.parse(await answer("/console/session", { ...json("POST", { token }), isSignIn: true }));
  },
  async end() {
    await answer("/console/session", { method: "DELETE", isSignIn: true });
  },
};
