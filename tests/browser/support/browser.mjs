// Chromium, and pages that note whatever they should not do.

import { readFileSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** Where pictures go; nowhere if not set. */
const SCREENSHOTS = process.env.FONN_SCREENSHOTS;
/** A build of the page (`dashboard/dist`) to test in place of the one that is in the programs. */
const PAGE = process.env.FONN_DASHBOARD_DIST;

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

/** A visitor's browser. */
export async function visitor(browser, options = {}) {
  const context = await browser.newContext({ viewport: DESKTOP, reducedMotion: "reduce", ...options });
  if (PAGE) {
    await context.route(/^[^?#]*\/(|index\.html|app\.js|app\.css)([?#].*)?$/, async (route) => {
      const { pathname } = new URL(route.request().url());
      const body = await readFile(join(PAGE, pathname === "/" ? "index.html" : pathname));
      await route.fulfill({ response: await route.fetch(), body });
    });
  }
  return context;
}

/** A page that has figures. `errors` gets what the console and scripts complain of, and foreign requests. */
export async function open(browser, url, { viewport = DESKTOP, colorScheme = "light" } = {}) {
  const context = await visitor(browser, { viewport, colorScheme });
  const page = await context.newPage();
  const errors = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) errors.push(`request to ${request.url()}`);
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
export async function eventually(check, limitMs = 30_000) {
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
