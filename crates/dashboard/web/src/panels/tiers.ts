// The tiers: how full each is, what it answers and how small it makes values.

import { h, section, setText, Table } from "../dom.js";
import { bytes, exact, factor, latency, percent, UNKNOWN } from "../format.js";
import type { Figures } from "../figures.js";
import { LATELY_MS, type Panel, type View } from "../view.js";

interface Tier {
  key: "ram" | "disk" | "cold";
  title: string;
  used: string;
  budget: string;
  entries: string;
  /** The levels whose codecs write this tier. */
  levels: string[];
}

const TIERS: Tier[] = [
  {
    key: "ram",
    title: "RAM",
    used: "fonn_ram_used_bytes",
    budget: "fonn_ram_budget_bytes",
    entries: "fonn_ram_entries",
    levels: ["ram"],
  },
  {
    key: "disk",
    title: "Disk",
    used: "fonn_disk_used_bytes",
    budget: "fonn_disk_budget_bytes",
    entries: "fonn_disk_entries",
    levels: ["fresh", "compacted"],
  },
  {
    key: "cold",
    title: "Bucket",
    used: "fonn_cold_region_bytes",
    budget: "fonn_cold_budget_bytes",
    entries: "fonn_cold_index_entries",
    levels: ["cold"],
  },
];

/** How much smaller values became at levels, since the start. */
export function compression(figures: Figures, level: string | string[]): number | null {
  const into = figures.now("fonn_codec_bytes_in_total", { level });
  const out = figures.now("fonn_codec_bytes_out_total", { level });
  return into && out ? into / out : null;
}

/** A bar with its words beside it. */
class Fill {
  readonly element: HTMLElement;
  private readonly meter = h("span", { class: "bar-fill" });
  private readonly words = h("span", { class: "bar-words" });

  constructor(tier: string) {
    this.meter.style.background = `var(--${tier})`;
    const bar = h("span", { class: "bar", "aria-hidden": "true" }, this.meter);
    this.element = h("span", { class: "fill" }, bar, this.words);
  }

  set(used: number | null, budget: number | null): void {
    const share = used === null || !budget ? null : Math.min(used / budget, 1);
    this.meter.style.inlineSize = `${((share ?? 0) * 100).toFixed(1)}%`;
    setText(
      this.words,
      share === null
        ? `${bytes(used)}, no limit`
        : `${bytes(used)} of ${bytes(budget)} (${percent(share)})`,
    );
  }
}

export class Tiers implements Panel {
  readonly element: HTMLElement;
  private readonly table = new Table("Tiers", [
    "Tier", "Filled", ">Entries", ">Hits since start", ">Of gets, 5 min", ">Get, 99th",
    ">Compression",
  ]);
  private readonly fills = new Map(TIERS.map((tier) => [tier.key, new Fill(tier.key)]));
  private readonly misses = h("p", { class: "note" });

  constructor() {
    this.element = section("tiers", "Tiers", this.table.element, this.misses);
  }

  update({ figures }: View): void {
    const hits = (labels = {}) => figures.growth("fonn_hits_total", labels, LATELY_MS) ?? 0;
    const gets = hits() + (figures.growth("fonn_misses_total", {}, LATELY_MS) ?? 0);
    const rows = TIERS.filter((tier) => figures.has(tier.used)).map((tier) => {
      const fill = this.fills.get(tier.key);
      fill?.set(figures.now(tier.used), figures.now(tier.budget));
      const own = figures.quantile(0.99, "fonn_tier_get_duration_seconds", { tier: tier.key }, LATELY_MS);
      return {
        key: tier.key,
        cells: [
          tier.title,
          fill?.element ?? UNKNOWN,
          exact(figures.now(tier.entries)),
          exact(figures.now("fonn_hits_total", { tier: tier.key })),
          gets === 0 ? UNKNOWN : percent(hits({ tier: tier.key }) / gets),
          tier.key === "ram" ? "in request" : latency(own),
          factor(compression(figures, tier.levels)),
        ],
      };
    });
    this.table.update(rows);
    const reasons = figures
      .labelValues("fonn_misses_total", "reason")
      .map((reason) => ({ reason, misses: figures.now("fonn_misses_total", { reason }) ?? 0 }))
      .filter(({ misses }) => misses > 0)
      .map(({ reason, misses }) => `${exact(misses)} ${reason}`);
    setText(this.misses, `Misses since start: ${reasons.join(", ") || "none"}.`);
  }
}
