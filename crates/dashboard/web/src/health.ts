// Whether all is well, in one sentence; and if not, what is wrong and where to look.

import type { Figures } from "./figures.js";
import { bytes, count, dollars, duration, hours, latency, percent, plural } from "./format.js";
import { MemberState } from "./gen/fonn/v1/cluster_pb.js";
import { ratioOf, type Standing, type Together } from "./members.js";
import type { Assumptions } from "./savings.js";
import type { View } from "./view.js";

export type Level = "ok" | "warning" | "error";

export interface Problem {
  level: "warning" | "error";
  text: string;
  /** The part of the page that tells more. */
  section: string;
}

export interface Verdict {
  level: Level;
  title: string;
  sentence: string;
  problems: Problem[];
}

/** What of a view says whether all is well. */
export type Facts = Pick<
  View,
  "member" | "connection" | "notReady" | "figures" | "status" | "membership" | "router" | "source" | "standings"
>;

/** What happened longer ago is history, not health. */
export const RECENT_MS = 5 * 60_000;
/** The bucket may lag this far behind. */
const LAG_SECONDS = 60;
/** Of the RAM budget: a node gives and takes some all the time, and nobody has to do anything about it. */
const WITHHELD_SHARE = 0.1;
/** Of the connections that there may be. */
const CONNECTIONS_SHARE = 0.9;

export function verdict(facts: Facts): Verdict {
  const { connection, notReady } = facts;
  if (connection.state === "connecting") {
    return { level: "warning", title: "Connecting", sentence: "Waiting for the first figures.", problems: [] };
  }
  if (connection.state === "lost") {
    const old = facts.figures.newestMs === null ? "" : " What is below is old.";
    return {
      level: "error",
      title: facts.member === null ? "No connection" : `No connection to ${facts.member}`,
      sentence: `${ended(connection.reason)}${old} Trying again by itself.`,
      problems: [],
    };
  }
  const problems = findProblems(facts);
  if (notReady !== "") {
    const sentence = `The node takes no traffic: ${notReady}.`;
    return { level: "warning", title: "Not ready", sentence, problems };
  }
  const worst = problems.some((it) => it.level === "error")
    ? "error"
    : problems.length > 0
      ? "warning"
      : "ok";
  const title = { ok: "Healthy", warning: "Needs attention", error: "Something is wrong" }[worst];
  return { level: worst, title, sentence: summary(facts.figures), problems };
}

/** The share of gets that found something, lately. */
export function hitRatio(figures: Figures, spanMs: number, atMs?: number): number | null {
  const hits = figures.growth("fonn_hits_total", {}, spanMs, atMs);
  const misses = figures.growth("fonn_misses_total", {}, spanMs, atMs);
  if (hits === null || misses === null || hits + misses === 0) return null;
  return hits / (hits + misses);
}

/** What is wrong with a member, as far as its status tells. */
export function troubles({ status, missing, lately }: Standing): Omit<Problem, "section">[] {
  if (missing !== "") return [{ level: "warning", text: `no answer: ${missing.replace(/\.$/, "")}` }];
  if (!status) return [];
  const found: Omit<Problem, "section">[] = [];
  const add = (level: Problem["level"], text: string) => found.push({ level, text });
  const { trouble, lag } = status.cold ?? {};
  const { errors, deadlines } = lately ?? { errors: 0, deadlines: 0 };
  if (errors > 0) add("error", `${count(errors)} gets failed on the disk lately`);
  if (trouble) add("warning", `bucket: ${trouble}`);
  const age = Number(lag?.ageMs ?? 0n) / 1000;
  if (age > LAG_SECONDS) {
    add("warning", `the bucket is ${duration(age)} behind: ${bytes(Number(lag?.bytes ?? 0n))} would be lost with this machine`);
  }
  if (deadlines > 0) add("warning", `${count(deadlines)} gets waited too long for the bucket lately`);
  if (status.notReadyReason !== "") add("warning", `takes no traffic: ${status.notReadyReason}`);
  return found;
}

/** What a cluster does as a whole, in a sentence. */
export function wholeCluster(all: Together, assumptions: Assumptions): string {
  const span = all.lately ? ` in the last ${duration(all.lately.spanMs / 1000)}` : "";
  const ratio = ratioOf(all.lately);
  const lately = all.lately === null ? "" : ratio === null ? `no gets${span}, ` : `${percent(ratio)} of gets${span} are hits, `;
  const { hits } = all.sinceStart;
  const saved = `${hours(hits * assumptions.secondsPerHit)} of compiling`;
  const reads = `${dollars(all.local * assumptions.dollarsPerRead)} of reads`;
  return `${plural(all.members, "member")} together: ${lately}${count(hits)} hits since their start saved ${saved} and ${reads}.`;
}

