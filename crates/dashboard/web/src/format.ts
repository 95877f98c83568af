// Numbers as people read them. `—` is what nobody knows.

export const UNKNOWN = "—";

const known = (value: number | null | undefined): value is number =>
  value !== null && value !== undefined && Number.isFinite(value);

/** Three digits that count. */
function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

function scaled(value: number, step: number, units: readonly string[]): string {
  let unit = 0;
  while (Math.abs(value) >= step * 0.9995 && unit < units.length - 1) {
    value /= step;
    unit += 1;
  }
  const text = unit === 0 && Number.isInteger(value) ? String(value) : digits(value);
  return `${text}${units[unit]}`;
}

/** Bytes with units of 1024. */
export function bytes(value: number | null | undefined): string {
  return known(value) ? scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]) : UNKNOWN;
}

/** A number with k, M, G. */
export function count(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  return Math.abs(value) < 10_000 && Number.isInteger(value)
    ? value.toLocaleString("en-US")
    : scaled(value, 1000, ["", " k", " M", " G", " T"]);
}

/** A whole number with all its digits. */
export function exact(value: number | bigint | null | undefined): string {
  if (typeof value === "bigint") return value.toLocaleString("en-US");
  return known(value) ? value.toLocaleString("en-US", { maximumFractionDigits: 0 }) : UNKNOWN;
}

/** A rate. */
export function perSecond(value: number | null | undefined): string {
  return known(value) ? `${scaled(value, 1000, ["", " k", " M", " G"])}/s` : UNKNOWN;
}

/** A share of 1 as percent. What is not all is never shown as 100. */
export function percent(share: number | null | undefined): string {
  if (!known(share)) return UNKNOWN;
  const value = share * 100;
  if (value > 99.9 && value < 100) return `${(Math.floor(value * 100) / 100).toFixed(2)} %`;
  return `${value >= 99.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** A short time, of a request. */
export function latency(seconds: number | null | undefined): string {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  return `${digits(seconds)} s`;
}

/** A long time, of a process or of work. */
export function duration(seconds: number | null | undefined): string {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1) return seconds > 0 ? `${digits(seconds)} s` : "0 s";
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 2 * 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 100 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${exact(seconds / 86_400)} d`;
}

/** Hours of compilation. */
export function hours(seconds: number | null | undefined): string {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${count(Number((seconds / 3600).toPrecision(3)))} h`;
}

/** Dollars; less than a cent with two digits that count. */
export function dollars(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "$0";
  if (value < 1e-4) return "< $0.0001";
  const fraction = value < 0.00995 ? Math.ceil(-Math.log10(value)) + 1 : 2;
  const options = { minimumFractionDigits: fraction, maximumFractionDigits: fraction };
  return `$${value.toLocaleString("en-US", options)}`;
}

/** A ratio of sizes, like 3.2 ×. */
export function factor(value: number | null | undefined): string {
  return known(value) ? `${value.toFixed(value < 9.95 ? 2 : 1)} ×` : UNKNOWN;
}

/** The time of day. */
export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}

/** An instant: the time of day, with the date unless that is today's. */
export function instant(ms: number, now = Date.now()): string {
  const date = new Date(ms);
  const today = new Date(now).toDateString() === date.toDateString();
  return today ? clock(ms) : `${date.toLocaleDateString("en-CA")} ${clock(ms)}`;
}

/** How many of what, like "1 member", "3 members". */
export function plural(number: number, one: string, many = `${one}s`): string {
  return `${exact(number)} ${number === 1 ? one : many}`;
}
