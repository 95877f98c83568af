import assert from "node:assert/strict";
import { test } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { KeyResponseSchema, Tier, type KeyCopySchema } from "../src/gen/fonn/v1/admin_pb.js";
import { fate, lookUp, type Answer, type Ask } from "../src/lookup.js";
import { rowsOf } from "../src/panels/keys.js";

type Copies = MessageInitShape<typeof KeyCopySchema>[];

const RAM: Copies = [{ tier: Tier.RAM, version: 7n }];

/** What a member says. */
function said(member: string | null, owners: string[], copies: Copies, more = {}): Answer {
  return { member, response: create(KeyResponseSchema, { owners, copies, nowMs: 1000n, ...more }) };
}

/** Asks members of which each has these copies; `whoever` is asked first. Notes who was asked. */
function cluster(whoever: string, owners: string[], copies: Record<string, Copies>) {
  const asked: (string | null)[] = [];
  const ask: Ask = async (member) => {
    asked.push(member);
    const of = copies[member ?? whoever];
    if (!of) throw new ConnectError("`z` does not answer: refused.", Code.Unavailable);
    return said(member ?? whoever, owners, of);
  };
  return { ask, asked };
}

test("the owners of a key are asked, whoever the page is about", async () => {
  const { ask, asked } = cluster("a", ["b", "c"], { a: [], b: RAM, c: [] });
  const found = await lookUp(ask);
  assert.deepEqual(asked, [null, "b", "c"]);
  assert.equal(fate(found), "Clients get it from RAM of b. Owned by b, c.");
  assert.deepEqual(rowsOf(found).map((row) => row.cells.slice(0, 2)), [["b", "RAM"]]);
});

test("an owner that is asked first is not asked again", async () => {
  const { ask, asked } = cluster("c", ["b", "c"], { b: [], c: RAM });
  const found = await lookUp(ask);
  assert.deepEqual(asked, [null, "b"]);
  assert.deepEqual(found.answers.map((it) => it.member), ["b", "c"]);
  assert.equal(fate(found), "Clients get it from RAM of c. Owned by b, c.");
});

test("an owner that does not answer is named, and nothing is said for it", async () => {
  const { ask } = cluster("a", ["z"], { a: [] });
  const found = await lookUp(ask);
  assert.equal(
    fate(found),
    "No tier of those that answered knows this key. Owned by z. z could not be asked: `z` does not answer: refused.",
  );
  await assert.rejects(lookUp(cluster("z", [], {}).ask));
});

test("a node of its own is the only one that is asked", async () => {
  const alone = async (copies: Copies, more = {}) => lookUp(async () => said(null, [], copies, more));
  assert.equal(fate(await alone([])), "No tier knows this key.");
  assert.equal(fate(await alone(RAM)), "Clients get it from RAM.");
  assert.equal(fate(await alone([{ tier: Tier.DISK, version: 3n }, ...RAM])), "Clients get it from RAM.");
  assert.equal(fate(await alone(RAM, { flushedBelowVersion: 8n })), "It was flushed: clients get a miss.");
  assert.equal(fate(await alone([{ version: 9n, tombstone: true }, ...RAM])), "It was deleted: clients get a miss.");
  assert.equal(fate(await alone([{ version: 9n, expiresAtMs: 1000n }])), "It has expired: clients get a miss.");
  assert.equal(
    fate(await alone([{ version: 9n, purged: true }])),
    "What its writer wrote was purged: clients get a miss.",
  );
  assert.equal(rowsOf(await alone(RAM))[0]?.cells[0], "RAM");
});

test("the newest copy counts, and another of the same version if it is damaged", () => {
  const found = (b: Copies, c: Copies) => ({
    owners: ["b", "c"],
    answers: [said("b", [], b), said("c", [], c)],
    missing: [],
  });
  const deleted = found(RAM, [{ tier: Tier.DISK, version: 8n, tombstone: true }]);
  assert.match(fate(deleted), /^It was deleted/);
  const damaged = found([{ tier: Tier.RAM, version: 7n, damaged: true }], [{ tier: Tier.DISK, version: 7n }]);
  assert.match(fate(damaged), /^Clients get it from Disk of c\./);
});

test("a version is shown with all its digits", async () => {
  const version = (1n << 57n) + 12_345_677n;
  assert.notEqual(BigInt(Number(version)), version);
  const [row] = rowsOf(await lookUp(async () => said(null, [], [{ tier: Tier.RAM, version }])));
  assert.equal(row?.cells[8], "144,115,188,088,201,549");
  assert.equal(row?.cells[8]?.replaceAll(",", ""), String(version));
});
