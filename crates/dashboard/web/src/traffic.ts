// Bytes to and from clients of all protocols: memcached and Redis, HTTP, and gRPC.

import type { Figures } from "./figures.js";

const SENT = ["fonn_sent_bytes_total", "fonn_http_sent_bytes_total", "fonn_reapi_sent_bytes_total"];
const RECEIVED = ["fonn_received_bytes_total", "fonn_http_received_bytes_total", "fonn_reapi_received_bytes_total"];

function sum(names: readonly string[], value: (name: string) => number | null): number | null {
  const values = names.map(value).filter((it) => it !== null);
  return values.length === 0 ? null : values.reduce((all, it) => all + it, 0);
}

/** Sent since the start of the process. */
export function sentBytes(figures: Figures): number | null {
  return sum(SENT, (name) => figures.now(name));
}

/** Sent in a second. */
export function sentRate(figures: Figures, spanMs: number): number | null {
  return sum(SENT, (name) => figures.rate(name, {}, spanMs));
}

/** Received in a second. */
export function receivedRate(figures: Figures, spanMs: number): number | null {
  return sum(RECEIVED, (name) => figures.rate(name, {}, spanMs));
}
