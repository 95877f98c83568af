import assert from "node:assert/strict";
import { test } from "node:test";
import type { StreamRequest, UnaryRequest } from "@connectrpc/connect";
import { headed } from "../src/api.js";
import { ANYBODY_HREF, memberHref, memberOf } from "../src/member.js";

test("the address names a member, or anybody", () => {
  for (const name of ["a", "node-1.rack_b", "x".repeat(64)]) {
    assert.equal(memberOf(memberHref(name), null), name);
    assert.equal(memberOf(memberHref(name), "other"), name);
  }
  assert.equal(memberOf("", "a"), null);
  assert.equal(memberOf(ANYBODY_HREF, "a"), null);
});

test("a part of the page is no member, and leaves the one that is shown", () => {
  assert.equal(memberOf("#keys", "a"), "a");
  assert.equal(memberOf("#main", null), null);
});

test("what cannot be a name is none", () => {
  for (const hash of ["#member=", "#member=a b", "#member=%ff", "#member=a\nb", `#member=${"x".repeat(65)}`, "#member=ä"]) {
    assert.equal(memberOf(hash, "a"), null, hash);
  }
});

test("calls have the headers that they are to have, and no others", async () => {
  const sent = async (login: string | null, member: (isStream: boolean) => string | null, stream: boolean, to?: string) => {
    const header = new Headers(to === undefined ? {} : { "fonn-member": to });
    const request = { stream, header } as UnaryRequest | StreamRequest;
    // What is sent is looked at; nobody looks at the answer.
    await headed({ login: () => login, member })(async () => ({}) as never)(request);
    return Object.fromEntries(request.header);
  };
  assert.deepEqual(await sent(null, () => null, false), {});
  assert.deepEqual(await sent("Basic x", () => "b", true), { authorization: "Basic x", "fonn-member": "b" });
  const ofSource = (isStream: boolean) => (isStream ? null : "a");
  assert.deepEqual(await sent(null, ofSource, true), {});
  assert.deepEqual(await sent(null, ofSource, false), { "fonn-member": "a" });
  // A call may say itself whom it is for.
  assert.deepEqual(await sent(null, () => "a", false, "b"), { "fonn-member": "b" });
});
