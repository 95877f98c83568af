// One key: in which tiers it is, in which form; and away with it.

import { brief, explain } from "../api.js";
import { ask } from "../dialog.js";
import { h, section, setShown, setText, Table, type Row } from "../dom.js";
import { bytes, exact, factor, instant, UNKNOWN } from "../format.js";
import type { KeyCopy } from "../gen/fonn/v1/admin_pb.js";
import { askBy, fate, lookUp, TIERS, type Found, type Wanted as Asked } from "../lookup.js";
import type { Actions, Panel } from "../view.js";

interface Wanted extends Asked {
  text: string;
}

const COLUMNS = [
  "Tier", "Codec", ">Value", ">Stored", ">Smaller by", "Written", "Writer", "Expires", ">Version",
  "Where",
];

/** The upper 48 bits of a version are the time of the write. */
function writtenAt(version: bigint): number {
  return Number(version >> 16n);
}

export class Keys implements Panel {
  readonly element: HTMLElement;
  private readonly key = h("input", { id: "key", required: true, autocomplete: "off", spellcheck: "false" });
  private readonly namespace = h("input", { id: "key-namespace", placeholder: "default", autocomplete: "off", spellcheck: "false" });
  private readonly database = h("input", { id: "key-database", type: "number", min: 0, max: 255, value: 0 });
  private readonly verdict = h("p", { role: "status", class: "key-verdict" });
  private readonly result = h("div", { hidden: true });
  private readonly copies = h("div");
  private found: Wanted | null = null;
  private looks = 0;

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
    this.result.append(this.copies, remove);
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
    const look = (this.looks += 1);
    setText(this.verdict, "Looking…");
    setShown(this.result, false);
    try {
      const found = await lookUp(askBy(this.actions.api, wanted));
      // Another key has been asked for meanwhile.
      if (look !== this.looks) return;
      this.found = wanted;
      setText(this.verdict, fate(found));
      const rows = rowsOf(found);
      // In a cluster each row begins with whose copy it is.
      const columns = found.owners.length === 0 ? COLUMNS : ["Member", ...COLUMNS];
      const table = new Table("Copies of the key", columns);
      table.update(rows);
      this.copies.replaceChildren(table.element);
      setShown(this.result, rows.length > 0);
    } catch (error) {
      if (look === this.looks) setText(this.verdict, explain(error));
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

/** The copies that are known, those of the first owner first. */
export function rowsOf({ owners, answers }: Found): Row[] {
  return answers.flatMap(({ member, response }) =>
    response.copies.map((copy) => ({
      key: `${member ?? ""} ${copy.tier}`,
      cells: owners.length === 0 ? cells(copy) : [member ?? UNKNOWN, ...cells(copy)],
    })),
  );
}

function cells(copy: KeyCopy): string[] {
  const stored = Number(copy.storedBytes);
  const value = Number(copy.valueBytes);
  const notes = [copy.location, copy.dirty ? "not in the next tier yet" : "", copy.damaged ? "damaged" : "", copy.purged ? "purged" : ""];
  return [
    TIERS[copy.tier] ?? UNKNOWN,
    copy.tombstone ? "deleted" : copy.codec || UNKNOWN,
    copy.tombstone || value === 0 ? UNKNOWN : bytes(value),
    copy.tombstone ? UNKNOWN : bytes(stored),
    copy.tombstone || value === 0 || stored === 0 ? UNKNOWN : factor(value / stored),
    instant(writtenAt(copy.version)),
    copy.writer || UNKNOWN,
    copy.expiresAtMs === 0n ? "never" : instant(Number(copy.expiresAtMs)),
    exact(copy.version),
    notes.filter((note) => note !== "").join(", ") || UNKNOWN,
  ];
}
