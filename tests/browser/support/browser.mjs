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
/** A build of the page (`crates/dashboard/dist`) to test in place of the one that is in the programs. */
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

/** A page that has figures; `isPatient` if it is to ask for nothing every so often. `errors` gets what the console and scripts complain of, and foreign requests. */
export async function open(browser, url, { viewport = DESKTOP, colorScheme = "light", isPatient = false } = {}) {
  const context = await visitor(browser, { viewport, colorScheme });
  if (isPatient) await context.addInitScript(() => (globalThis.setInterval = () => 0));
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

function figures(page) {
  return page.locator("#node details", { has: page.locator("summary", { hasText: "All figures" }) });
}

/** Opens "All figures". */
export async function openAllFigures(page) {
  const details = figures(page);
  if ((await details.getAttribute("open")) === null) await details.locator("summary").click();
  await details.locator("tbody tr").first().waitFor();
}

/** The rows of "All figures". */
export async function allFigures(page) {
  const rows = await figures(page).locator("tbody tr").evaluateAll((elements) =>
    elements.map((row) => [row.children[0].textContent, row.children[1].textContent]),
  );
  return new Map(rows.map(([name, value]) => [name, Number(value.replaceAll(",", ""))]));
}

/** How long it takes from what `cause` does until all of this is shown. */
export async function secondsFrom(cause, ...locators) {
  const begun = performance.now();
  await cause();
  await Promise.all(locators.map((it) => it.waitFor()));
  return (performance.now() - begun) / 1000;
}

/**
 * Fails if none of three attempts takes `limitS` or less: a machine that is busy with something else may be late once.
 * `attempt` gives the seconds that it took; `again` makes ready for another one.
 */
export async function withinSeconds(limitS, attempt, again) {
  const took = [];
  while (took.length < 3) {
    if (took.length > 0) await again();
    took.push(await attempt());
    if (took.at(-1) <= limitS) break;
  }
  console.log(`within ${limitS} s: ${took.map((it) => it.toFixed(2)).join(", ")}`);
  assert.ok(took.at(-1) <= limitS, `${took.join(", ")} s, more than ${limitS}`);
}
