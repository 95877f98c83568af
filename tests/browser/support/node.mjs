// Real nodes: processes with ports, data directories and logs of their own.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const BINARY =
  process.env.FONN_NODE_BIN ?? fileURLToPath(new URL("../../../target/debug/fonn-node", import.meta.url));
const START_LIMIT_MS = 60_000;

/** A port that nobody uses now. */
async function freePort() {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

export class FonnNode {
  static async start(args = []) {
    const node = new FonnNode();
    node.dir = await mkdtemp(join(tmpdir(), "fonn-browser-"));
    node.port = await freePort();
    node.adminPort = await freePort();
    node.args = args;
    await node.run();
    return node;
  }

  get url() {
    return `http://127.0.0.1:${this.adminPort}/`;
  }

  /** Starts the process, again on the same ports and data. */
  async run() {
    this.log = "";
    this.process = spawn(
      BINARY,
      [
        "--listen", `127.0.0.1:${this.port}`,
        "--admin-listen", `127.0.0.1:${this.adminPort}`,
        "--data-dir", join(this.dir, "data"),
        "--ram-budget", "64m",
        "--disk-budget", "1g",
        "--threads", "2",
        ...this.args.map((arg) => arg.replaceAll("{dir}", this.dir)),
      ],
      { stdio: ["ignore", "ignore", "pipe"] },
    );
    this.process.stderr.setEncoding("utf8").on("data", (text) => (this.log += text));
    this.exited = once(this.process, "exit");
    const deadline = Date.now() + START_LIMIT_MS;
    while (!(await this.ready())) {
      if (this.process.exitCode !== null || Date.now() > deadline) {
        throw new Error(`the node did not start:\n${this.log}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async ready() {
    try {
      return (await fetch(`${this.url}readyz`)).ok;
    } catch {
      return false;
    }
  }

  /** `/metrics` as a map from the series as it is written there to its value. */
  async metrics() {
    const text = await (await fetch(`${this.url}metrics`)).text();
    const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
    return new Map(
      lines.map((line) => {
        const at = line.lastIndexOf(" ");
        return [line.slice(0, at), Number(line.slice(at + 1))];
      }),
    );
  }

  async kill(signal = "SIGKILL") {
    this.process.kill(signal);
    if (signal === "SIGKILL" || signal === "SIGTERM") await this.exited;
  }

  async end() {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      this.process.kill("SIGKILL");
      await this.exited;
    }
    await rm(this.dir, { recursive: true, force: true });
  }
}
