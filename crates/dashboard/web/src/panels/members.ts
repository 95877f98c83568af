// Each member of the cluster with what matters of it, whoever the other figures of the page are of.

import { h, icon, section, setShown, setText, Table, type Row } from "../dom.js";
import { bytes, exact, percent, UNKNOWN } from "../format.js";
import { MemberState } from "../gen/fonn/v1/cluster_pb.js";
import { troubles } from "../health.js";
import { countsOf, diskOf, ramOf, ratioOf, together, unspilledOf, type Fill, type Standing } from "../members.js";
import type { Panel, View } from "../view.js";

const ALL = "all";

/** How full something is, in words. */
function filled(fill: Fill | null): string {
  if (!fill) return UNKNOWN;
  return `${bytes(fill.used)} of ${bytes(fill.budget)} (${percent(fill.used / fill.budget)})`;
}

export class MembersPanel implements Panel {
  readonly element: HTMLElement;
  private readonly table = new Table("State of each member", [
    "Member", "Health", ">Hit ratio, lately", ">Hits since start", "RAM", "Disk",
    ">Not in the bucket",
  ]);
  private readonly cells = new Map<string, { key: string; element: HTMLElement }>();
  private readonly note = h("p", { class: "note" });

  constructor() {
    this.element = section("members", "Each member", this.table.element, this.note);
    this.element.hidden = true;
  }

  update({ standings }: View): void {
    setShown(this.element, standings.length > 0);
    if (standings.length === 0) return;
    const rows = standings.map((standing) => this.row(standing));
    const all = together(standings);
    if (all) {
      const { lately, sinceStart, ram, disk, unspilledBytes } = all;
      const unspilled = unspilledBytes === null ? UNKNOWN : bytes(unspilledBytes);
      const ratio = percent(ratioOf(lately));
      rows.push({ key: ALL, cells: ["Together", "", ratio, exact(sinceStart.hits), filled(ram), filled(disk), unspilled] });
    }
    this.table.update(rows);
    setText(this.note, "Lately: the last 5 minutes, since the page was opened at most.");
  }

  private row(standing: Standing): Row {
    const { name, status, lately } = standing;
    const unspilled = status ? unspilledOf(status) : null;
    return {
      // Apart from the row of all, whatever a member is called.
      key: `member ${name}`,
      cells: [
        name,
        this.health(standing),
        percent(ratioOf(lately)),
        exact(status ? countsOf(status).hits : null),
        filled(status ? ramOf(status) : null),
        filled(status ? diskOf(status) : null),
        unspilled === null ? UNKNOWN : bytes(unspilled),
      ],
    };
  }

  /** Kept while nothing changes: a page that is read is not to be touched. */
  private health(standing: Standing): HTMLElement {
    const found = troubles(standing);
    const isDown = standing.state === MemberState.DOWN;
    const level = isDown || found.some((it) => it.level === "error") ? "error" : found.length > 0 ? "warning" : "ok";
    const unasked = standing.status === null && found.length === 0;
    const words = isDown ? "down" : unasked ? "not asked yet" : found.map((it) => it.text).join("; ") || "well";
    const key = `${level} ${words}`;
    const kept = this.cells.get(standing.name);
    if (kept?.key === key) return kept.element;
    const element = h("span", { class: "state", "data-level": level }, icon(unasked && !isDown ? "info" : level), words);
    this.cells.set(standing.name, { key, element });
    return element;
  }
}
