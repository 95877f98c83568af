// A client of the text protocol of memcached: as much of it as a test needs.

import net from "node:net";
import { once } from "node:events";

export class Client {
  static async connect(node) {
    const client = new Client();
    client.socket = net.connect(node.port, "127.0.0.1");
    client.received = "";
    client.socket.setNoDelay(true);
    client.socket.setEncoding("latin1").on("data", (text) => {
      client.received += text;
      client.wake?.();
    });
    await once(client.socket, "connect");
    return client;
  }

  async until(end) {
    while (!this.received.endsWith(end)) {
      await new Promise((resolve) => (this.wake = resolve));
    }
    const text = this.received;
    this.received = "";
    return text;
  }

  async set(key, value) {
    this.socket.write(`set ${key} 0 0 ${value.length}\r\n${value}\r\n`, "latin1");
    const answer = await this.until("\r\n");
    if (answer !== "STORED\r\n") throw new Error(`set: ${answer}`);
  }

  /** Whether each of the keys was there. */
  async get(...keys) {
    this.socket.write(`get ${keys.join(" ")}\r\n`);
    const answer = await this.until("END\r\n");
    return keys.map((key) => answer.includes(`VALUE ${key} `));
  }

  close() {
    this.socket.destroy();
  }
}

/** Something like an object file: it compresses about by half. */
export function objectFile(seed, length) {
  let state = seed + 1;
  const words = Array.from({ length: Math.ceil(length / 8) }, (_, at) => {
    state = (state * 48271) % 0x7fffffff;
    return at % 2 === 0 ? state.toString(36).padStart(6, "0").slice(-6) + "\0\0" : "movq %ra";
  });
  return words.join("").slice(0, length);
}

/**
 * Builds of `count` files for `seconds` and until `isOver` says so, but no fewer than 50: of each, most files were built before.
 * `login` is `USER PASSWORD`, where there are users.
 */
export async function builds(node, { seconds = 0, isOver = () => true, count = 400, miss = 0.08, login }) {
  const client = await Client.connect(node);
  if (login) await client.set("login", login);
  for (let at = 0; at < count; at++) await client.set(`obj/${at}`, objectFile(at, 3000 + (at % 50) * 900));
  const end = Date.now() + seconds * 1000;
  let fresh = count;
  for (let build = 0; build < 50 || Date.now() < end || !isOver(); build++) {
    for (let at = 0; at < 20; at++) {
      if (Math.random() < miss) {
        const [hit] = await client.get(`obj/new-${fresh}`);
        if (!hit) await client.set(`obj/new-${fresh}`, objectFile(fresh, 20_000));
        fresh += 1;
      } else {
        await client.get(`obj/${Math.floor(Math.random() ** 2 * count)}`);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  client.close();
}
