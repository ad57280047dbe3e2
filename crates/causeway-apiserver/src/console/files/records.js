// Follows audit records: those that are there, then those that come, each once, also across interruptions.
//
// After an interruption the server is asked for everything that it received since shortly before the newest record here: replicas tell
// their records independently, so one may be older than the newest. Those that are known already are left out.

import { lines, SignedOut } from "./api.js";

/** The server sends a line every ten seconds. */
const SILENCE_MS = 35_000;
const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 15_000;
/** Records of the replicas come in this much disorder. */
const OVERLAP_MS = 10_000;
/** Records that are remembered, to know them again. */
const KNOWN_MAX = 5_000;
/** Records of an interruption; of more, the newest. */
const MISSED_MAX = 10_000;

/** Knows the newest records, so that a repeated answer is not shown twice. Pure. */
export class KnownRecords {
  constructor() {
    this.known = new Map();
    this.repeats = new Map();
    this.newest = null;
    this.floor = 0;
  }

  /** The moment from which records are asked for again; null before the first record. */
  since() {
    return this.newest === null ? null : new Date(Math.max(this.newest - OVERLAP_MS, this.floor));
  }

  /** Called before the question is asked again: the answer begins with records that are known. */
  expectRepeats() {
    this.repeats = new Map([...this.known].map(([text, { count }]) => [text, count]));
  }

  isNew(record) {
    const text = JSON.stringify(record);
    const repeats = this.repeats.get(text) ?? 0;
    if (repeats > 0) {
      this.repeats.set(text, repeats - 1);
      return false;
    }
    const at = Date.parse(record.receivedTime ?? record.time);
    this.known.set(text, { at, count: (this.known.get(text)?.count ?? 0) + 1 });
    this.newest = Math.max(this.newest ?? at, at);
    for (const [old, { at: oldAt }] of this.known) {
      if (this.known.size <= KNOWN_MAX && oldAt >= this.newest - OVERLAP_MS) break;
      if (this.known.size > KNOWN_MAX) this.floor = Math.max(this.floor, oldAt);
      this.known.delete(old);
    }
    return true;
  }
}

/** Calls `take` with the last `limit` records that match `filters`, then with those that come. Returns the function that ends it. */
export function followRecords({ filters, limit, take, opened, interrupted }) {
  const stopped = new AbortController();
  const { signal } = stopped;
  const known = new KnownRecords();
  async function run() {
    let pause = PAUSE_MIN_MS;
    while (!signal.aborted) {
      const wanted = new URLSearchParams(filters);
      wanted.set("follow", "true");
      const since = known.since();
      wanted.set("limit", since ? MISSED_MAX : limit);
      if (since) wanted.set("since", since.toISOString());
      known.expectRepeats();
      let why = "the server ended the answer";
      try {
        const takeNew = (record) => {
          pause = PAUSE_MIN_MS;
          if (record.time && !record.summary && known.isNew(record)) take(record);
        };
        await lines(`/causeway/v1/audit?${wanted}`, { signal, silenceMs: SILENCE_MS, opened, take: takeNew });
      } catch (error) {
        if (signal.aborted || error instanceof SignedOut) return;
        why = error.message;
      }
      if (signal.aborted) return;
      interrupted?.(why);
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(2 * pause, PAUSE_MAX_MS);
    }
  }
  run();
  return () => stopped.abort();
}

/** The names under which a record counts. */
export function namesOf(record) {
  const site = record.clientSite || record.site;
  return { service: record.service || "–", subject: record.subject || `unknown host at ${site}` };
}
