import assert from "node:assert/strict";
import { test } from "node:test";
import { create } from "@bufbuild/protobuf";
import { Figures } from "../src/figures.js";
import { StatusResponseSchema } from "../src/gen/fonn/v1/admin_pb.js";
import { MemberState } from "../src/gen/fonn/v1/cluster_pb.js";
import { MembershipMapResponseSchema } from "../src/gen/fonn/v1/membership_pb.js";
import { RouterStatusResponseSchema } from "../src/gen/fonn/v1/router_pb.js";
import { WatchResponseSchema } from "../src/gen/fonn/v1/telemetry_pb.js";
import { verdict, type Facts } from "../src/health.js";
import type { Standing } from "../src/members.js";
import { DEFAULTS, load, savings } from "../src/savings.js";

/** Figures whose series went from the first to the second number within a minute. */
function figures(series: Record<string, [number, number]>): Figures {
  const figures = new Figures();
  figures.beginStream();
  const parsed = Object.keys(series).map((name) => /^(\w+)(?:\{(\w+)=(.*)\})?$/.exec(name));
  figures.add(
    create(WatchResponseSchema, {
      series: parsed.map((it, id) => ({
        id,
        name: it?.[1] ?? "",
        labels: it?.[2] ? [{ name: it[2], value: it[3] ?? "" }] : [],
      })),
      samples: [0, 1].map((at) => ({
        atMs: BigInt(1000 + at * 60_000),
        ids: parsed.map((_, id) => id),
        values: Object.values(series).map((values) => values[at] ?? 0),
      })),
    }),
  );
  return figures;
}

function facts(series: Record<string, [number, number]>, more: Partial<Facts> = {}): Facts {
  return {
    member: null,
    connection: { state: "live" },
    notReady: "",
    figures: figures(series),
    status: null,
    membership: null,
    router: null,
    source: null,
    standings: [],
    ...more,
  };
}

const GETS: Record<string, [number, number]> = {
  "fonn_hits_total{tier=ram}": [0, 90],
  "fonn_misses_total{reason=absent}": [0, 10],
};

test("all is well", () => {
  const found = verdict(facts(GETS));
  assert.equal(found.level, "ok");
  assert.equal(found.title, "Healthy");
  assert.match(found.sentence, /^90.0 % of gets are hits/);
});

test("an idle node is healthy", () => {
  const found = verdict(facts({ "fonn_hits_total{tier=ram}": [5, 5], "fonn_misses_total{reason=absent}": [1, 1] }));
  assert.equal(found.level, "ok");
  assert.equal(found.sentence, "No gets lately.");
});

test("what was wrong long ago is no problem, what is wrong now is", () => {
  const name = "fonn_misses_total{reason=error}";
  assert.equal(verdict(facts({ ...GETS, [name]: [7, 7] })).level, "ok");
  const found = verdict(facts({ ...GETS, [name]: [7, 9] }));
  assert.equal(found.level, "error");
  assert.match(found.problems[0]?.text ?? "", /^2 gets failed/);
});

test("a bucket that lags is a warning", () => {
  const lag = (seconds: number) => verdict(facts({ ...GETS, fonn_cold_unspilled_seconds: [0, seconds] }));
  assert.equal(lag(5).level, "ok");
  assert.equal(lag(90).level, "warning");
  assert.equal(lag(90).problems[0]?.section, "cold");
});

test("what RAM yields for a while is no problem, much of it is", () => {
  const ram: Record<string, [number, number]> = { ...GETS, fonn_ram_budget_bytes: [1000, 1000] };
  assert.equal(verdict(facts({ ...ram, fonn_ram_withheld_bytes: [0, 100] })).level, "ok");
  const found = verdict(facts({ ...ram, fonn_ram_withheld_bytes: [0, 101] }));
  assert.equal(found.level, "warning");
  assert.match(found.problems[0]?.text ?? "", /^RAM entries yield 101 B/);
});

