// The dashboard of a cluster, as a member and as a router show it.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { assertAccessible, eventually, launch, open, PHONE, picture } from "./support/browser.mjs";
import { builds } from "./support/client.mjs";
import { Cluster } from "./support/node.mjs";

const NAMES = ["a", "b", "c"];
const SLOTS = 16_384;
/** Long enough for curves worth a picture only where pictures are wanted. */
const LOAD_SECONDS = process.env.FONN_SCREENSHOTS ? 150 : 2;
/** A member that is killed is agreed to be down after some 2 s, and the page asks every 2 s. */
const DOWN_LIMIT_MS = 30_000;
/** Who was down counts as up after 5 s of answers. */
const UP_LIMIT_MS = 60_000;

let browser;
let cluster;
/** Who shows the cluster. */
let doors;

before(async () => {
  [browser, cluster] = await Promise.all([launch(), Cluster.start(NAMES)]);
  doors = { "a member": cluster.member("b"), "a router": cluster.router };
  await builds(cluster.router, { seconds: LOAD_SECONDS, count: 100 });
});

after(async () => {
  await browser?.close();
  await cluster?.end();
});

const row = (page, name) => page.locator(`#cluster tr[data-key=${name}]`);
const state = (page, name) => row(page, name).locator(".state").textContent();

/** The facts of the panel by their names. */
async function facts(page) {
  const pairs = await page.locator("#cluster .facts > div").evaluateAll((elements) =>
    elements.map((element) => [element.querySelector("dt").textContent, element.querySelector("dd").textContent]),
  );
  return Object.fromEntries(pairs);
}

/** Waits until the page shows these states, all others active. */
async function shows(page, states, limitMs) {
  await eventually(async () => {
    for (const name of NAMES) assert.equal(await state(page, name), states[name] ?? "active", name);
  }, limitMs);
}

/** Slots of which a member is the first owner, as the table has them. */
async function slotsFirst(page, name) {
  const text = await row(page, name).locator("td").nth(3).textContent();
  return Number(/^[\d,]+/.exec(text)[0].replaceAll(",", ""));
}

const PRIMARY = 'fonn_cluster_slots{part="primary"}';

/** Slots that the member is the primary of whose figures are shown: by them, another number for each. */
async function primarySlots(page) {
  const details = page.locator("#node details");
  if ((await details.getAttribute("open")) === null) await details.locator("summary").click();
  const shown = details.locator("tbody tr").filter({ has: page.getByText(PRIMARY, { exact: true }) });
  return Number((await shown.locator("td").textContent()).replaceAll(",", ""));
}

async function primarySlotsOf(name) {
  return (await cluster.member(name).metrics()).get(PRIMARY);
}

test("members, owners of slots and raft are shown, the same by a member and by a router", async () => {
  for (const [door, { url }] of Object.entries(doors)) {
    const { page, errors } = await open(browser, url);
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
    await shows(page, {});
    await eventually(async () => {
      const told = await facts(page);
      assert.equal(told["Leader"], await cluster.leader(), door);
      assert.deepEqual(told["Voters"].split(", ").sort(), NAMES, door);
      assert.equal(told["Members"], "3 of 3 up", door);
    });
    let sum = 0;
    for (const name of NAMES) {
      const slots = await slotsFirst(page, name);
      assert.ok(slots > SLOTS / 5 && slots < SLOTS / 2, `${door}: ${name} has ${slots}`);
      sum += slots;
      const address = await row(page, name).locator("td").nth(5).textContent();
      assert.equal(address, `127.0.0.1:${cluster.member(name).port}`, door);
    }
    assert.equal(sum, SLOTS, door);
    const strip = await page.locator("#cluster .slots").getAttribute("aria-label");
    assert.match(strip, /^Slots by first owner: a \d\d\.\d %, b \d\d\.\d %, c \d\d\.\d %$/, door);
    assert.equal(await page.locator("#cluster .slots .owner").count(), NAMES.length, door);
    await assertAccessible(page, door);
    assert.deepEqual(errors, [], door);
    await page.context().close();
  }
});

