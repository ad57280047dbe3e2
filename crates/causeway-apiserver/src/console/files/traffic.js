// Bytes over time by service and by subject, from audit records. Pure.
//
// A record tells the bytes of a connection or request when it has ended, so its bytes count at that time. Both gateways of a
// crossing record it: the one of the client's site counts.

const PERIOD_MS = 10_000;
/** The time that plots show. */
export const MINUTES = 15;
export const SPAN_MS = MINUTES * 60_000;
/** The two directions in words: clients begin, so what they send goes to a service. */
export const DIRECTIONS = { sent: "to services", received: "from services" };
/** Names that are kept for each key; the others are counted together. */
const NAMES_MAX = 500;
const OTHERS = "others";

export class Traffic {
  constructor() {
    this.all = new Map();
    this.byKey = { service: new Map(), subject: new Map() };
  }

  /** Counts a record under the names that it has for each key, as `{service, subject}`. */
  add(record, names) {
    if (record.clientSite && record.clientSite !== record.site) return;
    const ended = Date.parse(record.time) + record.durationMs;
    // The clock of a gateway may be ahead of the cloud's.
    const at = Math.min(ended, Date.parse(record.receivedTime) || ended);
    if (Number.isNaN(at)) return;
    const slot = Math.floor(at / PERIOD_MS);
    count(this.all, slot, record);
    for (const [key, known] of Object.entries(this.byKey)) {
      const name = known.has(names[key]) || known.size < NAMES_MAX ? names[key] : OTHERS;
      if (!known.has(name)) known.set(name, new Map());
      count(known.get(name), slot, record);
    }
  }

  /** Rates of all records over time, up to `now`, with the periods in which nothing ended. */
  history(now) {
    return history(this.all, now);
  }

  /** The names with most bytes in the time that is shown: `{name, total, history}`. */
  top(key, number, now) {
    const rows = [...this.byKey[key]].map(([name, slots]) => ({ name, total: total(slots, now), slots }));
    const largest = rows.filter((row) => row.total > 0).sort((one, other) => other.total - one.total).slice(0, number);
    return largest.map(({ name, total: sum, slots }) => ({ name, total: sum, history: history(slots, now) }));
  }
}

function count(slots, slot, record) {
  const sum = slots.get(slot) ?? { sent: 0, received: 0 };
  sum.sent += record.sentBytes;
  sum.received += record.receivedBytes;
  slots.set(slot, sum);
  // Records come about in the order of time: what is too old is at the beginning.
  for (const old of slots.keys()) {
    if (old >= slot - 2 * (SPAN_MS / PERIOD_MS)) break;
    slots.delete(old);
  }
}

const first = (now) => Math.floor((now - SPAN_MS) / PERIOD_MS) + 1;

function total(slots, now) {
  let sum = 0;
  for (const [slot, one] of slots) if (slot >= first(now)) sum += one.sent + one.received;
  return sum;
}

function history(slots, now) {
  const points = [];
  // The period that goes on now is left out: its rate is not known yet.
  for (let slot = first(now); slot < Math.floor(now / PERIOD_MS); slot += 1) {
    const { sent = 0, received = 0 } = slots.get(slot) ?? {};
    points.push({ at: slot * PERIOD_MS, sent: (sent * 1000) / PERIOD_MS, received: (received * 1000) / PERIOD_MS });
  }
  return points;
}
