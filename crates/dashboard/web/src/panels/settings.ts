// The settings in force: where each comes from, and what a restart would change.

import { brief, explain } from "../api.js";
import { h, setShown, setText, Table, type Row } from "../dom.js";
import { instant } from "../format.js";
import { SettingOrigin, type Setting } from "../gen/fonn/v1/settings_pb.js";
import { MEMBER_HEADER } from "../member.js";
import { oneAtATime } from "../once.js";
import type { Actions, View } from "../view.js";

/** While they are looked at they are asked for this often. */
const ASK_EVERY_MS = 5000;

const ORIGINS: Record<SettingOrigin, string> = {
  [SettingOrigin.UNSPECIFIED]: "—",
  [SettingOrigin.DEFAULT]: "default",
  [SettingOrigin.FILE]: "configuration file",
  [SettingOrigin.ENVIRONMENT]: "environment",
  [SettingOrigin.FLAG]: "command line",
  [SettingOrigin.ADMIN]: "an admin, for now",
};

/** A row of the table; `now` is by the clock of whoever told it. */
export function settingRow(setting: Setting, now: number): Row {
  const notes = [];
  if (setting.changedAtMs !== 0n) notes.push(`changed ${instant(Number(setting.changedAtMs), now)}`);
  if (setting.afterRestart !== undefined) notes.push(`${setting.afterRestart} after a restart`);
  const changes = setting.canReload ? "reload" : "restart";
  return {
    key: setting.key,
    cells: [setting.key, setting.value, ORIGINS[setting.origin] ?? "—", changes, notes.join(", ")],
  };
}

/** Closed at first: it is asked for when somebody looks. */
export class Settings {
  readonly element: HTMLDetailsElement;
  private readonly note = h("p", { class: "note", role: "status", hidden: true });
  private readonly table = new Table("Settings in force", [
    "Setting", "Value", "From", "Changes with a", "Note",
  ]);
  private readonly ask = oneAtATime(() => this.load());
  private source: string | null = null;
  private askedAt = -Infinity;

  constructor(private readonly actions: Pick<Actions, "api">) {
    this.element = h(
      "details",
      {
        toggle: () => {
          if (this.element.open) this.askNow();
        },
      },
      h("summary", {}, "Settings in force"),
      this.note,
      this.table.element,
    );
  }

  update({ source }: View): void {
    const isOther = source !== this.source;
    this.source = source;
    if (this.element.open && (isOther || performance.now() - this.askedAt >= ASK_EVERY_MS)) this.askNow();
  }

  private askNow(): void {
    this.askedAt = performance.now();
    this.ask();
  }

  private async load(): Promise<void> {
    const { source } = this;
    // A router has settings of its own; those of the member are wanted that the figures are of.
    const options = source === null ? brief : { ...brief, headers: { [MEMBER_HEADER]: source } };
    try {
      const config = await this.actions.api.settings.config({}, options);
      if (source !== this.source) return;
      const now = Number(config.nowMs);
      this.table.update(config.settings.map((setting) => settingRow(setting, now)));
      setText(this.note, config.file === "" ? "There is no configuration file." : `The configuration file is ${config.file}.`);
    } catch (error) {
      if (source !== this.source) return;
      this.table.update([]);
      setText(this.note, explain(error));
    }
    setShown(this.note, true);
  }
}