test("no connection is said before everything else", () => {
  const connection = { state: "lost", sinceMs: 0, reason: "The node has fallen silent." } as const;
  const found = verdict(facts(GETS, { connection, notReady: "draining" }));
  assert.equal(found.title, "No connection");
  assert.match(found.sentence, /fallen silent/);
  assert.equal(verdict(facts(GETS, { notReady: "draining" })).title, "Not ready");
  const absent = { state: "lost", sinceMs: 0, reason: "there is no member `z`; there are: a, b" } as const;
  const nobody = verdict(facts({}, { connection: absent, member: "z", figures: new Figures() }));
  assert.equal(nobody.title, "No connection to z");
  assert.equal(nobody.sentence, "there is no member `z`; there are: a, b. Trying again by itself.");
});

test("members that are down and a missing leader are named", () => {
  const membership = create(MembershipMapResponseSchema, {
    status: { leader: "a" },
    members: [
      { member: { id: "a", state: MemberState.ACTIVE } },
      { member: { id: "b", state: MemberState.DOWN } },
    ],
  });
  const found = verdict(facts(GETS, { membership }));
  assert.equal(found.level, "warning");
  assert.equal(found.problems[0]?.text, "1 member is down: b.");
  const alone = create(MembershipMapResponseSchema, { status: { leader: "" } });
  assert.equal(verdict(facts(GETS, { membership: alone })).level, "error");
});

test("what another member says of itself is told, of the one that is shown the figures tell", () => {
  const standing = (name: string, more: Partial<Standing>): Standing => ({
    name,
    state: MemberState.ACTIVE,
    status: create(StatusResponseSchema),
    missing: "",
    lately: null,
    ...more,
  });
  const trouble = create(StatusResponseSchema, { cold: { trouble: "access is denied" } });
  const told = (...standings: Standing[]) => verdict(facts(GETS, { source: "a", standings }));
  assert.equal(told(standing("a", {}), standing("b", {})).level, "ok");
  const found = told(standing("a", { status: trouble }), standing("b", { status: trouble }));
  assert.equal(found.level, "warning");
  assert.deepEqual(found.problems, [{ level: "warning", section: "members", text: "b: bucket: access is denied." }]);
  const lately = { hits: 1, misses: 4, errors: 3, deadlines: 1, spanMs: 4000 };
  const failing = told(standing("b", { lately }));
  assert.equal(failing.level, "error");
  assert.match(failing.problems[0]?.text ?? "", /^b: 3 gets failed/);
  assert.match(failing.problems[1]?.text ?? "", /^b: 1 gets waited/);
  const behind = create(StatusResponseSchema, { cold: { lag: { ageMs: 90_000n, bytes: 1024n } } });
  assert.match(told(standing("b", { status: behind })).problems[0]?.text ?? "", /behind: 1.00 KiB/);
  assert.equal(told(standing("b", { missing: "No answer in time." })).problems[0]?.text, "b: no answer: No answer in time.");
});

test("savings follow the assumption", () => {
  const saved = savings(figures(GETS), { secondsPerHit: 4, dollarsPerRead: 0.01 });
  assert.equal(saved?.compileSeconds, 360);
  assert.ok(Math.abs((saved?.readsDollars ?? 0) - 0.9) < 1e-9);
  assert.equal(saved?.spentDollars, null);
  assert.equal(load({ getItem: () => "3.5" }).secondsPerHit, 3.5);
  const sent = {
    fonn_sent_bytes_total: [0, 1],
    "fonn_http_sent_bytes_total{dialect=generic}": [0, 20],
    "fonn_http_sent_bytes_total{dialect=nx}": [0, 300],
    fonn_reapi_sent_bytes_total: [0, 4000],
  } satisfies Record<string, [number, number]>;
  assert.equal(savings(figures({ ...GETS, ...sent }), DEFAULTS)?.servedBytes, 4321);
  for (const rubbish of ["", " x", "-1", "1e9", "NaN"]) {
    assert.equal(load({ getItem: () => rubbish }).secondsPerHit, DEFAULTS.secondsPerHit, rubbish);
  }
});

test("a router that is behind is a warning, and one that is up to date is none", () => {
  const router = (behindMs: bigint) => create(RouterStatusResponseSchema, { epoch: 7n, behindMs });
  assert.equal(verdict(facts(GETS, { router: router(1_500n) })).level, "ok");
  const behind = verdict(facts(GETS, { router: router(3_000n) }));
  assert.equal(behind.level, "warning");
  assert.match(behind.problems[0]?.text ?? "", /old topology for 3 s/);
});
