// What the page says of members other than the one whose figures it shows.

import assert from "node:assert/strict";
import { rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertAccessible, eventually, launch, open } from "./support/browser.mjs";
import { Client } from "./support/client.mjs";
import { Cluster } from "./support/node.mjs";

const NAMES = ["a", "b"];
/** A bucket is tried again less and less often. */
const LIMIT_MS = 90_000;

let browser;
let cluster;

before(async () => {
  // Each has a bucket of its own, so that one alone can fail.
  const args = ["--cold-tier", "file://{dir}/bucket", "--spill", "write-behind:1s"];
  [browser, cluster] = await Promise.all([launch(), Cluster.start(NAMES, [], args)]);
});

after(async () => {
  await browser?.close();
  await cluster?.end();
});

test("a bucket that fails at one member is seen on the pages of the others and of a router", async () => {
  const shown = `#member=${NAMES[0]}`;
  const pages = [];
  for (const { url } of [cluster.member("a"), cluster.router]) pages.push(await open(browser, `${url}${shown}`));
  for (const { page } of pages) await page.getByRole("heading", { name: "Healthy" }).waitFor();

  const bucket = join(cluster.member("b").dir, "bucket");
  await rename(bucket, `${bucket}.away`);
  await writeFile(bucket, "no directory");
  const client = await Client.connect(cluster.router);
  let at = 0;
  await Promise.all(
    pages.map(({ page }) =>
      eventually(async () => {
        // Something that would have to be in the bucket.
        if (page === pages[0].page) await client.set(`key-${(at += 1)}`, "x".repeat(1000));
        const problem = page.locator("#health .problems a", { hasText: "b: bucket: nothing can be brought into the bucket" });
        assert.equal(await problem.count(), 1);
        assert.equal(await problem.getAttribute("href"), "#members");
      }, LIMIT_MS),
    ),
  );
  for (const { page, errors } of pages) {
    assert.equal(await page.getByRole("heading", { level: 1 }).textContent(), "Needs attention");
    assert.match(await page.locator('#members tr[data-key="member b"]').textContent(), /bucket: nothing can be brought/);
    assert.equal(await page.locator('#members tr[data-key="member a"] td').first().textContent(), "well");
    await assertAccessible(page, "with a member in trouble");
    assert.deepEqual(errors, []);
  }

  await rm(bucket);
  await rename(`${bucket}.away`, bucket);
  for (const { page } of pages) {
    await eventually(async () => {
      const health = page.locator('#members tr[data-key="member b"] td').first();
      assert.equal(await health.textContent(), "well");
    }, LIMIT_MS);
    await page.context().close();
  }
  client.close();
});
