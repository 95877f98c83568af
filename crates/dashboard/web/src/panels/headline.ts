// The five figures that matter.

import { h, setText } from "../dom.js";
import { bytes, count, duration, hours, latency, percent, perSecond, UNKNOWN } from "../format.js";
import { hitRatio } from "../health.js";
import { savings } from "../savings.js";
import { receivedRate, sentRate } from "../traffic.js";
import { LATELY_MS, NOW_MS, type Panel, type View } from "../view.js";

const NAMES: Record<string, string> = { ram: "RAM", disk: "disk", cold: "bucket" };

class Tile {
  readonly element: HTMLElement;
  private readonly value = h("span", { class: "value" }, UNKNOWN);
  private readonly note = h("span", { class: "note" });

  constructor(id: string, title: string, ...more: Node[]) {
    this.element = h(
      "div",
      { class: "tile", id },
      h("dt", {}, title),
      h("dd", {}, this.value, this.note, ...more),
    );
  }

  set(value: string, note: string): void {
    setText(this.value, value);
    setText(this.note, note);
  }
}

export class Headline implements Panel {
  readonly element: HTMLElement;
  private readonly ratio: Tile;
  private readonly latency = new Tile("tile-latency", "Latency, 99th percentile");
  private readonly traffic = new Tile("tile-traffic", "Requests");
  private readonly saved = new Tile("tile-saved", "Compile time saved");
  private readonly risk = new Tile("tile-risk", "At risk on this disk");
  private readonly bars = new Map<string, SVGRectElement>();
  private readonly bar: SVGSVGElement;

  constructor() {
    this.bar = this.makeBar();
    this.ratio = new Tile("tile-ratio", "Hit ratio, last 5 min", this.bar);
    const tiles = [this.ratio, this.latency, this.traffic, this.saved, this.risk];
    this.element = h("dl", { class: "tiles" }, ...tiles.map((tile) => tile.element));
  }

  update(view: View): void {
    const { figures } = view;
    this.showRatio(view);
    const quantile = (q: number) =>
      figures.quantile(q, "fonn_request_duration_seconds", {}, LATELY_MS);
    const slowest = quantile(0.99);
    this.latency.set(
      latency(slowest),
      slowest === null
        ? "no memcached or Redis client asked lately"
        : `median ${latency(quantile(0.5))}, 99.9th ${latency(quantile(0.999))}`,
    );
    const out = sentRate(figures, NOW_MS);
    const into = receivedRate(figures, NOW_MS);
    this.traffic.set(
      perSecond(figures.rate("fonn_commands_total", {}, NOW_MS)),
      `${bytes(out)}/s out, ${bytes(into)}/s in`,
    );
    const saved = savings(figures, view.assumptions);
    this.saved.set(
      hours(saved?.compileSeconds),
      saved
        ? `${count(saved.hits)} hits × ${view.assumptions.secondsPerHit} s, since start`
        : "",
    );
    this.showRisk(view);
  }

  private showRatio({ figures }: View): void {
    const ratio = hitRatio(figures, LATELY_MS);
    const total = (figures.growth("fonn_hits_total", {}, LATELY_MS) ?? 0) +
      (figures.growth("fonn_misses_total", {}, LATELY_MS) ?? 0);
    let left = 0;
    const words = [];
    for (const [tier, rect] of this.bars) {
      const hits = figures.growth("fonn_hits_total", { tier }, LATELY_MS) ?? 0;
      const share = total === 0 ? 0 : hits / total;
      rect.setAttribute("x", (left * 100).toFixed(2));
      rect.setAttribute("width", (share * 100).toFixed(2));
      left += share;
      if (hits > 0) words.push(`${NAMES[tier]} ${percent(share)}`);
    }
    this.bar.style.visibility = total === 0 ? "hidden" : "visible";
    this.ratio.set(percent(ratio), total === 0 ? "no gets" : words.join(", ") || "only misses");
  }

  private showRisk({ figures }: View): void {
    const age = figures.now("fonn_cold_unspilled_seconds");
    if (age === null) {
      const dirty = figures.now("fonn_disk_entries");
      this.risk.set("all", dirty === null ? "RAM only: a restart forgets all" : "no bucket: a lost disk loses all");
      return;
    }
    const unspilled = figures.now("fonn_cold_unspilled_bytes") ?? 0;
    const entries = figures.now("fonn_cold_unspilled_entries") ?? 0;
    this.risk.set(
      bytes(unspilled),
      unspilled === 0 && entries === 0
        ? "all is in the bucket"
        : `${count(entries)} entries of the last ${duration(age)}`,
    );
  }

  private makeBar(): SVGSVGElement {
    const namespace = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(namespace, "svg");
    svg.setAttribute("class", "split");
    svg.setAttribute("viewBox", "0 0 100 6");
    svg.setAttribute("preserveAspectRatio", "none");
    // The note says the same in words.
    svg.setAttribute("aria-hidden", "true");
    for (const tier of Object.keys(NAMES)) {
      const rect = document.createElementNS(namespace, "rect");
      rect.setAttribute("height", "6");
      rect.style.fill = `var(--${tier})`;
      this.bars.set(tier, rect);
      svg.append(rect);
    }
    return svg;
  }
}

