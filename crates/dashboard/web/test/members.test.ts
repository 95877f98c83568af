import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Api } from "../src/api.js";
import { StatusResponseSchema } from "../src/gen/fonn/v1/admin_pb.js";
import { MemberState } from "../src/gen/fonn/v1/cluster_pb.js";
import { MembershipMapResponseSchema } from "../src/gen/fonn/v1/membership_pb.js";
import { wholeCluster } from "../src/health.js";
import { Members, ratioOf, together } from "../src/members.js";
import { oneAtATime } from "../src/once.js";
import { DEFAULTS } from "../src/savings.js";

function map(states: Record<string, MemberState>) {
  const members = Object.entries(states).map(([id, state]) => ({ member: { id, state } }));
  return create(MembershipMapResponseSchema, { members });
}

/** What a member says so many seconds after its start, which was at `startedS`. */
function status(seconds: number, hits: number, misses: number, startedS = 1000) {
  return create(StatusResponseSchema, {
    nowMs: BigInt((startedS + seconds) * 1000),
    uptimeMs: BigInt(seconds * 1000),
    ram: { usedBytes: 10n, budgetBytes: 100n },
    disk: { usedBytes: 20n, budgetBytes: 200n },
    cold: { lag: { bytes: 5n } },
    lookups: {
      hits: [{ name: "ram", count: BigInt(hits) }, { name: "cold", count: 1n }],
      misses: [{ name: "absent", count: BigInt(misses) }],
    },
  });
}

const UP = { a: MemberState.ACTIVE, b: MemberState.ACTIVE };

test("what a member has counted lately is between two of its answers", () => {
  const members = new Members();
  members.follow(map(UP));
  members.take("a", status(10, 100, 100));
  assert.equal(members.standings()[0]?.lately, null, "one answer tells nothing about lately");
  members.take("a", status(14, 190, 110));
  assert.equal(ratioOf(members.standings()[0]?.lately ?? null), 0.9);
  // Another process counts anew.
  members.take("a", status(1, 3, 0, 2000));
  assert.equal(members.standings()[0]?.lately, null);
  // And what is long ago does not count.
  members.take("a", status(401, 5, 2, 2000));
  members.take("a", status(403, 6, 2, 2000));
  assert.equal(members.standings()[0]?.lately?.hits, 1);
});

test("members are added up, without those that do not answer", () => {
  const members = new Members();
  members.follow(map({ ...UP, c: MemberState.ACTIVE }));
  assert.equal(together(members.standings()), null);
  for (const [name, hits] of [["a", 80], ["b", 40], ["c", 1000]] as const) {
    members.take(name, status(10, 0, 0));
    members.take(name, status(20, hits, 20));
  }
  members.miss("c", "refused");
  const all = together(members.standings());
  assert.deepEqual(all?.lately, { hits: 120, misses: 40, errors: 0, deadlines: 0, spanMs: 10_000 });
  assert.deepEqual(all?.ram, { used: 20, budget: 200 });
  assert.deepEqual(all?.disk, { used: 40, budget: 400 });
  assert.equal(all?.unspilledBytes, 10);
  assert.ok(all);
  assert.equal(
    wholeCluster(all, { ...DEFAULTS, secondsPerHit: 30, dollarsPerRead: 0.01 }),
    "2 members together: 75.0 % of gets in the last 10 s are hits, 122 hits since their start saved 1.02 h of compiling and $1.20 of reads.",
  );
});

test("a member that is down is not asked, and one that left is forgotten", async () => {
  const members = new Members();
  const asked: string[] = [];
  const admin = {
    status: async (_: unknown, { headers }: { headers: Record<string, string> }) => {
      asked.push(headers["fonn-member"] ?? "");
      if (asked.at(-1) === "b") throw new ConnectError("refused", Code.Unavailable);
      return status(10, 1, 1);
    },
  };
  const api = { admin } as unknown as Api;
  let news = 0;
  members.follow(map({ ...UP, c: MemberState.DOWN }));
  await members.ask(api, new AbortController().signal, () => (news += 1));
  assert.deepEqual(asked, ["a", "b"]);
  assert.equal(news, 2);
  assert.deepEqual(members.standings().map((it) => [it.name, it.status !== null, it.missing]), [
    ["a", true, ""],
    ["b", false, "refused"],
    ["c", false, ""],
  ]);
  members.follow(map({ b: MemberState.ACTIVE }));
  members.follow(map(UP));
  assert.equal(members.standings()[0]?.status, null);
});

test("work that is asked for while it is done is done once more", async () => {
  let begun = 0;
  let end = () => {};
  const ask = oneAtATime(async () => {
    begun += 1;
    await new Promise<void>((resolve) => (end = resolve));
  });
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  ask();
  ask();
  ask();
  assert.equal(begun, 1);
  end();
  await turn();
  assert.equal(begun, 2);
  end();
  await turn();
  assert.equal(begun, 2);
  ask();
  assert.equal(begun, 3);
});
