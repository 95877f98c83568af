// Real nodes: processes with ports, data directories and logs of their own.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** Where the program of this name is: said by the environment, or the debug build. */
function program(variable, name) {
  return process.env[variable] ?? fileURLToPath(new URL(`../../../target/debug/${name}`, import.meta.url));
}

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

/** A process with an admin port; what kind is for those that extend it to say. */
class Server {
  constructor(args = []) {
    this.args = args;
  }

  static async start(...args) {
    const server = new this(...args);
    server.dir = await mkdtemp(join(tmpdir(), "fonn-browser-"));
    server.port = await freePort();
    server.adminPort = await freePort();
    await server.prepare();
    try {
      await server.run();
    } catch (error) {
      await server.end();
      throw error;
    }
    return server;
  }

  async prepare() {}

  get url() {
    return `http://127.0.0.1:${this.adminPort}/`;
  }

  /** Starts the process, again on the same ports and data. */
  async run() {
    this.log = "";
    this.process = spawn(
      this.program(),
      [
        "--listen", `127.0.0.1:${this.port}`,
        "--admin-listen", `127.0.0.1:${this.adminPort}`,
        "--threads", "2",
        ...this.flags(),
        ...this.args.map((arg) => arg.replaceAll("{dir}", this.dir)),
      ],
      { stdio: ["ignore", "ignore", "pipe"] },
    );
    this.process.stderr.setEncoding("utf8").on("data", (text) => (this.log += text));
    this.exited = once(this.process, "exit");
    const deadline = Date.now() + START_LIMIT_MS;
    while (!(await this.ready())) {
      if (this.process.exitCode !== null || Date.now() > deadline) {
        throw new Error(`${this.program()} did not start:\n${this.log}`);
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

export class FonnNode extends Server {
  program() {
    return program("FONN_NODE_BIN", "fonn-node");
  }

  flags() {
    return ["--data-dir", join(this.dir, "data"), "--ram-budget", "128m", "--disk-budget", "1g"];
  }
}

/** A member of a cluster: it forms one if it has nobody to join. */
class Member extends FonnNode {
  constructor(name, join, args) {
    super(args);
    this.name = name;
    this.join = join;
  }

  async prepare() {
    this.clusterPort = await freePort();
  }

  get cluster() {
    return `127.0.0.1:${this.clusterPort}`;
  }

  flags() {
    const entry = this.join === null ? ["--bootstrap"] : ["--join", this.join];
    return [...super.flags(), "--node-id", this.name, "--cluster-listen", this.cluster, ...entry];
  }
}

class Router extends Server {
  program() {
    return program("FONN_ROUTER_BIN", "fonn-router");
  }

  flags() {
    return [];
  }
}

/** Members by these names with a router in front of them; all have `args` besides, the members `memberArgs` too. */
export class Cluster {
  static async start(names, args = [], memberArgs = []) {
    const cluster = new Cluster();
    cluster.members = new Map();
    try {
      let first = null;
      for (const name of names) {
        const member = await Member.start(name, first, [...args, ...memberArgs]);
        first ??= member.cluster;
        cluster.members.set(name, member);
      }
      const addresses = [...cluster.members.values()].map((member) => member.cluster);
      cluster.router = await Router.start(["--cluster", addresses.join(","), ...args]);
    } catch (error) {
      await cluster.end();
      throw error;
    }
    return cluster;
  }

  member(name) {
    return this.members.get(name);
  }

  /** The name of the member that leads, as that one counts it; nothing while there is none. */
  async leader() {
    for (const [name, member] of this.members) {
      const metrics = await member.metrics().catch(() => new Map());
      if (metrics.get("fonn_cluster_is_leader") === 1) return name;
    }
    return null;
  }

  async end() {
    await this.router?.end();
    for (const member of this.members.values()) await member.end();
  }
}
