// The build tools: what each gets out of the cache, and for whom.

import { h, section, setShown, setText, Table, type Row } from "../dom.js";
import { bytes, exact, percent, UNKNOWN } from "../format.js";
import type { ToolUse } from "../gen/fonn/v1/tools_pb.js";
import { sums, type Sum } from "../tools.js";
import type { Panel, View } from "../view.js";

/** More rows than people read; `fonnctl tools` has all. */
const ROWS_MAX = 20;

/** Names for people; the others are shown as they are. */
const NAMES: Record<string, string> = {
  generic: "Other (any path)",
  sccache: "sccache",
  ccache: "ccache",
  go: "Go",
  bazel: "Bazel, moon (HTTP)",
  gradle: "Gradle, Rush",
  maven: "Maven",
  nx: "Nx",
  turborepo: "Turborepo",
  actions: "GitHub Actions",
  remote_execution: "Remote Execution (gRPC)",
};

/** An identity in its namespace; all clients are one where there are no users. */
export function identity(use: Pick<ToolUse, "identity" | "namespace">): string {
  return use.identity === "" ? use.namespace : `${use.identity} (${use.namespace})`;
}

function row([name, sum]: [string, Sum]): Row {
  const lookups = sum.hits + sum.misses;
  return {
    key: name,
    cells: [
      NAMES[name] ?? name,
      exact(sum.hits),
      exact(sum.misses),
      lookups === 0 ? UNKNOWN : percent(sum.hits / lookups),
      bytes(sum.served),
      bytes(sum.stored),
    ],
  };
}

const columns = (first: string) => [first, ">Hits", ">Misses", ">Hit ratio", ">Bytes saved", ">Bytes stored"];

export class Tools implements Panel {
  readonly element: HTMLElement;
  private readonly tools = new Table("Build tools", columns("Tool"));
  private readonly identities = new Table("Identities", columns("Identity"));
  private readonly note = h("p", { class: "note" });

  constructor() {
    this.element = section("tools", "Build tools", this.tools.element, this.identities.element, this.note);
  }

  update({ tools }: View): void {
    // Admins see them, once a tool has used the HTTP port.
    setShown(this.element, tools !== null && tools.length > 0);
    if (tools === null) return;
    this.tools.update(sums(tools, (use) => use.tool).map(row));
    const identities = sums(tools, identity);
    this.identities.update(identities.slice(0, ROWS_MAX).map(row));
    const more = identities.length - ROWS_MAX;
    const rest = more > 0 ? ` ${exact(more)} more identities are not shown.` : "";
    setText(this.note, `Over HTTP and gRPC, since the start of each process.${rest}`);
  }
}
