// The codec of each level: which, why, with what result, and a way to change it.

import { brief } from "../api.js";
import { ask } from "../dialog.js";
import { h, section, setText, Table } from "../dom.js";
import type { Figures } from "../figures.js";
import { bytes, duration, factor, UNKNOWN } from "../format.js";
import type { Actions, Panel, View } from "../view.js";
import { compression } from "./tiers.js";

const LEVELS: Record<string, string> = {
  ram: "RAM",
  fresh: "Disk, fresh data",
  compacted: "Disk, compacted data",
  cold: "Bucket",
};

/** Why `auto` changed a codec, as `fonn_codec_changes_total` calls it. */
const REASONS: Record<string, string> = {
  backlog: "writes were waiting for the processor",
  cpu_scarce: "the processor was scarce",
  device_scarce: "the disk was scarce",
  headroom: "there was processor time to spare",
  incompressible: "values did not get smaller",
};

const SUGGESTIONS = ["auto", "none", "lz4", "snappy", "zstd:1", "zstd:3", "zstd:9", "zlib:6"];

/** What `auto` did most lately at a level, by its counters. */
export function lastReason(figures: Figures, level: string): string | null {
  const name = "fonn_codec_changes_total";
  const reasons = figures.labelValues(name, "reason", { level });
  for (const spanMs of [60_000, 5 * 60_000, 3_600_000]) {
    const grown = reasons
      .map((reason) => ({ reason, times: figures.growth(name, { level, reason }, spanMs) ?? 0 }))
      .filter(({ times }) => times > 0)
      .sort((a, b) => b.times - a.times)[0];
    if (grown) return REASONS[grown.reason] ?? grown.reason.replaceAll("_", " ");
  }
  return null;
}

export class Codecs implements Panel {
  readonly element: HTMLElement;
  private readonly table = new Table("Codecs", [
    "Level", "Codec", "Why", ">Compression", ">Values in", ">Processor", "Change",
  ]);
  private readonly note = h("p", { class: "note" });
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private readonly current = new Map<string, string>();

  constructor(private readonly actions: Actions) {
    this.element = section("codecs", "Codecs", this.table.element, this.note);
  }

  update({ figures, status }: View): void {
    if (!status) return;
    for (const { level, codec } of status.codecs) this.current.set(level, codec);
    this.table.update(
      status.codecs.map(({ level, codec, active }) => {
        const auto = codec === "auto";
        const shown = auto && active !== "" ? `auto: ${active}` : codec;
        const why = auto ? (lastReason(figures, level) ?? "its first choice for this level") : "fixed";
        return {
          key: level,
          cells: [
            LEVELS[level] ?? level,
            shown,
            why,
            factor(compression(figures, level)),
            bytes(figures.now("fonn_codec_bytes_in_total", { level })),
            duration(figures.now("fonn_codec_cpu_seconds_total", { level })),
            this.button(level),
          ],
        };
      }),
    );
    const limit = bytes(Number(status.codecMinBytes));
    setText(this.note, `Values below ${limit} are stored as they are. A change holds for what is written from then on, until a restart or reload.`);
  }

  private button(level: string): HTMLButtonElement {
    let button = this.buttons.get(level);
    if (!button) {
      const name = LEVELS[level] ?? level;
      button = h(
        "button",
        { type: "button", "aria-label": `Change the codec of ${name}`, click: () => void this.change(level) },
        "Change…",
      );
      this.buttons.set(level, button);
    }
    return button;
  }

  private async change(level: string): Promise<void> {
    const input = h("input", {
      id: "codec-choice",
      list: "codec-suggestions",
      value: this.current.get(level) ?? "",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
    });
    const list = h("datalist", { id: "codec-suggestions" }, ...SUGGESTIONS.map((it) => h("option", { value: it })));
    const name = LEVELS[level] ?? level;
    let outcome = UNKNOWN;
    const done = await ask({
      title: `Codec of ${name}`,
      text: "Values that are written from now on get it; those at rest keep theirs. A restart or reload sets it back to the configuration.",
      action: "Change codec",
      content: h("p", { class: "field" }, h("label", { for: "codec-choice" }, "Codec, like lz4 or zstd:3"), input, list),
      perform: async () => {
        const answer = await this.actions.api.admin.setCodec({ level, codec: input.value.trim() }, brief);
        outcome = `${name}: ${answer.codec}, before ${answer.previous}.`;
      },
    });
    if (done) {
      this.actions.say(outcome);
      this.actions.refresh();
    }
  }
}
