// Runs web/test/*.test.ts with Node's own test runner.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const dir = join(root, "web/test");
const out = mkdtempSync(join(tmpdir(), "fonn-dashboard-"));
try {
  const tests = readdirSync(dir).filter((name) => name.endsWith(".test.ts"));
  await build({
    entryPoints: tests.map((name) => join(dir, name)),
    bundle: true,
    platform: "node",
    format: "esm",
    outdir: out,
    outExtension: { ".js": ".mjs" },
    sourcemap: "inline",
    logLevel: "warning",
  });
  const built = readdirSync(out).map((name) => join(out, name));
  const { status } = spawnSync(process.execPath, ["--enable-source-maps", "--test", ...built], { stdio: "inherit" });
  process.exitCode = status ?? 1;
} finally {
  rmSync(out, { recursive: true, force: true });
}
