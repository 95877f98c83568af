// The dashboard of a cluster, as a member and as a router show it.

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
import { Cluster } from "./support/node.mjs";

const NAMES = ["a", "b", "c"];
const SLOTS = 16_384;
/** Long enough for curves worth a picture only where pictures are wanted. */
const LOAD_SECONDS = process.env.FONN_SCREENSHOTS ? 150 : 2;
/** A member that falls is agreed to be down within 2 s, and the pages are to say so soon after. */
const DOWN_S = 3;
/** What a busy machine gets where it is not about time. */
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
  await openAllFigures(page);
  return (await allFigures(page)).get(PRIMARY);
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
      const shown = told["Figures of"];
      const term = (await cluster.member(shown).metrics()).get("fonn_cluster_term");
      assert.ok(term > 0 && told["Term"] === term.toLocaleString("en-US"), `${door}: ${told["Term"]}, not ${term}`);
      const heard = shown === told["Leader"] ? /^it leads$/ : /^[\d.]+ (ms|s) ago$/;
      assert.match(told["Leader heard"], heard, door);
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

/** The name of the member whose figures a page shows. */
async function shownMember(page) {
  return eventually(async () => {
    const name = (await facts(page))["Figures of"];
    assert.ok(NAMES.includes(name), name);
    return name;
  });
}

/** Hits of a member, of all tiers. */
function hitsOf(metrics) {
  return [...metrics].filter(([name]) => name.startsWith("fonn_hits_total")).reduce((sum, [, hits]) => sum + hits, 0);
}

