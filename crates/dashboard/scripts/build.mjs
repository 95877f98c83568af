// Makes dist/ from web/: one script, one style sheet, one page. The same sources give the same bytes.

import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = new URL("..", import.meta.url);
/** What a first visit may load, compressed. */
const GZIP_MAX = 200 * 1024;

/** The 64-bit FNV-1a hash, as the server's entity tags are (crates/dashboard/src/lib.rs). */
function tag(bytes) {
  let hash = 0xcbf29ce484222325n;
  for (const byte of bytes) {
    hash = ((hash ^ BigInt(byte)) * 0x100000001b3n) & 0xffffffffffffffffn;
  }
  return hash.toString(16).padStart(16, "0");
}

const bundle = await build({
  absWorkingDir: root.pathname,
  entryPoints: { app: "web/src/main.ts", style: "web/style.css" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome111", "firefox115", "safari16.4"],
  charset: "utf8",
  legalComments: "none",
  outdir: "dist",
  write: false,
});
const output = (name) => bundle.outputFiles.find((file) => file.path.endsWith(name)).contents;
const uplot = await readFile(new URL("node_modules/uplot/LICENSE", root), "utf8");
const notice = `/*! with uPlot (MIT, ${/Copyright.*/.exec(uplot)[0].trim()}), @connectrpc/connect-web and @bufbuild/protobuf (Apache-2.0) */\n`;
const files = {
  "app.js": Buffer.concat([Buffer.from(notice), output("app.js")]),
  "app.css": Buffer.from(output("style.css")),
  "favicon.svg": await readFile(new URL("web/favicon.svg", root)),
};
let page = await readFile(new URL("web/index.html", root), "utf8");
for (const [name, bytes] of Object.entries(files)) page = page.replace(`{${name}}`, tag(bytes));
files["index.html"] = Buffer.from(page);

await rm(new URL("dist", root), { recursive: true, force: true });
await mkdir(new URL("dist", root));
let total = 0;
for (const [name, bytes] of Object.entries(files)) {
  await writeFile(new URL(`dist/${name}`, root), bytes);
  const compressed = gzipSync(bytes, { level: 9 }).length;
  total += compressed;
  console.log(`${name.padEnd(12)} ${String(bytes.length).padStart(7)} bytes, ${String(compressed).padStart(6)} compressed`);
}
if (total > GZIP_MAX) {
  throw new Error(`${total} bytes compressed, more than ${GZIP_MAX}`);
}
