// Chromium, and pages that note whatever they should not do.

import { readFileSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** Where pictures go; nowhere if not set. */
const SCREENSHOTS = process.env.FONN_SCREENSHOTS;

export const DESKTOP = { width: 1400, height: 900 };
export const PHONE = { width: 390, height: 844 };

export function launch() {
  return chromium.launch({
    executablePath: process.env.FONN_CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}

/** A page that has figures. `errors` gets what the console and scripts complain of, and foreign requests. */
export async function open(browser, url, { viewport = DESKTOP, colorScheme = "light" } = {}) {
  const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) errors.push(`request to ${request.url()}`);
  });
  await page.goto(url);
  await page.locator(".live[data-state=live]").waitFor();
  return { page, errors };
}

/** Fails on anything that axe finds. */
export async function assertAccessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.map((it) => `${it.id}: ${it.nodes.map((node) => node.html).join("\n  ")}`);
  assert.deepEqual(found, [], what);
}

/** Keeps a picture of a page, all of it if `fullPage`, or of an element. */
export async function picture(what, name, fullPage = false) {
  if (!SCREENSHOTS) return;
  await mkdir(SCREENSHOTS, { recursive: true });
  await what.screenshot({ path: join(SCREENSHOTS, `${name}.png`), ...(fullPage ? { fullPage } : {}) });
}

/** Tries until it holds. */
export async function eventually(check, limitMs = 10_000) {
  const deadline = Date.now() + limitMs;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}
