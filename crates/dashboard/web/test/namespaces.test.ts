import assert from "node:assert/strict";
import { test } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { NamespaceSchema } from "../src/gen/fonn/v1/admin_pb.js";
import { busiest, filled } from "../src/panels/namespaces.js";

const namespace = (init: MessageInitShape<typeof NamespaceSchema>) => create(NamespaceSchema, init);

test("the busiest come first, and no more than people read", () => {
  const all = [
    namespace({ name: "b" }),
    namespace({ name: "a" }),
    namespace({ name: "c", hits: 3n, misses: 1n }),
    namespace({ name: "d", stores: 9n }),
  ];
  assert.deepEqual(busiest(all).map((it) => it.name), ["d", "c", "a", "b"]);
  const many = Array.from({ length: 50 }, (_, n) => namespace({ name: `n${n}`, hits: BigInt(n) }));
  assert.equal(busiest(many).length, 20);
  assert.equal(busiest(many)[0]?.name, "n49");
});

test("what a namespace holds is told with its quota, and not made up", () => {
  assert.equal(filled(namespace({})), "—");
  assert.equal(filled(namespace({ usedBytes: 1024n })), "1.00 KiB");
  assert.equal(filled(namespace({ usedBytes: 512n, quotaBytes: 1024n })), "512 B of 1.00 KiB (50.0\u00a0%)");
  assert.equal(filled(namespace({ quotaBytes: 1024n })), "— of 1.00 KiB");
});
