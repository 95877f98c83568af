import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { MemberState } from "../src/gen/fonn/v1/cluster_pb.js";
import { MembershipMapResponseSchema } from "../src/gen/fonn/v1/membership_pb.js";
import { RouterStatusResponseSchema } from "../src/gen/fonn/v1/router_pb.js";
import { ToolUseSchema } from "../src/gen/fonn/v1/tools_pb.js";
import { HERE } from "../src/member.js";
import { identity } from "../src/panels/tools.js";
import { asked, sums } from "../src/tools.js";

const used = (tool: string, name: string, hits: bigint) =>
  create(ToolUseSchema, { tool, identity: name, namespace: "acme", hits, misses: 1n, servedBytes: 10n, storedBytes: 2n });

test("uses are added up by tool and by identity, the busiest first", () => {
  const uses = [used("nx", "ci", 1n), used("bazel", "ci", 5n), used("nx", "dev", 2n)];
  assert.deepEqual(sums(uses, (use) => use.tool), [
    ["bazel", { hits: 5, misses: 1, served: 10, stored: 2 }],
    ["nx", { hits: 3, misses: 2, served: 20, stored: 4 }],
  ]);
  assert.deepEqual(sums(uses, identity).map(([name]) => name), ["ci (acme)", "dev (acme)"]);
  assert.equal(identity({ identity: "", namespace: "default" }), "default");
});

test("a page asks every process that clients of its address reach, each once", () => {
  const membership = create(MembershipMapResponseSchema, {
    members: [
      { member: { id: "a", state: MemberState.ACTIVE } },
      { member: { id: "b", state: MemberState.DOWN } },
    ],
  });
  const router = create(RouterStatusResponseSchema, {});
  assert.deepEqual(asked({ member: null, membership: null, router: null }), [HERE]);
  assert.deepEqual(asked({ member: null, membership, router: null }), ["a"]);
  assert.deepEqual(asked({ member: null, membership, router }), [HERE, "a"]);
  assert.deepEqual(asked({ member: "b", membership, router }), ["b"]);
});
