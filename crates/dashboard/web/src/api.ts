// The services of the admin port that served this page, by gRPC-web.

import { Code, ConnectError, createClient, type Client, type Interceptor } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { Admin } from "./gen/fonn/v1/admin_pb.js";
import { Membership } from "./gen/fonn/v1/membership_pb.js";
import { Router } from "./gen/fonn/v1/router_pb.js";
import { Settings } from "./gen/fonn/v1/settings_pb.js";
import { Telemetry } from "./gen/fonn/v1/telemetry_pb.js";
import { Tools } from "./gen/fonn/v1/tools_pb.js";
import { HERE, MEMBER_HEADER } from "./member.js";

/** Calls that are no stream end after this long. */
const CALL_TIMEOUT_MS = 10_000;

export interface Api {
  admin: Client<typeof Admin>;
  membership: Client<typeof Membership>;
  /** Of routers alone: a node has no such service. */
  router: Client<typeof Router>;
  settings: Client<typeof Settings>;
  telemetry: Client<typeof Telemetry>;
  tools: Client<typeof Tools>;
}

/** What goes with a call. */
export interface Heading {
  /** Who calls, as a header; nothing before somebody has logged in. */
  login(): string | null;
  /** The member that a call is for; nothing if anybody may answer. */
  member(isStream: boolean): string | null;
}

/** Gives each call its headers; what it has already stays. */
export function headed(heading: Heading): Interceptor {
  return (next) => (request) => {
    const login = heading.login();
    if (login !== null) request.header.set("authorization", login);
    const member = heading.member(request.stream);
    // A call may be for another one than the page is about.
    if (member !== null && !request.header.has(MEMBER_HEADER)) request.header.set(MEMBER_HEADER, member);
    if (request.header.get(MEMBER_HEADER) === HERE) request.header.delete(MEMBER_HEADER);
    return next(request);
  };
}

export function connect(baseUrl: string, heading: Heading): Api {
  const transport = createGrpcWebTransport({ baseUrl, useBinaryFormat: true, interceptors: [headed(heading)] });
  return {
    admin: createClient(Admin, transport),
    membership: createClient(Membership, transport),
    router: createClient(Router, transport),
    settings: createClient(Settings, transport),
    telemetry: createClient(Telemetry, transport),
    tools: createClient(Tools, transport),
  };
}

/** Options of a call that must not hang. */
export const brief = { timeoutMs: CALL_TIMEOUT_MS };

/** What went wrong, in the words of the server where there are any. */
export function explain(error: unknown): string {
  const { code, rawMessage } = ConnectError.from(error);
  switch (code) {
    case Code.Unauthenticated:
      return `Not logged in: ${rawMessage}`;
    case Code.PermissionDenied:
      return `Not allowed: ${rawMessage}`;
    case Code.DeadlineExceeded:
      return "No answer in time.";
    case Code.Unknown:
      // What fetch says of a refused connection differs from browser to browser.
      return "The node cannot be reached.";
    default:
      return rawMessage;
  }
}

/** Whether the server asks who calls. */
export function needsLogin(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Unauthenticated;
}

/** Whether the server has no such method: an older one, or one of another kind. */
export function isUnimplemented(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Unimplemented;
}