/** With a dot at the end, which what a server says has not. */
function ended(sentence: string): string {
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}

function summary(figures: Figures): string {
  const ratio = hitRatio(figures, RECENT_MS);
  const parts = [];
  if (ratio === null) {
    parts.push("no gets lately");
  } else {
    parts.push(`${percent(ratio)} of gets are hits`);
    const p99 = figures.quantile(0.99, "fonn_request_duration_seconds", {}, RECENT_MS);
    if (p99 !== null) parts.push(`99 of 100 requests take less than ${latency(p99)}`);
  }
  const lag = figures.now("fonn_cold_unspilled_seconds");
  if (lag !== null) {
    parts.push(lag < 1 ? "everything is in the bucket" : `the bucket is ${duration(lag)} behind`);
  }
  const text = parts.join(", ");
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

/** A router that has been behind for longer has lost its members. */
const BEHIND_MAX_MS = 2_000n;

function findProblems({ figures, status, membership, router, source, standings }: Facts): Problem[] {
  const problems: Problem[] = [];
  const add = (level: Problem["level"], section: string, text: string) =>
    problems.push({ level, section, text });
  const recent = (name: string, labels: Record<string, string> = {}) =>
    figures.growth(name, labels, RECENT_MS) ?? 0;

  if (membership && !membership.status?.leader) {
    add("error", "cluster", "The members have no leader: nothing about the cluster can be changed now.");
  }
  if (router !== null && router.behindMs > BEHIND_MAX_MS) {
    const behind = duration(Number(router.behindMs) / 1_000);
    add("warning", "cluster", `This router may have applied an old topology for ${behind}: it hears no member, or one that is behind.`);
  }
  const down = (membership?.members ?? [])
    .filter((entry) => entry.member?.state === MemberState.DOWN)
    .map((entry) => entry.member?.id);
  if (down.length > 0) {
    add("warning", "cluster", `${plural(down.length, "member is", "members are")} down: ${down.join(", ")}.`);
  }
  // The figures tell more of the member that they are of.
  for (const standing of standings.filter((it) => it.name !== source)) {
    for (const { level, text } of troubles(standing)) add(level, "members", `${standing.name}: ${text}.`);
  }
  const trouble = status?.cold?.trouble ?? "";
  if (trouble !== "") add("warning", "cold", `Bucket: ${trouble}.`);
  if (figures.now("fonn_cold_index_failed") === 1) {
    add("error", "cold", "The index of the bucket failed: what only the bucket has is missed until a restart.");
  }
  const lost = recent("fonn_cold_lost_entries_total");
  if (lost > 0) add("error", "cold", `${plural(lost, "entry", "entries")} left the disk before the bucket had them.`);
  const lag = figures.now("fonn_cold_unspilled_seconds") ?? 0;
  if (lag > LAG_SECONDS) {
    const unspilled = bytes(figures.now("fonn_cold_unspilled_bytes"));
    add("warning", "cold", `The bucket is ${duration(lag)} behind: ${unspilled} would be lost with this machine.`);
  }
  const errors = recent("fonn_misses_total", { reason: "error" });
  if (errors > 0) add("error", "events", `${count(errors)} gets failed on the disk in the last 5 minutes.`);
  const slow = recent("fonn_misses_total", { reason: "deadline" });
  if (slow > 0) add("warning", "cold", `${count(slow)} gets waited too long for the bucket in the last 5 minutes.`);
  const busy = recent("fonn_refusals_total", { reason: "busy" });
  if (busy > 0) add("warning", "events", `${count(busy)} commands were refused as busy in the last 5 minutes: the disk is too slow.`);
  const full = recent("fonn_refusals_total", { reason: "out_of_space" });
  if (full > 0) add("warning", "tiers", `${count(full)} commands found no room in the last 5 minutes.`);
  const unavailable = recent("fonn_refusals_total", { reason: "unavailable" });
  if (unavailable > 0) add("error", "events", `${count(unavailable)} commands were refused in the last 5 minutes: the disk takes no writes.`);
  const withheld = figures.now("fonn_ram_withheld_bytes") ?? 0;
  const ram = figures.now("fonn_ram_budget_bytes") ?? 0;
  if (withheld > ram * WITHHELD_SHARE) add("warning", "tiers", `RAM entries yield ${bytes(withheld)}: the process is larger than it should be.`);
  const open = figures.now("fonn_connections") ?? 0;
  const limit = figures.now("fonn_connections_limit") ?? Infinity;
  if (open > limit * CONNECTIONS_SHARE) add("warning", "node", `${count(open)} of ${count(limit)} connections are open.`);
  if (recent("fonn_connection_panics_total") > 0) add("error", "events", "A bug closed connections in the last 5 minutes; the log has more.");
  return problems;
}
