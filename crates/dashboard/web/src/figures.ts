// What the process told: samples of all its metrics, and what follows from two of them.

import type { WatchResponse } from "./gen/fonn/v1/telemetry_pb.js";

/** Labels that a series must have; a list is any of these values. */
export type Labels = Record<string, string | readonly string[]>;

interface Series {
  name: string;
  labels: Map<string, string>;
  /** Of a bucket, its upper bound. */
  le: number;
}

/** The values of all series at an instant; what is missing is `undefined`. */
interface Sample {
  atMs: number;
  /** Which process told it: counters of two processes have nothing to do with each other. */
  process: number;
  values: number[];
}

/** Younger samples are all kept, older ones at `COARSE_MS`, as the server does. */
const FINE_MS = 130_000;
const COARSE_MS = 9_500;
/** What is older is forgotten. */
const KEPT_MS = 3_700_000;
/** A sample stands for an instant if it is at most this much older. */
const NEAR_MS = 15_000;

export class Figures {
  private series: Series[] = [];
  private readonly places = new Map<string, number>();
  private readonly byName = new Map<string, number[]>();
  /** Which series match, by what was asked for: it is asked for hundreds of times a second. */
  private matches = new Map<string, number[]>();
  /** Where the ids of the current stream are. */
  private streamPlaces: number[] = [];
  private streamValues: number[] = [];
  private samples: Sample[] = [];

  /** A new stream begins: its ids are its own, and it tells what it remembers again. */
  beginStream(): void {
    this.streamPlaces = [];
    this.streamValues = [];
  }

  /** Takes what the stream told; returns whether there was a sample. */
  add(message: WatchResponse): boolean {
    for (const series of message.series) {
      const labels = new Map(series.labels.map((label) => [label.name, label.value]));
      this.streamPlaces[series.id] = this.place(series.name, labels);
    }
    const process = Number(message.startedAtMs);
    for (const sample of message.samples) {
      sample.ids.forEach((id, at) => {
        const place = this.streamPlaces[id];
        const value = sample.values[at];
        if (place !== undefined && value !== undefined) this.streamValues[place] = value;
      });
      this.keep({ atMs: Number(sample.atMs), process, values: this.streamValues.slice() });
    }
    if (message.samples.length > 0) this.thin();
    return message.samples.length > 0;
  }

  /** When the newest sample was read, by the clock of the process. */
  get newestMs(): number | null {
    return this.samples.at(-1)?.atMs ?? null;
  }

  /** When the oldest sample was read. */
  get oldestMs(): number | null {
    return this.samples[0]?.atMs ?? null;
  }

  /** The sum of the newest values of the series that match; nothing if there is none. */
  now(name: string, labels: Labels = {}): number | null {
    const newest = this.samples.at(-1);
    return newest ? this.sum(newest, name, labels) : null;
  }

  /** The same at an instant. */
  at(atMs: number, name: string, labels: Labels = {}): number | null {
    const sample = this.sampleAt(atMs);
    return sample ? this.sum(sample, name, labels) : null;
  }

  /** How much counters grew in the `spanMs` up to `atMs` (the newest sample if missing). */
  growth(name: string, labels: Labels, spanMs: number, atMs?: number): number | null {
    const pair = this.pair(spanMs, atMs);
    return pair ? this.grown(pair, this.matching(name, labels)) : null;
  }

  /** The same per second. */
  rate(name: string, labels: Labels, spanMs: number, atMs?: number): number | null {
    const pair = this.pair(spanMs, atMs);
    if (!pair) return null;
    const grown = this.grown(pair, this.matching(name, labels));
    return grown === null ? null : (grown * 1000) / (pair[1].atMs - pair[0].atMs);
  }

  /** An estimate of a quantile of what a histogram recorded in the `spanMs` up to `atMs`, in its unit. */
  quantile(q: number, name: string, labels: Labels, spanMs: number, atMs?: number): number | null {
    return this.quantiles([q], name, labels, spanMs, atMs)[0] ?? null;
  }

  /** The same for several quantiles. */
  quantiles(
    qs: number[],
    name: string,
    labels: Labels,
    spanMs: number,
    atMs?: number,
  ): (number | null)[] {
    const pair = this.pair(spanMs, atMs);
    if (!pair) return qs.map(() => null);
    const buckets = new Map<number, number>();
    for (const place of this.matching(`${name}_bucket`, labels)) {
      const le = this.series[place]?.le ?? NaN;
      const grown = this.grown(pair, [place]) ?? 0;
      if (grown > 0) buckets.set(le, (buckets.get(le) ?? 0) + grown);
    }
    return qs.map((q) => quantileOf(q, buckets));
  }

  /** All values of a label among the series of a name, sorted. */
  labelValues(name: string, label: string, labels: Labels = {}): string[] {
    const values = this.matching(name, labels).map((place) =>
      this.series[place]?.labels.get(label),
    );
    return [...new Set(values.filter((value) => value !== undefined))].sort();
  }

  has(name: string): boolean {
    return this.now(name) !== null;
  }

