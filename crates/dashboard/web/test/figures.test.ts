import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Figures, quantileOf } from "../src/figures.js";
import { WatchResponseSchema, type WatchResponse } from "../src/gen/fonn/v1/telemetry_pb.js";

interface Told {
  at: number;
  values: Record<number, number>;
}

/** Series 0: RAM hits, 1: disk hits, 2: a gauge, 3 and 4: buckets. */
const SERIES: [string, Record<string, string>][] = [
  ["fonn_hits_total", { tier: "ram" }],
  ["fonn_hits_total", { tier: "disk" }],
  ["fonn_connections", {}],
  ["fonn_seconds_bucket", { le: "0.001" }],
  ["fonn_seconds_bucket", { le: "+Inf" }],
];

function message(samples: Told[], startedAt = 0, withSeries = true): WatchResponse {
  return create(WatchResponseSchema, {
    startedAtMs: BigInt(startedAt),
    series: withSeries
      ? SERIES.map(([name, labels], id) => ({
          id,
          name,
          labels: Object.entries(labels).map(([label, value]) => ({ name: label, value })),
        }))
      : [],
    samples: samples.map(({ at, values }) => ({
      atMs: BigInt(at),
      ids: Object.keys(values).map(Number),
      values: Object.values(values),
    })),
  });
}

function told(...messages: WatchResponse[]): Figures {
  const figures = new Figures();
  figures.beginStream();
  for (const it of messages) figures.add(it);
  return figures;
}

test("what a sample does not mention is as before", () => {
  const figures = told(
    message([
      { at: 1000, values: { 0: 10, 1: 5, 2: 3 } },
      { at: 2000, values: { 0: 20 } },
    ]),
    message([{ at: 3000, values: { 2: 4 } }], 0, false),
  );
  assert.equal(figures.now("fonn_hits_total"), 25);
  assert.equal(figures.now("fonn_hits_total", { tier: "ram" }), 20);
  assert.equal(figures.now("fonn_hits_total", { tier: ["disk", "cold"] }), 5);
  assert.equal(figures.now("fonn_connections"), 4);
  assert.equal(figures.now("fonn_absent"), null);
  assert.equal(figures.at(2500, "fonn_connections"), 3);
  assert.deepEqual(figures.labelValues("fonn_hits_total", "tier"), ["disk", "ram"]);
});

test("growth and rate are between two samples, or of what there is", () => {
  const figures = told(
    message([0, 1, 2, 3, 4].map((s) => ({ at: 1000 + s * 1000, values: { 0: s * 100, 1: s } }))),
  );
  assert.equal(figures.growth("fonn_hits_total", {}, 2000), 202);
  assert.equal(figures.rate("fonn_hits_total", { tier: "ram" }, 2000), 100);
  assert.equal(figures.growth("fonn_hits_total", {}, 60_000), 404);
  assert.equal(figures.rate("fonn_hits_total", { tier: "ram" }, 2000, 3500), 100);
  assert.equal(figures.growth("fonn_hits_total", {}, 2000, 90_000), null, "nothing is known of then");
});

test("counters of another process are not subtracted", () => {
  const figures = told(
    message([
      { at: 1000, values: { 0: 1000 } },
      { at: 2000, values: { 0: 1100 } },
    ]),
  );
  figures.beginStream();
  figures.add(message([{ at: 3000, values: { 0: 5 } }], 2500));
  assert.equal(figures.growth("fonn_hits_total", {}, 10_000), null);
  figures.add(message([{ at: 4000, values: { 0: 12 } }], 2500, false));
  assert.equal(figures.growth("fonn_hits_total", {}, 10_000), 7);
  assert.equal(figures.growth("fonn_hits_total", {}, 5000, 2000), 100, "the past is kept");
});

test("a counter that was set back counts from 0", () => {
  const figures = told(
    message([
      { at: 1000, values: { 0: 1000 } },
      { at: 2000, values: { 0: 30 } },
    ]),
  );
  assert.equal(figures.growth("fonn_hits_total", {}, 1000), 30);
});

test("what the stream tells again after a reconnect is taken once", () => {
  const history = [1, 2, 3].map((s) => ({ at: s * 1000, values: { 0: s } }));
  const figures = told(message(history));
  figures.beginStream();
  figures.add(message([...history, { at: 4000, values: { 0: 4 } }]));
  assert.equal(figures.newestMs, 4000);
  assert.equal(figures.growth("fonn_hits_total", {}, 1000), 1);
});

test("old samples are thinned and forgotten", () => {
  const figures = new Figures();
  figures.beginStream();
  for (let s = 0; s < 5000; s++) {
    figures.add(message([{ at: s * 1000, values: { 0: s } }], 0, s === 0));
  }
  assert.ok((figures.oldestMs ?? 0) >= 4999_000 - 3_700_000);
  assert.equal(figures.growth("fonn_hits_total", {}, 60_000), 60);
  const hour = figures.growth("fonn_hits_total", {}, 3_600_000) ?? 0;
  assert.ok(Math.abs(hour - 3600) <= 10, String(hour));
});

test("quantiles are of what fell into the buckets meanwhile", () => {
  const figures = told(
    message([
      { at: 1000, values: { 3: 1000 } },
      { at: 2000, values: { 3: 1100, 4: 1 } },
    ]),
  );
  const median = figures.quantile(0.5, "fonn_seconds", {}, 1000) ?? 0;
  assert.ok(median > 0.0006 && median < 0.001, String(median));
  assert.equal(figures.quantile(1, "fonn_seconds", {}, 1000), 0.001, "no bound above the highest");
  assert.equal(figures.quantile(0.5, "fonn_absent", {}, 1000), null);
});

test("quantiles grow with q and stay within their bucket", () => {
  const buckets = new Map([
    [0.003, 10],
    [0.001, 80],
    [0.002, 10],
  ]);
  const at = [0, 0.5, 0.8, 0.85, 0.95, 1].map((q) => quantileOf(q, buckets) ?? NaN);
  assert.deepEqual(at, [...at].sort((a, b) => a - b));
  assert.equal(at[2], 0.001);
  assert.equal(at[5], 0.003);
  assert.equal(quantileOf(0.5, new Map()), null);
});
