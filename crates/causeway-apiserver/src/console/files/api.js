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

let signedOut = () => {};

/** Names the function that is called when a call finds that the sign-in has ended. */
export function onSignedOut(call) {
  signedOut = call;
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

const json = (method, body) => ({ method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

export async function get(path, signal) {
  return (await send(path, { signal })).json();
}

export async function post(path, body) {
  return (await send(path, json("POST", body))).json();
}

/** A merge patch of one object. */
export async function patch(path, body) {
  const options = json("PATCH", body);
  options.headers["Content-Type"] = "application/merge-patch+json";
  return (await send(path, options)).json();
}

/** Calls `take` with each JSON line of a response as it arrives; ends with the response. */
export async function lines(path, signal, take) {
  const response = await send(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) if (line.trim() !== "") take(JSON.parse(line));
  }
}

export const session = {
  /** The user and the role, or null when no user is signed in here. */
  async show() {
    const who = await (await send("/console/session", { isSignIn: true })).json();
    return who.user ? who : null;
  },
  async begin(token) {
    return (await send("/console/session", { ...json("POST", { token }), isSignIn: true })).json();
  },
  async end() {
    await send("/console/session", { method: "DELETE", isSignIn: true });
  },
};
