// The panel "Build tools", with answers that a node would give.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertAccessible, eventually, launch, visitor } from "./support/browser.mjs";
import { FonnNode } from "./support/node.mjs";

/** Names that would be markup if the page did not set them as text. */
const HOSTILE = [
  `<img src="/favicon.svg" onerror="globalThis.escaped = false">`,
  `</th><td>&lt;b&gt;"'`,
  `<script>globalThis.escaped = false</script>`,
];

let browser;
let node;

before(async () => {
  [browser, node] = await Promise.all([launch(), FonnNode.start(["--http-listen", "none"])]);
});

after(async () => {
  await browser?.close();
  await node?.end();
});

/** A number below 2 ** 53 as Protocol Buffers write it. */
function varint(value) {
  const out = [];
  for (; value > 127; value = Math.floor(value / 128)) out.push((value % 128) + 128);
  return Buffer.from([...out, value]);
}

/** A field of text or bytes. */
function field(number, content) {
  const bytes = Buffer.from(content);
  return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
}

/** One `ToolUse` of proto/fonn/v1/tools.proto. */
function use({ tool, namespace, identity, hits, misses, served, stored }) {
  const names = [tool, namespace, identity].map((text, at) => field(at + 1, text));
  const figures = [hits, misses, served, stored].map((value, at) =>
    Buffer.concat([varint((at + 4) * 8), varint(value)]),
  );
  return Buffer.concat([...names, ...figures]);
}

/** The body of a gRPC-web answer with these uses. */
function answer(uses) {
  const frame = (kind, content) => {
    const head = Buffer.alloc(5);
    head[0] = kind;
    head.writeUInt32BE(content.length, 1);
    return Buffer.concat([head, content]);
  };
  const message = Buffer.concat(uses.map((it) => field(1, use(it))));
  return Buffer.concat([frame(0, message), frame(0x80, Buffer.from("grpc-status: 0\r\n"))]);
}

/** A page to which the node tells `uses()`. `errors` gets what the console and scripts complain of. */
async function pageWith(uses) {
  const context = await visitor(browser);
  await context.route("**/fonn.v1.Tools/Uses", (route) =>
    route.fulfill({ contentType: "application/grpc-web+proto", body: answer(uses()) }),
  );
  const page = await context.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(node.url);
  await page.locator(".live[data-state=live]").waitFor();
  return { page, errors, panel: page.locator("#tools") };
}

/** The texts of the rows of a table. */
async function rows(panel, caption) {
  const table = panel.getByRole("region", { name: `Table: ${caption}`, exact: true });
  const texts = await table.locator("tr").evaluateAll((all) =>
    all.map((row) => [...row.children].map((cell) => cell.textContent)),
  );
  return texts;
}

const FIGURES = ["Hits", "Misses", "Hit ratio", "Bytes saved", "Bytes stored"];

test("hits, misses and bytes are shown for each tool and each identity", async () => {
  const megabyte = 1 << 20;
  const sample = [
    { tool: "bazel", namespace: "acme", identity: "ci", hits: 9_000, misses: 1_000, served: 300 * megabyte, stored: 0 },
    { tool: "bazel", namespace: "acme", identity: "dev", hits: 0, misses: 0, served: 0, stored: megabyte },
    { tool: "gradle", namespace: "acme", identity: "ci", hits: 1, misses: 2, served: 1536, stored: 2048 },
    { tool: "of-a-later-version", namespace: "default", identity: "", hits: 1, misses: 0, served: 10, stored: 7 },
  ];
  let uses = [];
  const { page, errors, panel } = await pageWith(() => uses);
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  assert.equal(await panel.isVisible(), false, "no tool has used the port");

  uses = sample;
  await panel.waitFor();
  assert.deepEqual(await rows(panel, "Build tools"), [
    ["Tool", ...FIGURES],
    ["Bazel, moon (HTTP)", "9,000", "1,000", "90.0 %", "300 MiB", "1.00 MiB"],
    ["Gradle, Rush", "1", "2", "33.3 %", "1.50 KiB", "2.00 KiB"],
    ["of-a-later-version", "1", "0", "100 %", "10 B", "7 B"],
  ]);
  assert.deepEqual(await rows(panel, "Identities"), [
    ["Identity", ...FIGURES],
    ["ci (acme)", "9,001", "1,002", "90.0 %", "300 MiB", "2.00 KiB"],
    ["default", "1", "0", "100 %", "10 B", "7 B"],
    ["dev (acme)", "0", "0", "—", "0 B", "1.00 MiB"],
  ]);
  await assertAccessible(page, "build tools");

  // Later figures take the places of these.
  uses = [{ ...sample[2], hits: 8 }];
  await eventually(async () => {
    const [, ...tools] = await rows(panel, "Build tools");
    assert.deepEqual(tools, [["Gradle, Rush", "8", "2", "80.0 %", "1.50 KiB", "2.00 KiB"]]);
  });
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("names of tools, namespaces and identities are text, whatever they say", async () => {
  const figures = { hits: 1, misses: 1, served: 1, stored: 1 };
  const uses = HOSTILE.map((name) => ({ tool: name, namespace: name, identity: name, ...figures }));
  const { page, errors, panel } = await pageWith(() => uses);
  await panel.waitFor();
  const names = async (caption) => (await rows(panel, caption)).slice(1).map(([name]) => name);
  assert.deepEqual((await names("Build tools")).sort(), [...HOSTILE].sort());
  assert.deepEqual((await names("Identities")).sort(), HOSTILE.map((it) => `${it} (${it})`).sort());
  const cells = await panel.locator("tbody tr").evaluateAll((all) => all.map((row) => row.childElementCount));
  assert.deepEqual(cells, Array(2 * HOSTILE.length).fill(1 + FIGURES.length));
  assert.equal(await panel.locator("tbody :is(th, td) *").count(), 0, "a name made an element");
  assert.equal(await page.evaluate(() => globalThis.escaped), undefined, "a name was run");
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("of many identities the busiest are shown, and the rest is counted", async () => {
  const uses = Array.from({ length: 22 }, (_, at) => ({
    tool: "nx", namespace: "acme", identity: `job-${at}`, hits: at, misses: 0, served: at, stored: 0,
  }));
  const { page, errors, panel } = await pageWith(() => uses);
  await panel.getByText("2 more identities are not shown.").waitFor();
  const [, ...shown] = await rows(panel, "Identities");
  const busiest = Array.from({ length: 20 }, (_, at) => `job-${21 - at} (acme)`);
  assert.deepEqual(shown.map(([name]) => name), busiest);
  assert.deepEqual(errors, []);
  await page.context().close();
});
