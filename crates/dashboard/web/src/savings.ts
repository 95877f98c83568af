// What the cache saves, as an estimate whose assumptions are shown and can be changed.

import type { Figures } from "./figures.js";
import { sentBytes } from "./traffic.js";

export interface Assumptions {
  /** Compiler time that a hit saves. */
  secondsPerHit: number;
  /** What a read from the bucket costs that RAM or disk made unnecessary. */
  dollarsPerRead: number;
}

/**
 * Two seconds are on the low side: a hit is a compilation that did not run, and sccache's own reports show
 * 1 to 4 s for C++ and Rust. A read of S3 Standard is 0.40 dollars a million.
 */
export const DEFAULTS: Assumptions = { secondsPerHit: 2, dollarsPerRead: 0.4e-6 };

export interface Savings {
  hits: number;
  compileSeconds: number;
  /** What clients got from here instead of making it anew. */
  servedBytes: number;
  /** Reads from the bucket that did not happen, in dollars. */
  readsDollars: number;
  /** What the requests to the bucket did cost; nothing without a bucket. */
  spentDollars: number | null;
}

/** Since the start of the process. */
export function savings(figures: Figures, assumptions: Assumptions): Savings | null {
  const hits = figures.now("fonn_hits_total");
  if (hits === null) return null;
  const local = figures.now("fonn_hits_total", { tier: ["ram", "disk"] }) ?? 0;
  return {
    hits,
    compileSeconds: hits * assumptions.secondsPerHit,
    servedBytes: sentBytes(figures) ?? 0,
    readsDollars: local * assumptions.dollarsPerRead,
    spentDollars: figures.now("fonn_cold_store_cost_dollars_total"),
  };
}

const KEY = "fonn.secondsPerHit";

/** The assumptions of whoever looks at the page, in this browser alone. */
export function load(storage: Pick<Storage, "getItem">): Assumptions {
  const text = storage.getItem(KEY);
  const seconds = text ? Number(text) : NaN;
  return Number.isFinite(seconds) && seconds >= 0 && seconds <= 3600
    ? { ...DEFAULTS, secondsPerHit: seconds }
    : DEFAULTS;
}

export function save(storage: Pick<Storage, "setItem">, assumptions: Assumptions): void {
  storage.setItem(KEY, String(assumptions.secondsPerHit));
}
