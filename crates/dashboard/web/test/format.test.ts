import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../src/format.js";

test("nobody knows", () => {
  for (const show of [format.bytes, format.count, format.percent, format.latency, format.duration, format.dollars]) {
    assert.equal(show(null), "—");
    assert.equal(show(NaN), "—");
  }
});

test("bytes and counts", () => {
  assert.equal(format.bytes(0), "0 B");
  assert.equal(format.bytes(1023), "1023 B");
  assert.equal(format.bytes(1024 * 1024 * 1.5), "1.50 MiB");
  assert.equal(format.bytes(10 * 1024 ** 3), "10.0 GiB");
  assert.equal(format.count(9999), "9,999");
  assert.equal(format.count(12_345), "12.3 k");
  assert.equal(format.perSecond(0), "0/s");
  assert.equal(format.perSecond(1.234), "1.23/s");
});

test("what is not all is not 100 percent", () => {
  assert.equal(format.percent(1), "100 %");
  assert.equal(format.percent(0.99996), "99.99 %");
  assert.equal(format.percent(0.999), "99.9 %");
  assert.equal(format.percent(0.9134), "91.3 %");
  assert.equal(format.percent(0), "0 %");
});

test("times", () => {
  assert.equal(format.latency(0.00001234), "12.3 µs");
  assert.equal(format.latency(0.0123), "12.3 ms");
  assert.equal(format.duration(0), "0 s");
  assert.equal(format.duration(90), "90 s");
  assert.equal(format.duration(3600), "60 min");
  assert.equal(format.duration(86_400 * 12), "12 d");
  assert.equal(format.hours(2 * 40_000), "22.2 h");
});

test("dollars", () => {
  assert.equal(format.dollars(0), "$0");
  assert.equal(format.dollars(0.0000004), "< $0.0001");
  assert.equal(format.dollars(0.00123), "$0.0012");
  assert.equal(format.dollars(0.4), "$0.40");
  assert.equal(format.dollars(12.3456), "$12.35");
});