test("a router's page has figures, those of a member", async () => {
  const { page } = await open(browser, cluster.router.url);
  await page.locator("#node summary").click();
  const shown = page.locator("#node details tbody tr", { hasText: "fonn_cluster_epoch" });
  await shown.waitFor();
  const told = (await facts(page))["Figures of"];
  assert.ok(NAMES.includes(told), told);
  await page.context().close();
});

test("the figures of each member are a link away, whoever serves the page, and there is a way back", async () => {
  assert.equal(new Set(await Promise.all(NAMES.map(primarySlotsOf))).size, NAMES.length);
  for (const [door, { url }] of Object.entries(doors)) {
    const { page, errors } = await open(browser, url);
    await shows(page, {});
    assert.equal(await page.getByRole("region", { name: "Member shown" }).count(), 0, door);
    const meant = new Set();
    page.on("request", (request) => request.method() === "POST" && meant.add(request.headers()["fonn-member"]));
    // By the keyboard, as by the mouse.
    await page.getByRole("link", { name: "Figures of c" }).focus();
    meant.clear();
    await page.keyboard.press("Enter");
    await page.getByText(/^This is the member c, asked by way of 127/).waitFor();
    await page.locator(".node-name", { hasText: "member c" }).waitFor();
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
    assert.equal(new URL(page.url()).hash, "#member=c");
    assert.equal(await page.title(), "c – Fonn");
    assert.equal(await primarySlots(page), await primarySlotsOf("c"), door);
    assert.equal(await row(page, "c").locator("th").textContent(), "c (shown)");
    await assertAccessible(page, door);

    // Parts of the page are within reach, and a page that is loaded again is about the same member.
    await page.getByRole("link", { name: "Look up a key" }).click();
    await eventually(async () => assert.equal(new URL(page.url()).hash, "#member=c"));
    await page.locator(".node-name", { hasText: "member c" }).waitFor();
    await page.reload();
    await page.locator(".node-name", { hasText: "member c" }).waitFor();
    assert.deepEqual([...meant], ["c"], `${door}: each call says whom it is for`);

    // From one member to the next, and back by the page's link and by the browser's button.
    await page.getByRole("link", { name: "Figures of a" }).click();
    await page.locator(".node-name", { hasText: "member a" }).waitFor();
    assert.equal(await primarySlots(page), await primarySlotsOf("a"), door);
    await page.goBack();
    await page.locator(".node-name", { hasText: "member c" }).waitFor();
    await page.getByRole("link", { name: `Back to ${new URL(url).host}` }).click();
    await page.getByRole("region", { name: "Member shown" }).waitFor({ state: "detached" });
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
    const own = door === "a member" ? "b" : (await facts(page))["Figures of"];
    assert.equal(await primarySlots(page), await primarySlotsOf(own), door);
    assert.deepEqual(errors, [], door);
    await page.context().close();
  }
});

if (process.env.FONN_SCREENSHOTS) {
  test("a picture of a member at work, by way of a router", async () => {
    const load = builds(cluster.router, { seconds: 15, count: 100 });
    const { page } = await open(browser, `${cluster.router.url}#member=b`);
    await page.locator(".node-name", { hasText: "member b" }).waitFor();
    await page.waitForTimeout(12_000);
    await picture(page, "cluster", true);
    await load;
    await page.context().close();
  });
}

test("a member that there is not is said not to be, with those that there are", async () => {
  for (const [door, { url }] of Object.entries(doors)) {
    const { page } = await open(browser, url);
    await page.evaluate(() => (location.hash = "#member=z"));
    await page.getByRole("heading", { name: "No connection to z" }).waitFor();
    await page.getByText(/There is no member `z`; there are: a, b, c\. Trying again by itself\./i).waitFor();
    await assertAccessible(page, door);
    await page.getByRole("link", { name: /^Back to/ }).click();
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
    await page.context().close();
  }
});

test("a phone shows the cluster too", async () => {
  const { page } = await open(browser, cluster.router.url, { viewport: PHONE, colorScheme: "dark" });
  await shows(page, {});
  await assertAccessible(page, "phone");
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false);
  await page.context().close();
});

