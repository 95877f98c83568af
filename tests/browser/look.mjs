// Looks at a dashboard once, as whoever opens it does: what it says first. Usage: look.mjs URL

import { launch, open } from "./support/browser.mjs";

const browser = await launch();
try {
  const { page, errors } = await open(browser, process.argv[2]);
  await page.locator("#health h1").filter({ hasText: /^(Healthy|Needs attention)$/ }).waitFor();
  console.log((await page.locator("#health").innerText()).trim());
  if (errors.length > 0) throw new Error(errors.join("\n"));
} finally {
  await browser.close();
}
