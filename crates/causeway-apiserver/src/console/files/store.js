// The objects of the fleet, live: one list and one watch for each kind that a page has asked for.
//
// Listeners are called at most five times a second, after any number of changes. A watch that breaks off, or in which the server is
// silent for longer than it ever is, resumes where it was; when the server no longer has that revision, the kind is listed again.

import { get, lines, SignedOut } from "./api.js";

const ROOT = "/apis/causeway.io/v1";
const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 15_000;
/** The server sends a bookmark at least every 66 seconds, however quiet the fleet is. */
const SILENCE_MS = 90_000;
/** Between two calls of the listeners: a page with a thousand sites takes some milliseconds to look at all of them. */
const TELL_MS = 200;

const collections = new Map();
const listeners = new Set();
let stopped = new AbortController();
let scheduled = false;
let told = 0;

class Collection {
  constructor(plural) {
    this.plural = plural;
    this.objects = new Map();
    this.isLoaded = false;
    this.isLive = false;
    this.sorted = null;
  }

  /** All objects by name. */
  all() {
    this.sorted ??= [...this.objects.values()].sort((one, other) => (one.metadata.name < other.metadata.name ? -1 : 1));
    return this.sorted;
  }

  get(name) {
    return this.objects.get(name);
  }

  put(object) {
    // A third of the bytes, and for nobody here.
    delete object.metadata.managedFields;
    this.objects.set(object.metadata.name, object);
    this.sorted = null;
  }

  async run(signal) {
    let pause = PAUSE_MIN_MS;
    let revision = null;
    while (!signal.aborted) {
      try {
        if (revision === null) revision = await this.list(signal);
        pause = PAUSE_MIN_MS;
        revision = await this.watch(revision, signal);
      } catch (error) {
        if (signal.aborted || error instanceof SignedOut) return;
        this.isLive = false;
        changed();
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(2 * pause, PAUSE_MAX_MS);
      }
    }
  }

  async list(signal) {
    const list = await get(`${ROOT}/${this.plural}`, signal);
    this.objects.clear();
    this.sorted = null;
    for (const object of list.items) this.put(object);
    this.isLoaded = true;
    this.isLive = true;
    changed();
    return list.metadata.resourceVersion;
  }

  /** Follows changes until the response ends. Returns the last revision, or null when the kind must be listed again. */
  async watch(revision, signal) {
    let last = revision;
    const query = `watch=true&allowWatchBookmarks=true&resourceVersion=${encodeURIComponent(revision)}`;
    const opened = () => {
      this.isLive = true;
      changed();
    };
    const take = ({ type, object }) => {
      if (type === "ERROR") {
        last = null;
        return;
      }
      last = object.metadata.resourceVersion;
      if (type === "BOOKMARK") return;
      if (type === "DELETED") {
        this.objects.delete(object.metadata.name);
        this.sorted = null;
      } else {
        this.put(object);
      }
      changed();
    };
    await lines(`${ROOT}/${this.plural}?${query}`, { signal, silenceMs: SILENCE_MS, opened, take });
    return last;
  }
}

function changed() {
  if (scheduled) return;
  scheduled = true;
  const tell = () => requestAnimationFrame(() => {
    scheduled = false;
    told = performance.now();
    for (const listener of listeners) listener();
  });
  const wait = told + TELL_MS - performance.now();
  if (wait > 0) setTimeout(tell, wait);
  else tell();
}

/** The objects of a kind, by its plural; begins to follow them. */
export function follow(plural) {
  let collection = collections.get(plural);
  if (!collection) {
    collection = new Collection(plural);
    collections.set(plural, collection);
    collection.run(stopped.signal);
  }
  return collection;
}

export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** True while every followed kind is up to date. */
export function isLive() {
  return [...collections.values()].every((collection) => collection.isLive);
}

export function isLoaded(...plurals) {
  return plurals.every((plural) => follow(plural).isLoaded);
}

/** Ends all watches and forgets everything: at sign-out. */
export function forget() {
  stopped.abort();
  stopped = new AbortController();
  collections.clear();
}
