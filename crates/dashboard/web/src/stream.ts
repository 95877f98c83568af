// The stream of figures, kept open: whether the process is there is whether it goes on talking.

import type { Api } from "./api.js";
import { explain, needsLogin } from "./api.js";
import type { WatchResponse } from "./gen/fonn/v1/telemetry_pb.js";
import { MEMBER_HEADER } from "./member.js";

/** Sent each second, so a silence this long means that nobody talks. */
export const SILENCE_MS = 2_500;
/** Waits between attempts to connect: soon at first, then every two seconds. */
const RETRY_MS = [200, 500, 1000, 2000];
/** A first message that takes longer is not waited for. */
const CONNECT_MS = 5_000;
const HISTORY_SECONDS = 3600;

export type Connection =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "lost"; sinceMs: number; reason: string };

export interface StreamEvents {
  /** A stream begins; of that member, where there is a cluster. */
  begin(source: string | null): void;
  message(message: WatchResponse): void;
  connection(connection: Connection): void;
  /** The process asks who is there; ends when it knows. */
  logIn(): Promise<void>;
}

/** Follows the stream until `signal` is aborted. */
export async function follow(api: Api, events: StreamEvents, signal: AbortSignal): Promise<void> {
  let failures = 0;
  let lostMs: number | null = null;
  events.connection({ state: "connecting" });
  while (!signal.aborted) {
    let reason = "The node ended the connection.";
    try {
      for await (const message of watch(api, signal, (source) => events.begin(source))) {
        events.message(message);
        if (failures > 0 || lostMs !== null || message.samples.length > 0) {
          failures = 0;
          lostMs = null;
          events.connection({ state: "live" });
        }
      }
    } catch (error) {
      if (!signal.aborted && needsLogin(error)) {
        events.connection({ state: "connecting" });
        await events.logIn();
        continue;
      }
      reason = error instanceof Silence ? error.message : explain(error);
    }
    if (signal.aborted) return;
    lostMs ??= Date.now();
    events.connection({ state: "lost", sinceMs: lostMs, reason });
    await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)] ?? 0, signal);
    failures += 1;
  }
}

class Silence extends Error {}

/**
 * One stream; `begin` is called before its first message. It fails when the process falls silent, though the
 * connection may still stand.
 */
async function* watch(api: Api, signal: AbortSignal, begin: StreamEvents["begin"]): AsyncGenerator<WatchResponse> {
  const abort = new AbortController();
  const end = () => abort.abort();
  signal.addEventListener("abort", end);
  let silence: Silence | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const expect = (ms: number, otherwise: string) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      silence = new Silence(otherwise);
      abort.abort();
    }, ms);
  };
  try {
    let source: string | null = null;
    expect(CONNECT_MS, "No answer in time.");
    const stream = api.telemetry.watch(
      { historySeconds: HISTORY_SECONDS },
      { signal: abort.signal, onHeader: (headers) => (source = headers.get(MEMBER_HEADER)) },
    );
    let first = true;
    for await (const message of stream) {
      expect(SILENCE_MS, "The node has fallen silent.");
      if (first) begin(source);
      first = false;
      yield message;
    }
  } catch (error) {
    throw silence ?? error;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
    abort.abort();
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });
}
