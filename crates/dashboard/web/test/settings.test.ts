import assert from "node:assert/strict";
import { test } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { SettingOrigin, SettingSchema } from "../src/gen/fonn/v1/settings_pb.js";
import { settingRow } from "../src/panels/settings.js";

const NOW = 1_700_000_000_000;
const cells = (init: MessageInitShape<typeof SettingSchema>) => settingRow(create(SettingSchema, init), NOW).cells;

test("a setting is told with where it comes from", () => {
  const ram = { key: "ram_budget", value: "4g", origin: SettingOrigin.FLAG, canReload: true };
  assert.deepEqual(cells(ram), ["ram_budget", "4g", "command line", "reload", ""]);
  const lru = { key: "lru", value: "approximate", origin: SettingOrigin.DEFAULT, afterRestart: "strict" };
  assert.deepEqual(cells(lru), ["lru", "approximate", "default", "restart", "strict after a restart"]);
});

test("a change is told, and an origin of a newer node is not made up", () => {
  const changed = cells({ key: "codec", origin: SettingOrigin.ADMIN, changedAtMs: BigInt(NOW - 60_000) });
  assert.match(String(changed[4]), /^changed ./);
  assert.equal(cells({ key: "x", origin: 99 as SettingOrigin })[2], "—");
});
