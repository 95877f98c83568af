// What every part of the page is drawn from.

import type { Api } from "./api.js";
import type { Figures } from "./figures.js";
import type { ListNamespacesResponse, StatusResponse } from "./gen/fonn/v1/admin_pb.js";
import type { MembershipMapResponse } from "./gen/fonn/v1/membership_pb.js";
import type { RouterStatusResponse } from "./gen/fonn/v1/router_pb.js";
import type { Event } from "./gen/fonn/v1/telemetry_pb.js";
import type { ToolUse } from "./gen/fonn/v1/tools_pb.js";
import type { Standing } from "./members.js";
import type { Assumptions } from "./savings.js";
import type { Connection } from "./stream.js";

export interface View {
  /** The member that was asked for; nothing if whoever serves the page was. */
  member: string | null;
  /** The member that the figures are of; nothing on a node of its own. */
  source: string | null;
  connection: Connection;
  /** Why the process takes no traffic; empty when it does. */
  notReady: string;
  figures: Figures;
  /** The last answer about settings and state; nothing before the first. */
  status: StatusResponse | null;
  /** The cluster as the node sees it; nothing on a node of its own. */
  membership: MembershipMapResponse | null;
  /** The router that serves the page; nothing where a node does. */
  router: RouterStatusResponse | null;
  /** Each member of the cluster as it says itself; nobody on a node of its own. */
  standings: Standing[];
  /** The namespaces that the user may look into; nothing where there are none, as in a router. */
  namespaces: ListNamespacesResponse | null;
  /** What build tools did at all processes; nothing if the user may not know. */
  tools: ToolUse[] | null;
  events: Event[];
  /** How much of the past the curves show. */
  windowMs: number;
  assumptions: Assumptions;
}

/** What parts of the page can cause. */
export interface Actions {
  api: Api;
  /** Asks for the status now instead of soon. */
  refresh(): void;
  /** Says something in passing; readers hear it too. */
  say(text: string, level?: "ok" | "error"): void;
  assume(assumptions: Assumptions): void;
  setWindow(windowMs: number): void;
}

/** A part of the page. */
export interface Panel {
  readonly element: HTMLElement;
  update(view: View): void;
}

/** For figures "lately". */
export const LATELY_MS = 5 * 60_000;
/** For rates "now": long enough not to flicker. */
export const NOW_MS = 10_000;
