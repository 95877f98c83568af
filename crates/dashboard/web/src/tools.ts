// What build tools get out of the cache, of all processes that their clients reach.

import { brief, type Api } from "./api.js";
import { MemberState } from "./gen/fonn/v1/cluster_pb.js";
import type { MembershipMapResponse } from "./gen/fonn/v1/membership_pb.js";
import type { ToolUse } from "./gen/fonn/v1/tools_pb.js";
import { HERE, MEMBER_HEADER } from "./member.js";
import type { View } from "./view.js";

/** Hits, misses and bytes. */
export interface Sum {
  hits: number;
  misses: number;
  served: number;
  stored: number;
}

/** The processes to ask: the member of the page, or all that clients may reach through this address. */
export function asked({ member, membership, router }: Pick<View, "member" | "membership" | "router">): string[] {
  if (member !== null) return [member];
  if (membership === null) return [HERE];
  // A router counts what comes to its own port.
  return [...(router === null ? [] : [HERE]), ...answering(membership)];
}

function answering(map: MembershipMapResponse): string[] {
  return map.members
    .map((entry) => entry.member)
    .filter((it) => it !== undefined && it.state !== MemberState.DOWN)
    .map((it) => it?.id ?? "");
}

/** The uses of these processes; nothing where none of them tells them to this user. */
export async function ask(api: Api, processes: readonly string[]): Promise<ToolUse[] | null> {
  const calls = processes.map((name) => api.tools.uses({}, { ...brief, headers: { [MEMBER_HEADER]: name } }));
  const answers = await Promise.allSettled(calls);
  const told = answers.filter((it) => it.status === "fulfilled");
  return told.length === 0 ? null : told.flatMap((it) => it.value.uses);
}

/** Sums by what `by` says, those with most lookups first. */
export function sums(uses: readonly ToolUse[], by: (use: ToolUse) => string): [string, Sum][] {
  const all = new Map<string, Sum>();
  for (const use of uses) {
    const sum = all.get(by(use)) ?? { hits: 0, misses: 0, served: 0, stored: 0 };
    sum.hits += Number(use.hits);
    sum.misses += Number(use.misses);
    sum.served += Number(use.servedBytes);
    sum.stored += Number(use.storedBytes);
    all.set(by(use), sum);
  }
  const lookups = ([, sum]: [string, Sum]) => sum.hits + sum.misses;
  return [...all].sort((a, b) => lookups(b) - lookups(a) || a[0].localeCompare(b[0]));
}
