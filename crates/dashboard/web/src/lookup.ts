// Where a key is: what the owners of it say, and what clients get.

import { brief, explain, type Api } from "./api.js";
import { UNKNOWN } from "./format.js";
import { Tier, type KeyCopy, type KeyResponse } from "./gen/fonn/v1/admin_pb.js";
import { MEMBER_HEADER } from "./member.js";

export interface Wanted {
  key: Uint8Array<ArrayBuffer>;
  namespace: string;
  database: number;
}

/** What one process says of a key. */
export interface Answer {
  /** Who says it; nothing on a node of its own. */
  member: string | null;
  response: KeyResponse;
}

/** All that is known of a key. */
export interface Found {
  /** Who owns it, the first owner first; nobody on a node of its own. */
  owners: string[];
  /** Those of the owners, by rank, then that of whoever was asked. */
  answers: Answer[];
  /** The owners that did not answer, and why. */
  missing: { member: string; why: string }[];
}

/** Asks the member of that name, or without one whoever the page is about. */
export type Ask = (member: string | null) => Promise<Answer>;

export const TIERS: Record<Tier, string> = {
  [Tier.UNSPECIFIED]: UNKNOWN,
  [Tier.RAM]: "RAM",
  [Tier.DISK]: "Disk",
  [Tier.COLD]: "Bucket",
};

/** Asks by calls to the port that served the page. */
export function askBy(api: Api, { key, namespace, database }: Wanted): Ask {
  return async (member) => {
    let told: string | null = null;
    const response = await api.admin.key(
      { key, namespace, database },
      {
        ...brief,
        ...(member === null ? {} : { headers: { [MEMBER_HEADER]: member } }),
        onHeader: (headers) => (told = headers.get(MEMBER_HEADER)),
      },
    );
    return { member: told, response };
  };
}

/** Asks whoever the page is about, and then the owners that this one names. Fails if the first does not answer. */
export async function lookUp(ask: Ask): Promise<Found> {
  const first = await ask(null);
  const { owners } = first.response;
  const answers: Answer[] = [];
  const missing: Found["missing"] = [];
  for (const member of owners) {
    if (member === first.member) {
      answers.push(first);
      continue;
    }
    try {
      answers.push(await ask(member));
    } catch (error) {
      missing.push({ member, why: explain(error) });
    }
  }
  if (first.member === null || !owners.includes(first.member)) answers.push(first);
  return { owners, answers, missing };
}

/** Why clients do not get a copy; empty if they do. */
function unserved(copy: KeyCopy, { flushedBelowVersion, nowMs }: KeyResponse): string {
  if (copy.version < flushedBelowVersion) return "It was flushed: clients get a miss.";
  if (copy.purged) return "What its writer wrote was purged: clients get a miss.";
  if (copy.tombstone) return "It was deleted: clients get a miss.";
  if (copy.damaged) return "Its newest copy is damaged: clients get a miss.";
  if (copy.expiresAtMs !== 0n && copy.expiresAtMs <= nowMs) return "It has expired: clients get a miss.";
  return "";
}

/** What clients get: the newest copy, unless that is none. */
export function fate({ owners, answers, missing }: Found): string {
  const copies = answers.flatMap(({ member, response }) =>
    response.copies.map((copy) => ({ member, copy, why: unserved(copy, response) })),
  );
  const version = copies.reduce((best, { copy }) => (copy.version > best ? copy.version : best), -1n);
  const newest = copies.filter(({ copy }) => copy.version === version);
  const served = newest.find(({ why }) => why === "");
  const sentences = [];
  if (served) {
    const where = served.member === null ? "" : ` of ${served.member}`;
    sentences.push(`Clients get it from ${TIERS[served.copy.tier] ?? UNKNOWN}${where}.`);
  } else if (newest[0]) {
    sentences.push(newest[0].why);
  } else {
    sentences.push(missing.length === 0 ? "No tier knows this key." : "No tier of those that answered knows this key.");
  }
  if (owners.length > 0) sentences.push(`Owned by ${owners.join(", ")}.`);
  for (const { member, why } of missing) sentences.push(`${member} could not be asked: ${why.replace(/\.$/, "")}.`);
  return sentences.join(" ");
}
