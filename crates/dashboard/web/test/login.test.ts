import assert from "node:assert/strict";
import { test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import { needsLogin } from "../src/api.js";
import { authorization, Session } from "../src/login.js";

test("a login is base64 of UTF-8, as RFC 7617 says", () => {
  assert.equal(
    authorization({ user: "Aladdin", password: "open sesame" }),
    "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
  );
  assert.equal(authorization({ user: "test", password: "123£" }), "Basic dGVzdDoxMjPCow==");
});

test("nobody is logged in before somebody was", () => {
  assert.equal(new Session().header(), null);
});

test("a process that asks who is there is told from one that forbids", () => {
  assert.ok(needsLogin(new ConnectError("who?", Code.Unauthenticated)));
  assert.ok(!needsLogin(new ConnectError("no", Code.PermissionDenied)));
  assert.ok(!needsLogin(new TypeError("fetch failed")));
});
