// What each member of the cluster says of itself: asked of one after the other, and what came of it lately.

import { explain, type Api } from "./api.js";
import type { Count, StatusResponse } from "./gen/fonn/v1/admin_pb.js";
import { MemberState } from "./gen/fonn/v1/cluster_pb.js";
import type { MembershipMapResponse } from "./gen/fonn/v1/membership_pb.js";
import { MEMBER_HEADER } from "./member.js";

/** Between two rounds. */
export const ROUND_MS = 4_000;
/** Who takes longer does not answer: one that hangs must not hold up the news of the others. */
const ANSWER_MS = 2_000;
/** What was counted longer ago is history. */
const LATELY_MS = 5 * 60_000;

/** Gets, by what came of them. */
export interface Counts {
  hits: number;
  misses: number;
  /** Of the misses, those that failed on the disk. */
  errors: number;
  /** Of the misses, those that waited too long for the bucket. */
  deadlines: number;
}

/** How a member stands. */
export interface Standing {
  name: string;
  state: MemberState;
  /** What it last said; nothing before that. */
  status: StatusResponse | null;
  /** Why it does not answer; empty if it does, or was not asked yet. */
  missing: string;
  /** What it has counted lately, since it was first asked at most; nothing before it was asked twice. */
  lately: Lately | null;
}

export interface Lately extends Counts {
  spanMs: number;
}

interface Sample {
  atMs: number;
  startedMs: number;
  counts: Counts;
}

interface Known {
  status: StatusResponse | null;
  missing: string;
  samples: Sample[];
}

/** The start is told by the age: it is off by what a clock is. */
const SAME_START_MS = 1_500;

export class Members {
  private map: MembershipMapResponse | null = null;
  private readonly known = new Map<string, Known>();

  /** Goes by a map from now on: those that are not on it are forgotten. */
  follow(map: MembershipMapResponse | null): void {
    this.map = map;
    const names = new Set((map?.members ?? []).map((entry) => entry.member?.id));
    for (const name of this.known.keys()) if (!names.has(name)) this.known.delete(name);
  }

  /** Asks those that are not down, one after the other: browsers have few connections to one host. `news` is told of each. */
  async ask(api: Api, signal: AbortSignal, news: () => void): Promise<void> {
    for (const { name, state } of this.standings()) {
      if (state === MemberState.DOWN) continue;
      try {
        const options = { timeoutMs: ANSWER_MS, headers: { [MEMBER_HEADER]: name }, signal };
        this.take(name, await api.admin.status({}, options));
      } catch (error) {
        if (signal.aborted) return;
        this.miss(name, explain(error));
      }
      news();
    }
  }

  /** A member has answered. */
  take(name: string, status: StatusResponse): void {
    const atMs = Number(status.nowMs);
    const sample = { atMs, startedMs: atMs - Number(status.uptimeMs), counts: countsOf(status) };
    const before = this.known.get(name)?.samples ?? [];
    // Counters of two processes have nothing to do with each other.
    const samples = before.filter(
      (it) => it.atMs >= atMs - LATELY_MS && it.atMs < atMs && Math.abs(it.startedMs - sample.startedMs) < SAME_START_MS,
    );
    this.known.set(name, { status, missing: "", samples: [...samples, sample] });
  }

  /** A member did not answer. What it said before is kept. */
  miss(name: string, why: string): void {
    const before = this.known.get(name);
    this.known.set(name, { status: before?.status ?? null, missing: why, samples: before?.samples ?? [] });
  }

  /** All members of the map, by name. */
  standings(): Standing[] {
    return (this.map?.members ?? []).map(({ member }) => {
      const name = member?.id ?? "";
      const known = this.known.get(name);
      const state = member?.state ?? MemberState.UNSPECIFIED;
      const isDown = state === MemberState.DOWN;
      return {
        name,
        state,
        status: isDown ? null : (known?.status ?? null),
        missing: isDown ? "" : (known?.missing ?? ""),
        lately: isDown || known === undefined ? null : growth(known.samples),
      };
    });
  }
}