  /** Every series with its newest value, sorted, as in `/metrics`. */
  all(): { name: string; value: number }[] {
    const newest = this.samples.at(-1);
    const rows = this.series.map((series, place) => {
      const labels = [...series.labels].map(([key, value]) => `${key}="${value}"`).join(",");
      const name = labels === "" ? series.name : `${series.name}{${labels}}`;
      return { name, value: newest?.values[place] ?? NaN };
    });
    return rows
      .filter((row) => !Number.isNaN(row.value))
      .sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  private place(name: string, labels: Map<string, string>): number {
    const key = JSON.stringify([name, ...[...labels].sort()]);
    let place = this.places.get(key);
    if (place === undefined) {
      place = this.series.length;
      const le = Number((labels.get("le") ?? "").replace("+Inf", "Infinity"));
      this.series.push({ name, labels, le });
      this.places.set(key, place);
      this.byName.set(name, [...(this.byName.get(name) ?? []), place]);
      this.matches.clear();
    }
    return place;
  }

  private keep(sample: Sample): void {
    const newest = this.samples.at(-1);
    if (newest && sample.atMs <= newest.atMs) {
      if (sample.process === newest.process) return;
      // Another process with an older past, or a clock that was set back: what it says holds.
      this.samples = this.samples.filter((kept) => kept.atMs < sample.atMs);
    }
    this.samples.push(sample);
  }

  private thin(): void {
    const newest = this.samples.at(-1)?.atMs ?? 0;
    let last = -Infinity;
    this.samples = this.samples.filter((sample) => {
      if (sample.atMs < newest - KEPT_MS) return false;
      const keep = sample.atMs > newest - FINE_MS || sample.atMs - last >= COARSE_MS;
      if (keep) last = sample.atMs;
      return keep;
    });
  }

  private sampleAt(atMs: number): Sample | null {
    let low = 0;
    let high = this.samples.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.samples[middle]?.atMs ?? 0) <= atMs) low = middle + 1;
      else high = middle;
    }
    const found = this.samples[low - 1];
    return found && atMs - found.atMs <= NEAR_MS ? found : null;
  }

  /** Two samples of one process, about `spanMs` apart; less where there is no older one. */
  private pair(spanMs: number, atMs?: number): [Sample, Sample] | null {
    const end = atMs === undefined ? this.samples.at(-1) : this.sampleAt(atMs);
    if (!end) return null;
    let begin = this.sampleAt(end.atMs - spanMs);
    if (!begin || begin.process !== end.process) {
      begin =
        this.samples.find(
          (sample) => sample.process === end.process && sample.atMs >= end.atMs - spanMs,
        ) ?? null;
    }
    return begin && begin.atMs < end.atMs ? [begin, end] : null;
  }

  private matching(name: string, labels: Labels): number[] {
    const key = `${name} ${JSON.stringify(labels)}`;
    let places = this.matches.get(key);
    if (!places) {
      places = this.search(name, labels);
      this.matches.set(key, places);
    }
    return places;
  }

  private search(name: string, labels: Labels): number[] {
    const wanted = Object.entries(labels);
    return (this.byName.get(name) ?? []).filter((place) =>
      wanted.every(([label, value]) => {
        const has = this.series[place]?.labels.get(label);
        return has !== undefined && (typeof value === "string" ? has === value : value.includes(has));
      }),
    );
  }

  private sum(sample: Sample, name: string, labels: Labels): number | null {
    let sum: number | null = null;
    for (const place of this.matching(name, labels)) {
      const value = sample.values[place];
      if (value !== undefined && !Number.isNaN(value)) sum = (sum ?? 0) + value;
    }
    return sum;
  }

  /** What is missing in the older sample was 0; a counter that fell began anew. */
  private grown([begin, end]: [Sample, Sample], places: number[]): number | null {
    let sum: number | null = null;
    for (const place of places) {
      const after = end.values[place];
      if (after === undefined || Number.isNaN(after)) continue;
      const before = begin.values[place];
      const from = before === undefined || Number.isNaN(before) ? 0 : before;
      sum = (sum ?? 0) + (after >= from ? after - from : after);
    }
    return sum;
  }
}

/**
 * A quantile of counts by upper bound, interpolated within the bucket as Prometheus does. Empty buckets
 * are not told, so a bucket is taken to begin at the bound before it or a third lower, whichever is more.
 */
export function quantileOf(q: number, buckets: Map<number, number>): number | null {
  const sorted = [...buckets].sort(([a], [b]) => a - b);
  const total = sorted.reduce((sum, [, grown]) => sum + grown, 0);
  if (total === 0) return null;
  const rank = q * total;
  let below = 0;
  let bound = 0;
  for (const [le, grown] of sorted) {
    if (below + grown >= rank) {
      if (!Number.isFinite(le)) return bound;
      const from = Math.max(bound, le / 1.5);
      return from + (le - from) * ((rank - below) / grown);
    }
    below += grown;
    bound = le;
  }
  return bound;
}
