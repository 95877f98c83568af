// The namespaces: what each may take, takes, and was asked for.

import { h, section, setShown, setText, Table } from "../dom.js";
import { bytes, exact, instant, percent, UNKNOWN } from "../format.js";
import type { Namespace } from "../gen/fonn/v1/admin_pb.js";
import type { Panel, View } from "../view.js";

/** More rows than people read; `fonnctl namespaces` has all. */
const ROWS_MAX = 20;

const number = (value: bigint | undefined): number | null => (value === undefined ? null : Number(value));

/** Those with most requests first: what is busy matters. */
export function busiest(namespaces: readonly Namespace[]): Namespace[] {
  const asked = (it: Namespace) => it.hits + it.misses + it.stores;
  return [...namespaces]
    .sort((a, b) => (asked(a) === asked(b) ? a.name.localeCompare(b.name) : asked(a) < asked(b) ? 1 : -1))
    .slice(0, ROWS_MAX);
}

/** What a namespace takes, in words. */
export function filled(it: Namespace): string {
  const used = number(it.usedBytes);
  const quota = number(it.quotaBytes);
  if (quota === null) return used === null ? UNKNOWN : bytes(used);
  // The share and its sign stay together.
  const share = used === null || quota === 0 ? "" : ` (${percent(used / quota).replace(" ", "\u00a0")})`;
  return `${bytes(used)} of ${bytes(quota)}${share}`;
}

export class Namespaces implements Panel {
  readonly element: HTMLElement;
  private readonly table = new Table("Namespaces", [
    "Namespace", "Over", "Holds", ">Entries", ">In RAM", ">Hits", ">Of gets", ">Stores",
    ">Lost to quota", ">Refused",
  ]);
  private readonly note = h("p", { class: "note" });

  constructor() {
    this.element = section("namespaces", "Namespaces", this.table.element, this.note);
  }

  update({ namespaces }: View): void {
    // A router has none, nor has a node of an older version.
    setShown(this.element, namespaces !== null);
    if (!namespaces) return;
    const shown = busiest(namespaces.namespaces);
    this.table.update(
      shown.map((it) => {
        const gets = it.hits + it.misses;
        return {
          key: it.name,
          cells: [
            it.name,
            it.base === "" ? UNKNOWN : it.base,
            filled(it),
            exact(number(it.entries)),
            exact(Number(it.ramEntries)),
            exact(Number(it.hits)),
            gets === 0n ? UNKNOWN : percent(Number(it.hits) / Number(gets)),
            exact(Number(it.stores)),
            exact(Number(it.quotaEvictions)),
            exact(Number(it.quotaRefusals)),
          ],
        };
      }),
    );
    const counts = shown.map((it) => Number(it.countedAtMs)).filter((at) => at > 0);
    const counted = counts.length === 0 ? "" : ` Entries were last counted at ${instant(Math.min(...counts))} or later.`;
    const more = namespaces.namespaces.length - shown.length;
    const rest = more > 0 ? ` ${exact(more)} more are not shown.` : "";
    setText(this.note, `On this node, the busiest first; requests since its start.${counted}${rest}`);
  }
}
