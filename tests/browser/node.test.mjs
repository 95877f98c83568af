// The dashboard of one node.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  allFigures,
  assertAccessible,
  eventually,
  launch,
  open,
  openAllFigures,
  PHONE,
  picture,
  secondsFrom,
  withinSeconds,
} from "./support/browser.mjs";
import { builds, Client } from "./support/client.mjs";
import { FonnNode } from "./support/node.mjs";

/** Long enough for curves worth a picture only where pictures are wanted. */
const LOAD_SECONDS = process.env.FONN_SCREENSHOTS ? 150 : 6;
/** A node that is gone is missed by then. */
const NOTICED_S = 3;

let browser;
let node;

before(async () => {
  [browser, node] = await Promise.all([
    launch(),
    FonnNode.start(["--cold-tier", "file://{dir}/bucket", "--spill", "write-behind:2s"]),
  ]);
  await builds(node, { seconds: LOAD_SECONDS });
});

after(async () => {
  await browser?.close();
  await node?.end();
});

test("the figures are those of /metrics", async () => {
  const { page, errors } = await open(browser, node.url);
  await openAllFigures(page);
  const compared = await eventually(async () => {
    const shown = await allFigures(page);
    const told = await node.metrics();
    let compared = 0;
    for (const [name, value] of told) {
      // These change by themselves, and buckets are cumulative there.
      if (/^process_|_bucket\{|cpu_seconds|stalled_seconds|_cold_|_unspilled_|compact|recoded/.test(name)) continue;
      const there = shown.get(name);
      assert.ok(there !== undefined, `${name} is not on the page`);
      assert.ok(Math.abs(there - value) <= Math.abs(value) * 1e-6, `${name}: ${there}, but ${value}`);
      compared += 1;
    }
    return compared;
  });
  assert.ok(compared > 45, `only ${compared} series`);

  // And what people look at is made of them.
  const told = await node.metrics();
  const hits = told.get('fonn_hits_total{tier="ram"}');
  assert.ok(hits > 100);
  const row = page.locator("#tiers tr[data-key=ram]");
  assert.equal(await row.locator("td").nth(2).textContent(), hits.toLocaleString("en-US"));
  const all = [...told].filter(([name]) => name.startsWith("fonn_hits_total")).reduce((sum, [, n]) => sum + n, 0);
  assert.match(await page.locator("#savings").textContent(), new RegExp(all.toLocaleString("en-US")));
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("a healthy node is seen to be healthy, with curves from before the page was opened", async () => {
  const { page, errors } = await open(browser, node.url);
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  await eventually(async () => {
    const ratio = await page.locator("#tile-ratio .value").textContent();
    assert.match(ratio, /^\d+(\.\d+)? %$/);
  });
  const gets = page.locator("section.chart").first();
  assert.match(await gets.locator(".legend").textContent(), /RAM .*Disk .*Bucket .*Miss/);
  // The arrow keys go back in time, to where the load was.
  const frame = gets.locator(".chart-frame");
  await frame.focus();
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("ArrowLeft");
  assert.match(await gets.locator(".when").textContent(), /^\d\d:\d\d:\d\d$/);
  await page.keyboard.press("Tab");
  assert.equal(await gets.locator(".when").textContent(), "now");
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("the assumption behind the compile time can be changed, and is remembered", async () => {
  const { page } = await open(browser, node.url);
  const saved = page.locator("#tile-saved .note");
  await eventually(async () => assert.match(await saved.textContent(), /× 2 s/));
  await page.getByLabel("Assumed: each hit spares").fill("10");
  await eventually(async () => assert.match(await saved.textContent(), /× 10 s/));
  await page.reload();
  await eventually(async () => assert.match(await saved.textContent(), /× 10 s/));
  await page.context().close();
});

test("a key is looked up, and deleted only when that is confirmed", async () => {
  const client = await Client.connect(node);
  await client.set("obj/doomed", "x".repeat(5000));
  const { page, errors } = await open(browser, node.url);
  await page.getByLabel("Key", { exact: true }).fill("obj/doomed");
  await page.getByRole("button", { name: "Look up" }).click();
  const found = page.getByRole("region", { name: "Table: Copies of the key" });
  await page.getByText("Clients get it from RAM.").waitFor();
  assert.match(await found.locator("tr", { hasText: "RAM" }).textContent(), /4\.88 KiB/);
  assert.match(await found.locator("tr", { hasText: "Disk" }).textContent(), /lz4.*generation/);
  await picture(page.locator("#keys"), "key");

  await page.getByRole("button", { name: "Delete key…" }).click();
  const dialog = page.getByRole("dialog", { name: "Delete this key?" });
  await dialog.waitFor();
  await assertAccessible(page, "the question");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  assert.deepEqual(await client.get("obj/doomed"), [true], "nothing was confirmed");

  await page.getByRole("button", { name: "Delete key…" }).click();
  await dialog.getByRole("button", { name: "Delete key" }).click();
  await page.getByText("The key is deleted.").waitFor();
  assert.deepEqual(await client.get("obj/doomed"), [false]);
  await page.getByText(/clients get a miss|No tier knows/).waitFor();
  await page.locator("#events").getByText("a key was deleted").first().waitFor();
  assert.deepEqual(errors, []);
  client.close();
  await page.context().close();
});

test("a codec is changed, and a wrong one is refused with what would be right", async () => {
  const { page, errors } = await open(browser, node.url);
  const level = page.locator("#codecs tr[data-key=fresh]");
  await level.getByText("lz4").waitFor();
  await page.getByRole("button", { name: "Change the codec of Disk, fresh data" }).click();
  const dialog = page.getByRole("dialog");
  const input = dialog.getByLabel("Codec, like lz4 or zstd:3");
  await input.fill("zip");
  await dialog.getByRole("button", { name: "Change codec" }).click();
  await dialog.getByRole("alert").getByText("zstd").waitFor();
  await input.fill("zstd:1");
  await page.keyboard.press("Enter");
  await page.getByText("Disk, fresh data: zstd:1, before lz4.").waitFor();
  await level.getByText("zstd:1").waitFor();
  await page.locator("#events").getByText("codec of fresh was set to zstd:1").waitFor();
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("the settings in force are told when somebody looks, with where they come from", async () => {
  const { page, errors } = await open(browser, node.url);
  await page.locator("#node summary", { hasText: "Settings in force" }).click();
  const cells = async (setting) => page.locator(`#node tr[data-key=${setting}] > *`).allTextContents();
  await eventually(async () => {
    assert.deepEqual((await cells("ram_budget")).slice(0, 4), ["ram_budget", "128m", "command line", "reload"]);
    assert.deepEqual((await cells("max_value")).slice(0, 4), ["max_value", "256m", "default", "restart"]);
  });
  await assertAccessible(page, "settings");
  assert.deepEqual(errors, []);
  await page.context().close();
});

for (const colorScheme of ["light", "dark"]) {
  for (const [size, viewport] of Object.entries({ desktop: undefined, phone: PHONE })) {
    test(`everybody can use it: ${colorScheme}, ${size}`, async () => {
      // A picture is of a node at work.
      const load = process.env.FONN_SCREENSHOTS ? builds(node, { seconds: 10 }) : null;
      const { page, errors } = await open(browser, node.url, { colorScheme, ...(viewport ? { viewport } : {}) });
      await page.locator("#codecs tbody tr").first().waitFor();
      await page.locator("#cold tbody tr").first().waitFor();
      await assertAccessible(page, `${colorScheme}, ${size}`);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
      assert.equal(wide, false, "nothing sticks out");
      if (load) await page.waitForTimeout(7_000);
      await picture(page, `${size}-${colorScheme}`, size === "desktop");
      await load;
      assert.deepEqual(errors, []);
      await page.context().close();
    });
  }
}

test("the keyboard reaches everything in order, the skip link first", async () => {
  const { page } = await open(browser, node.url);
  // What comes with the first figures is there to be reached.
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  await page.locator("#codecs tbody tr").first().waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the figures");
  const seen = new Set();
  for (let press = 0; press < 60; press++) {
    await page.keyboard.press("Tab");
    seen.add(await page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent.slice(0, 40)));
  }
  for (const wanted of ["1 h", "Change the codec of RAM", "Look up", "All figures"]) {
    assert.ok(seen.has(wanted), `${wanted} among ${[...seen].join(" | ")}`);
  }
  await page.context().close();
});

test("a node that is killed is missed, and welcomed back", async () => {
  const { page, errors } = await open(browser, node.url);
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  const attempt = () => secondsFrom(() => node.kill("SIGKILL"), page.getByRole("heading", { name: "No connection" }));
  await withinSeconds(NOTICED_S, attempt, async () => {
    await node.run();
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
  });
  await page.waitForTimeout(1500);
  await assertAccessible(page, "without a connection");
  await picture(page, "no-connection");
  await node.run();
  await page.getByRole("heading", { name: "Healthy" }).waitFor({ timeout: 60_000 });
  const client = await Client.connect(node);
  await client.get("obj/1");
  client.close();
  // The counters of the new process, not those of the old one.
  await eventually(async () => {
    const gets = await page.locator("#savings dd").first().textContent();
    assert.equal(gets, "1");
  });
  // The browser itself complains of the refused connections.
  assert.deepEqual(errors.filter((error) => !error.includes("net::ERR_")), []);
  await page.context().close();
});

test("a node that hangs is missed too", async () => {
  const { page } = await open(browser, node.url);
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  const back = async () => {
    await node.kill("SIGCONT");
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
  };
  const attempt = () => secondsFrom(() => node.kill("SIGSTOP"), page.getByText("The node has fallen silent."));
  await withinSeconds(NOTICED_S, attempt, back);
  await back();
  await page.context().close();
});

test("the page is kept by the browser, and its parts need not be asked for again", async () => {
  const page = await (await fetch(node.url)).text();
  const [, script] = /src="(\/app\.js\?v=[0-9a-f]{16})"/.exec(page);
  const response = await fetch(new URL(script, node.url));
  assert.match(response.headers.get("cache-control"), /immutable/);
  assert.match(response.headers.get("content-security-policy"), /default-src 'self'/);
  const again = await fetch(node.url, {
    headers: { "if-none-match": (await fetch(node.url)).headers.get("etag") },
  });
  assert.equal(again.status, 304);
});