function growth(samples: Sample[]): Lately | null {
  const first = samples[0];
  const last = samples.at(-1);
  if (!first || !last || first === last) return null;
  return { ...each(last.counts, first.counts, (a, b) => a - b), spanMs: last.atMs - first.atMs };
}

/** What a member has counted since its start. */
export function countsOf(status: StatusResponse): Counts {
  const sum = (counts: readonly Count[] = [], name?: string) =>
    counts.reduce((all, it) => all + (name === undefined || it.name === name ? Number(it.count) : 0), 0);
  const { hits, misses } = status.lookups ?? {};
  return {
    hits: sum(hits),
    misses: sum(misses),
    errors: sum(misses, "error"),
    deadlines: sum(misses, "deadline"),
  };
}

/** The share of gets that found something; nothing if there were none. */
export function ratioOf(counts: Counts | null): number | null {
  if (!counts || counts.hits + counts.misses === 0) return null;
  return counts.hits / (counts.hits + counts.misses);
}

/** What the members that answer do together. */
export interface Together {
  /** How many have answered. */
  members: number;
  /** Of the longest time that is known of one of them. */
  lately: Lately | null;
  sinceStart: Counts;
  ram: Fill;
  disk: Fill | null;
  unspilledBytes: number | null;
  /** Hits that RAM or disk answered, so that no bucket was read. */
  local: number;
}

export interface Fill {
  used: number;
  budget: number;
}

const NOTHING: Counts = { hits: 0, misses: 0, errors: 0, deadlines: 0 };

/** What `by` makes of each count of both. */
function each(a: Counts, b: Counts, by: (a: number, b: number) => number): Counts {
  return {
    hits: by(a.hits, b.hits),
    misses: by(a.misses, b.misses),
    errors: by(a.errors, b.errors),
    deadlines: by(a.deadlines, b.deadlines),
  };
}

const add = (a: Counts, b: Counts) => each(a, b, (a, b) => a + b);

const fillOf = (it: { usedBytes: bigint; budgetBytes: bigint } | undefined): Fill | null =>
  it ? { used: Number(it.usedBytes), budget: Number(it.budgetBytes) } : null;

export const ramOf = (status: StatusResponse): Fill | null => fillOf(status.ram);
export const diskOf = (status: StatusResponse): Fill | null => fillOf(status.disk);
/** What only the member's disk has; nothing without a bucket. */
export const unspilledOf = (status: StatusResponse): number | null =>
  status.cold ? Number(status.cold.lag?.bytes ?? 0n) : null;

const plus = (a: Fill | null, b: Fill | null): Fill | null =>
  a && b ? { used: a.used + b.used, budget: a.budget + b.budget } : (a ?? b);

/** The members together; nothing before one of them has answered. Entries with replicas count as often as there are copies. */
export function together(standings: readonly Standing[]): Together | null {
  const answered = standings.filter((it) => it.status !== null && it.missing === "");
  if (answered.length === 0) return null;
  const result: Together = {
    members: answered.length,
    lately: null,
    sinceStart: NOTHING,
    ram: { used: 0, budget: 0 },
    disk: null,
    unspilledBytes: null,
    local: 0,
  };
  for (const { status, lately } of answered) {
    if (!status) continue;
    if (lately) {
      const spanMs = Math.max(result.lately?.spanMs ?? 0, lately.spanMs);
      result.lately = { ...add(result.lately ?? NOTHING, lately), spanMs };
    }
    result.sinceStart = add(result.sinceStart, countsOf(status));
    result.ram = plus(result.ram, ramOf(status)) ?? result.ram;
    result.disk = plus(result.disk, diskOf(status));
    const unspilled = unspilledOf(status);
    if (unspilled !== null) result.unspilledBytes = (result.unspilledBytes ?? 0) + unspilled;
    const hits = status.lookups?.hits ?? [];
    for (const { name, count } of hits) if (name !== "cold") result.local += Number(count);
  }
  return result;
}
