// One key: in which tiers it is, in which form; and away with it.

import { brief, explain } from "../api.js";
import { ask } from "../dialog.js";
import { h, section, setShown, setText, Table } from "../dom.js";
import { bytes, exact, factor, instant, UNKNOWN } from "../format.js";
import { Tier, type KeyCopy, type KeyResponse } from "../gen/fonn/v1/admin_pb.js";
import type { Actions, Panel } from "../view.js";

interface Wanted {
  key: Uint8Array<ArrayBuffer>;
  text: string;
  namespace: string;
  database: number;
}

const TIERS: Record<Tier, string> = {
  [Tier.UNSPECIFIED]: UNKNOWN,
  [Tier.RAM]: "RAM",
  [Tier.DISK]: "Disk",
  [Tier.COLD]: "Bucket",
};

/** The upper 48 bits of a version are the time of the write. */
function writtenAt(version: bigint): number {
  return Number(version >> 16n);
}

/** What clients get: the newest copy, unless that is none. */
export function fate(response: KeyResponse): string {
  const newest = response.copies.reduce<KeyCopy | null>(
    (best, copy) => (best === null || copy.version > best.version ? copy : best),
    null,
  );
  if (!newest) return "No tier knows this key.";
  if (newest.version < response.flushedBelowVersion) return "It was flushed: clients get a miss.";
  if (newest.tombstone) return "It was deleted: clients get a miss.";
  if (newest.damaged) return "Its newest copy is damaged: clients get a miss.";
  if (newest.expiresAtMs !== 0n && newest.expiresAtMs <= response.nowMs) {
    return "It has expired: clients get a miss.";
  }
  return `Clients get it from ${TIERS[response.copies[0]?.tier ?? Tier.UNSPECIFIED]}.`;
}

export class Keys implements Panel {
  readonly element: HTMLElement;
  private readonly key = h("input", { id: "key", required: true, autocomplete: "off", spellcheck: "false" });
  private readonly namespace = h("input", { id: "key-namespace", placeholder: "default", autocomplete: "off", spellcheck: "false" });
  private readonly database = h("input", { id: "key-database", type: "number", min: 0, max: 255, value: 0 });
  private readonly verdict = h("p", { role: "status", class: "key-verdict" });
  private readonly result = h("div", { hidden: true });
  private readonly table = new Table("Copies of the key", [
    { title: "Tier" },
    { title: "Codec" },
    { title: "Value", numeric: true },
    { title: "Stored", numeric: true },
    { title: "Smaller by", numeric: true },
    { title: "Written" },
    { title: "Expires" },
    { title: "Version", numeric: true },
    { title: "Where" },
  ]);
  private found: Wanted | null = null;

  constructor(private readonly actions: Actions) {
    const field = (id: string, label: string, input: HTMLElement) =>
      h("p", { class: `field field-${id}` }, h("label", { for: id }, label), input);
    const form = h(
      "form",
      {
        class: "key-form",
        submit: (event) => {
          event.preventDefault();
          void this.look(this.wanted());
        },
      },
      field("key", "Key", this.key),
      field("key-namespace", "Namespace", this.namespace),
      field("key-database", "Database", this.database),
      h("button", { type: "submit", class: "primary" }, "Look up"),
    );
    const remove = h("button", { type: "button", class: "danger", click: () => void this.remove() }, "Delete key…");
    this.result.append(this.table.element, remove);
    this.element = section("keys", "Look up a key", form, this.verdict, this.result);
  }

  update(): void {}

  private wanted(): Wanted {
    return {
      key: new Uint8Array(new TextEncoder().encode(this.key.value)),
      text: this.key.value,
      namespace: this.namespace.value.trim(),
      database: this.database.valueAsNumber || 0,
    };
  }

  private async look(wanted: Wanted): Promise<void> {
    const { key, namespace, database } = wanted;
    try {
      const response = await this.actions.api.admin.key({ key, namespace, database }, brief);
      this.found = wanted;
      setText(this.verdict, fate(response));
      this.table.update(response.copies.map((copy) => row(copy)));
      setShown(this.result, response.copies.length > 0);
    } catch (error) {
      setText(this.verdict, explain(error));
      setShown(this.result, false);
    }
  }

  private async remove(): Promise<void> {
    const wanted = this.found;
    if (!wanted) return;
    const { key, namespace, database } = wanted;
    let existed = false;
    const done = await ask({
      title: "Delete this key?",
      text: `“${wanted.text}” goes from all tiers. The next compilation that asks for it runs and stores it again.`,
      action: "Delete key",
      dangerous: true,
      perform: async () => {
        const answer = await this.actions.api.admin.deleteKey({ key, namespace, database }, brief);
        existed = answer.existed;
      },
    });
    if (!done) return;
    this.actions.say(existed ? "The key is deleted." : "The key was not there any more.");
    await this.look(wanted);
  }
}

function row(copy: KeyCopy): { key: string; cells: string[] } {
  const stored = Number(copy.storedBytes);
  const value = Number(copy.valueBytes);
  const notes = [copy.location, copy.dirty ? "not in the next tier yet" : "", copy.damaged ? "damaged" : ""];
  return {
    key: String(copy.tier),
    cells: [
      TIERS[copy.tier] ?? UNKNOWN,
      copy.tombstone ? "deleted" : copy.codec || UNKNOWN,
      copy.tombstone || value === 0 ? UNKNOWN : bytes(value),
      copy.tombstone ? UNKNOWN : bytes(stored),
      copy.tombstone || value === 0 || stored === 0 ? UNKNOWN : factor(value / stored),
      instant(writtenAt(copy.version)),
      copy.expiresAtMs === 0n ? "never" : instant(Number(copy.expiresAtMs)),
      exact(Number(copy.version)),
      notes.filter((note) => note !== "").join(", ") || UNKNOWN,
    ],
  };
}