test("the keyboard alone asks to drain a member, and thinks better of it", async () => {
  const { page, errors } = await open(browser, doors["a member"].url);
  await shows(page, {});
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  for (let press = 0; press < 60 && (await focused()) !== "Drain c"; press++) await page.keyboard.press("Tab");
  assert.equal(await focused(), "Drain c");
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "Drain c?" });
  await dialog.waitFor();
  await assertAccessible(page, "the question");
  // Enter is what nobody should press by accident.
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Cancel");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  assert.equal(await focused(), "Drain c", "the focus is where it was");
  await page.waitForTimeout(500);
  await shows(page, {});
  assert.ok((await slotsFirst(page, "c")) > 0);
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("a member is drained over a router's page when that is confirmed, and given its slots back", async () => {
  const [{ page, errors }, other] = [
    await open(browser, doors["a router"].url),
    await open(browser, doors["a member"].url),
  ];
  await shows(page, {});
  const slots = await slotsFirst(page, "c");
  await page.getByRole("button", { name: "Drain c" }).click();
  const dialog = page.getByRole("dialog", { name: "Drain c?" });
  assert.match(await dialog.textContent(), new RegExp(`${slots.toLocaleString("en-US")} slots go to other members`));
  await dialog.getByRole("button", { name: "Drain" }).click();
  await dialog.waitFor({ state: "detached" });
  for (const it of [page, other.page]) {
    await shows(it, { c: "draining" });
    await eventually(async () => assert.equal(await slotsFirst(it, "c"), 0));
    assert.equal((await slotsFirst(it, "a")) + (await slotsFirst(it, "b")), SLOTS);
  }
  await page.getByRole("button", { name: "Undo drain c" }).click();
  await page.getByRole("button", { name: "Give back" }).click();
  for (const it of [page, other.page]) {
    await shows(it, {});
    await eventually(async () => assert.equal(await slotsFirst(it, "c"), slots));
  }
  assert.deepEqual([...errors, ...other.errors], []);
  await Promise.all([page.context().close(), other.page.context().close()]);
});

test("a member that is killed is down within seconds, which health says, and comes back", async () => {
  const pages = [];
  for (const { url } of Object.values(doors)) pages.push(await open(browser, url));
  for (const { page } of pages) await page.getByRole("heading", { name: "Healthy" }).waitFor();
  await cluster.member("c").kill("SIGKILL");
  await Promise.all(
    pages.map(async ({ page, errors }) => {
      await shows(page, { c: "down" }, DOWN_LIMIT_MS);
      await page.getByRole("heading", { name: "Needs attention" }).waitFor();
      const problem = page.getByRole("link", { name: "1 member is down: c." });
      await problem.waitFor();
      assert.equal(await problem.getAttribute("href"), "#cluster");
      assert.equal((await facts(page))["Members"], "2 of 3 up");
      await picture(page, "member-down");
      assert.equal(await slotsFirst(page, "c"), 0);
      await page.locator("#events").getByText(/\bc\b.*down/).first().waitFor();
      assert.deepEqual(errors, []);
    }),
  );
  // Its own figures cannot be had, and the page says why; those of the others can.
  await Promise.all(
    pages.map(async ({ page }) => {
      await page.getByRole("link", { name: "Figures of c" }).click();
      await page.getByRole("heading", { name: "No connection to c" }).waitFor();
      await page.getByText(/`c` .*does not answer/).waitFor();
      await page.getByRole("link", { name: /^Back to/ }).click();
      await page.getByRole("heading", { name: "Needs attention" }).waitFor();
    }),
  );
  await cluster.member("c").run();
  for (const { page } of pages) {
    await shows(page, {}, UP_LIMIT_MS);
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
    await page.context().close();
  }
});

test("a router's page goes on when the member that it asks is killed", async () => {
  const { page } = await open(browser, cluster.router.url);
  await shows(page, {});
  const asked = (await facts(page))["Figures of"];
  await cluster.member(asked).kill("SIGKILL");
  await shows(page, { [asked]: "down" }, DOWN_LIMIT_MS);
  await page.getByText(`1 member is down: ${asked}.`).waitFor();
  await eventually(async () => {
    assert.equal(await page.locator(".live").getAttribute("data-state"), "live");
    assert.notEqual((await facts(page))["Figures of"], asked);
  });
  await cluster.member(asked).run();
  await shows(page, {}, UP_LIMIT_MS);
  await page.context().close();
});