test("the figures are those of /metrics of the member that is shown, under load", async () => {
  // A page that is late is looked at again, so nobody knows for how long there has to be load.
  let isOver = false;
  const load = builds(cluster.router, { isOver: () => isOver, count: 100 });
  // A build that ends early must not end the test elsewhere.
  load.catch(() => {});
  try {
    for (const [door, { url }] of Object.entries(doors)) {
      const { page, errors } = await open(browser, url);
      await openAllFigures(page);
      const member = cluster.member(await shownMember(page));
      const [compared, grown] = await eventually(async () => {
        // Counters only grow: the page's sample is between two looks at the member itself.
        const before = await member.metrics();
        await page.waitForTimeout(2_500);
        const shown = await allFigures(page);
        const after = await member.metrics();
        let compared = 0;
        const grown = [];
        for (const [name, from] of before) {
          if (!/_total(\{|$)/.test(name)) continue;
          const there = shown.get(name);
          assert.ok(there !== undefined, `${door}: ${name} is not on the page`);
          // The page shows eight digits of what is no whole number.
          const slack = Math.abs(there) * 1e-6;
          const to = after.get(name);
          assert.ok(from - slack <= there && there <= to + slack, `${door}: ${name}: ${from}, ${there}, ${to}`);
          compared += 1;
          if (from < there) grown.push(name);
        }
        assert.ok(grown.includes('fonn_hits_total{tier="ram"}'), `${door}: no load, only ${grown.join(", ")} grew`);
        return [compared, grown.length];
      });
      assert.ok(compared > 30, `${door}: only ${compared} counters`);
      assert.ok(grown > 3, `${door}: only ${grown} grew`);
      assert.deepEqual(errors, [], door);
      await page.context().close();
    }
  } finally {
    isOver = true;
  }
  await load;
});

test("each member is shown with its own figures, and all of them together, whoever serves the page", async () => {
  for (const [door, { url }] of Object.entries(doors)) {
    const { page, errors } = await open(browser, url);
    await page.getByRole("heading", { name: "Healthy" }).waitFor();
    const each = page.locator("#members");
    await eventually(async () => {
      let all = 0;
      for (const name of NAMES) {
        const hits = hitsOf(await cluster.member(name).metrics());
        assert.ok(hits > 0, name);
        all += hits;
        const cells = each.locator(`tr[data-key="member ${name}"] td`);
        assert.equal(await cells.nth(0).textContent(), "well", `${door}: ${name}`);
        assert.equal(await cells.nth(2).textContent(), hits.toLocaleString("en-US"), `${door}: ${name}`);
        assert.match(await cells.nth(3).textContent(), /^\S+ .?i?B of 128 MiB \(/, `${door}: ${name}`);
        assert.match(await cells.nth(4).textContent(), / of 1\.00 GiB \(/, `${door}: ${name}`);
      }
      const sum = each.locator('tr[data-key="all"] td').nth(2);
      assert.equal(await sum.textContent(), all.toLocaleString("en-US"), door);
      assert.match(await page.locator("#health .whole").textContent(), /^3 members together: /, door);
    });
    assert.deepEqual(errors, [], door);
    await page.context().close();
  }
});

test("a key that another member owns is found, whoever serves the page", async () => {
  const client = await Client.connect(cluster.router);
  const keys = Array.from({ length: 8 }, (_, at) => `obj/looked-up-${at}`);
  for (const key of keys) await client.set(key, "x".repeat(5000));
  client.close();
  for (const [door, { url }] of Object.entries(doors)) {
    const { page, errors } = await open(browser, url);
    await page.locator(".node-name", { hasText: "member" }).waitFor();
    const owners = new Set();
    for (const key of keys) {
      await page.getByLabel("Key", { exact: true }).fill(key);
      await page.getByRole("button", { name: "Look up" }).click();
      const verdict = page.locator(".key-verdict");
      await eventually(async () => assert.match(await verdict.textContent(), /^Clients get it from RAM of /));
      const said = /^Clients get it from RAM of ([abc])\. Owned by \1\.$/.exec(await verdict.textContent());
      assert.ok(said, `${door}: ${key}: ${await verdict.textContent()}`);
      owners.add(said[1]);
      const copy = page.getByRole("region", { name: "Table: Copies of the key" }).locator("tr", { hasText: "RAM" });
      assert.match(await copy.textContent(), new RegExp(`^${said[1]}RAM.*4\\.88 KiB`), `${door}: ${key}`);
      if (said[1] !== (await shownMember(page))) await picture(page.locator("#keys"), "key-elsewhere");
    }
    assert.ok(owners.size > 1, `${door}: all of ${keys.length} keys are owned by ${[...owners]}`);
    await assertAccessible(page, door);
    await page.getByLabel("Key", { exact: true }).fill("absent");
    await page.getByRole("button", { name: "Look up" }).click();
    await page.getByText(/^No tier knows this key\. Owned by [abc]\.$/).waitFor();
    assert.deepEqual(errors, [], door);
    await page.context().close();
  }
});

test("a router's page has figures, those of a member", async () => {
  const { page } = await open(browser, cluster.router.url);
  await openAllFigures(page);
  await eventually(async () => assert.ok((await allFigures(page)).has("fonn_cluster_epoch")));
  await shownMember(page);
  await page.context().close();
});

test("the figures of each member are a link away, whoever serves the page, and there is a way back", async () => {
  assert.equal(new Set(await Promise.all(NAMES.map(primarySlotsOf))).size, NAMES.length);
  for (const [door, { url }] of Object.entries(doors)) {
    const { page, errors } = await open(browser, url);
    await shows(page, {});
    assert.equal(await page.getByRole("region", { name: "Member shown" }).count(), 0, door);
    const meant = new Set();
    // Of its state each member is asked, whoever is shown.
    page.on("request", (request) => {
      const isCall = request.method() === "POST" && !request.url().endsWith("/fonn.v1.Admin/Status");
      // A router is asked for its own status, and a member says that it has none.
      const isOfRouter = request.url().includes("/fonn.v1.Router/");
      if (isCall && !isOfRouter) meant.add(request.headers()["fonn-member"]);
    });
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
    const own = door === "a member" ? "b" : await shownMember(page);
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

test("a member that is killed is down within 3 s, which health says, and comes back", async () => {
  const pages = [];
  for (const { url } of Object.values(doors)) pages.push(await open(browser, url));
  for (const { page } of pages) await page.getByRole("heading", { name: "Healthy" }).waitFor();
  // News of the cluster are enough for it: it need not wait until it asks the next time.
  const patient = await open(browser, `${doors["a member"].url}#member=b`, { isPatient: true });
  await shows(patient.page, {});
  const down = pages.map(({ page }) => row(page, "c").locator(".state", { hasText: "down" }));
  const attempt = () => secondsFrom(() => cluster.member("c").kill("SIGKILL"), ...down);
  await withinSeconds(DOWN_S, attempt, async () => {
    await cluster.member("c").run();
    for (const { page } of pages) await shows(page, {}, UP_LIMIT_MS);
  });
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
  await shows(patient.page, { c: "down" });
  await patient.page.context().close();
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
  const asked = await shownMember(page);
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
