// The dashboard of a node with users.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { assertAccessible, eventually, launch, picture, visitor } from "./support/browser.mjs";
import { builds } from "./support/client.mjs";
import { Cluster, FonnNode } from "./support/node.mjs";

/** argon2 of `secret`, with parameters that cost next to nothing. */
const HASH =
  "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w";

let browser;
let node;
let dir;

function users(...names) {
  return names
    .map(([name, role, more = ""]) => `[[user]]\nname = "${name}"\nrole = "${role}"\nhash = "${HASH}"\n${more}\n`)
    .join("");
}

const BUILDERS = [
  ["ci", "read-write", 'namespace = "main"\nquota = "40m"'],
  ["pull-request", "read-write", 'namespace = "pull-requests"\nbase = "main"\nquota = "20m"'],
];

before(async () => {
  dir = await mkdtemp(join(tmpdir(), "fonn-users-"));
  await writeFile(join(dir, "users.toml"), users(["dev", "read"], ["root", "admin"], ...BUILDERS));
  [browser, node] = await Promise.all([launch(), FonnNode.start(["--users-file", join(dir, "users.toml")])]);
});

after(async () => {
  await browser?.close();
  await node?.end();
  await rm(dir, { recursive: true, force: true });
});

async function visit(url = node.url) {
  const context = await visitor(browser);
  const page = await context.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url);
  await page.getByRole("dialog", { name: "Log in" }).waitFor();
  return { page, errors };
}

async function logIn(page, user, password) {
  await page.getByLabel("User").fill(user);
  await page.getByLabel("Password").fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
}

const live = (page) => page.locator(".live[data-state=live]").waitFor();

test("a node with users asks who is there, and shows nothing before it knows", async () => {
  const { page, errors } = await visit();
  await assertAccessible(page, "the question");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.getByRole("dialog", { name: "Log in" }).waitFor();
  await logIn(page, "dev", "wrong");
  const failure = page.getByRole("alert").filter({ hasText: "Not logged in" });
  assert.match(await failure.textContent(), /wrong user name or password/);
  assert.equal(await page.getByLabel("Password").inputValue(), "");
  await logIn(page, "dev", "secret");
  await live(page);
  await eventually(async () => assert.equal(await page.getByRole("dialog").count(), 0));
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  // What this user may not do is said in words.
  await page.getByRole("button", { name: "Change the codec of Disk, fresh data" }).click();
  await page.getByRole("dialog").locator("input").fill("zstd:3");
  await page.getByRole("dialog").locator("button[type=submit]").click();
  await page.getByText(/Not allowed: .*role admin/).waitFor();
  assert.deepEqual(errors, []);
  await page.context().close();
});

test("an admin sees each namespace with its quota, who may read one sees that", async () => {
  const build = async () => {
    for (const [name] of BUILDERS) await builds(node, { seconds: 1, count: 100, login: `${name} secret` });
  };
  await build();
  // Entries are counted when a node starts, and then seldom.
  await node.kill("SIGTERM");
  await node.run();
  await build();
  const { page } = await visit();
  await logIn(page, "root", "secret");
  await live(page);
  const row = (name) => page.locator(`#namespaces tr[data-key=${name}]`);
  await eventually(async () => {
    const cells = await row("pull-requests").locator("td").allTextContents();
    const [base, holds, entries, , hits, ratio, stores] = cells;
    assert.equal(base, "main");
    assert.match(holds, /^[\d.]+ MiB of 20\.0 MiB \(\d/);
    assert.ok(Number(entries) >= 100, entries);
    assert.ok(Number(hits.replaceAll(",", "")) > 500, hits);
    assert.match(ratio, /^\d\d\.\d %$/);
    assert.ok(Number(stores) >= 100, stores);
    assert.match(await row("main").locator("td").nth(1).textContent(), /of 40\.0 MiB/);
  });
  await picture(page.locator("#namespaces"), "namespaces");
  await page.context().close();

  const reader = await visit();
  await logIn(reader.page, "dev", "secret");
  await live(reader.page);
  await reader.page.locator("#namespaces tr[data-key=default]").waitFor();
  assert.equal(await reader.page.locator("#namespaces tbody tr").count(), 1);
  await reader.page.context().close();
});

test("who is gone from the users file is asked again", async () => {
  const { page } = await visit();
  await logIn(page, "dev", "secret");
  await live(page);
  await writeFile(join(dir, "users.toml"), users(["root", "admin"]));
  await node.kill("SIGHUP");
  await page.getByRole("dialog", { name: "Log in" }).waitFor();
  await logIn(page, "root", "secret");
  await live(page);
  await eventually(async () => assert.equal(await page.getByRole("dialog").count(), 0));
  await page.context().close();
});

test("one login at a router is enough for every member, over the members' own certificates", async () => {
  const pki = join(dir, "pki");
  execFileSync(fileURLToPath(new URL("../../deploy/make-certificates", import.meta.url)), [pki, "all=localhost"]);
  const file = (name) => join(pki, "all", `${name}.pem`);
  await writeFile(join(dir, "cluster.toml"), users(["dev", "read"]));
  const tls = ["--tls-cert", file("cert"), "--tls-key", file("key"), "--tls-client-ca", file("ca")];
  const cluster = await Cluster.start(["a", "b"], ["--users-file", join(dir, "cluster.toml"), ...tls]);
  try {
    const { page, errors } = await visit(cluster.router.url);
    await logIn(page, "dev", "secret");
    await live(page);
    for (const name of ["b", "a"]) {
      await page.getByRole("link", { name: `Figures of ${name}` }).click();
      await page.locator(".node-name", { hasText: `member ${name}` }).waitFor();
      await page.getByRole("heading", { name: "Healthy" }).waitFor();
    }
    assert.equal(await page.getByRole("dialog").count(), 0, "nobody asks again");
    // What a reader may not do is refused by the member, by way of the router, too.
    await page.getByRole("button", { name: "Drain b" }).click();
    await page.getByRole("button", { name: "Drain", exact: true }).click();
    await page.getByText(/Not allowed: .*role admin/).waitFor();
    assert.deepEqual(errors, []);
    await page.context().close();
  } finally {
    await cluster.end();
  }
});
