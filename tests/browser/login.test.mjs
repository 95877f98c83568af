// The dashboard of a node with users.

import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { assertAccessible, DESKTOP, eventually, launch } from "./support/browser.mjs";
import { FonnNode } from "./support/node.mjs";

/** argon2 of `secret`, with parameters that cost next to nothing. */
const HASH =
  "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w";

let browser;
let node;
let dir;

function users(...names) {
  return names.map(([name, role]) => `[[user]]\nname = "${name}"\nrole = "${role}"\nhash = "${HASH}"\n`).join("");
}

before(async () => {
  dir = await mkdtemp(join(tmpdir(), "fonn-users-"));
  await writeFile(join(dir, "users.toml"), users(["dev", "read"], ["root", "admin"]));
  [browser, node] = await Promise.all([launch(), FonnNode.start(["--users-file", join(dir, "users.toml")])]);
});

after(async () => {
  await browser?.close();
  await node?.end();
  await rm(dir, { recursive: true, force: true });
});

async function visit() {
  const context = await browser.newContext({ viewport: DESKTOP, reducedMotion: "reduce" });
  const page = await context.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(node.url);
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
  assert.equal(await page.getByRole("dialog").count(), 0);
  await page.getByRole("heading", { name: "Healthy" }).waitFor();
  // What this user may not do is said in words.
  await page.getByRole("button", { name: "Change the codec of Disk, fresh data" }).click();
  await page.getByRole("dialog").locator("input").fill("zstd:3");
  await page.getByRole("dialog").locator("button[type=submit]").click();
  await page.getByText(/Not allowed: .*role admin/).waitFor();
  assert.deepEqual(errors, []);
  await page.context().close();
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
