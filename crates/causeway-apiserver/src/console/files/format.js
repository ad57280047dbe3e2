// Numbers, times and durations as people read them. Pure.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function bytes(count) {
  if (count === undefined || count === null) return "–";
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

export function rate(bytesPerSecond) {
  if (bytesPerSecond === undefined || bytesPerSecond === null) return "–";
  return `${bytes(Math.round(bytesPerSecond))}/s`;
}

export function milliseconds(value) {
  if (value === undefined || value === null) return "–";
  return value >= 100 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

/** The two largest units: "3 d 4 h". */
export function duration(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let rest = Math.max(0, Math.round(seconds));
  const said = [];
  for (const [unit, size] of parts) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0 || (unit === "s" && said.length === 0)) said.push(`${count} ${unit}`);
    if (said.length === 2) break;
  }
  return said.join(" ");
}

export function ago(time, now = Date.now()) {
  const at = Date.parse(time);
  return Number.isNaN(at) ? "–" : `${duration((now - at) / 1000)} ago`;
}

export function until(time, now = Date.now()) {
  const at = Date.parse(time);
  if (Number.isNaN(at)) return "–";
  return at > now ? `in ${duration((at - now) / 1000)}` : `expired ${duration((now - at) / 1000)} ago`;
}

export function clock(time) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "–";
  const two = (number) => String(number).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Characters that are not seen, or that turn the text around, are shown escaped. */
export function visible(text) {
  return String(text ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}
