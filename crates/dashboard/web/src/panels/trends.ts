// The curves: what became of gets, how long requests took, how many there were.

import { Chart, grid } from "../charts.js";
import { h } from "../dom.js";
import { latency, percent, perSecond } from "../format.js";
import type { Panel, View } from "../view.js";

const TIERS = ["ram", "disk", "cold"];
const QUANTILES = [0.5, 0.95, 0.99];

export class Trends implements Panel {
  readonly element: HTMLElement;
  private readonly gets = new Chart({
    title: "Gets by the tier that answered",
    curves: [
      { title: "RAM", color: "--ram", format: percent, stacked: true },
      { title: "Disk", color: "--disk", format: percent, stacked: true },
      { title: "Bucket", color: "--cold", format: percent, stacked: true },
      { title: "Miss", color: "--miss", format: percent, stacked: true },
    ],
    axis: (value) => `${Math.round(value * 100)} %`,
    range: [0, 1],
    empty: "No gets in this time.",
  });
  private readonly latency = new Chart({
    title: "Latency percentiles",
    curves: [
      { title: "50th", color: "--curve-1", format: latency },
      { title: "95th", color: "--curve-2", format: latency },
      { title: "99th", color: "--curve-3", format: latency },
    ],
    axis: latency,
    logarithmic: true,
    empty: "No client connected here asked for anything in this time.",
  });
  private readonly traffic = new Chart({
    title: "Requests",
    curves: [
      { title: "Gets", color: "--curve-1", format: perSecond },
      { title: "Stores", color: "--curve-2", format: perSecond },
      { title: "Other", color: "--curve-3", format: perSecond },
    ],
    axis: perSecond,
    empty: "Nothing is known of this time yet.",
  });

  constructor() {
    this.element = h(
      "div",
      { class: "charts" },
      this.gets.element,
      this.latency.element,
      this.traffic.element,
    );
  }

  redraw(): void {
    for (const chart of [this.gets, this.latency, this.traffic]) chart.redraw();
  }

  update({ figures, windowMs, connection }: View): void {
    const newest = figures.newestMs;
    if (newest === null) return;
    const stepMs = windowMs / 150;
    // Rates need two samples, and old ones are ten seconds apart.
    const spanMs = Math.max(stepMs, 12_000);
    // While nobody talks the curves go on without values, so that the gap is seen.
    const end = connection.state === "lost" ? newest + (Date.now() - connection.sinceMs) : newest;
    const instants = grid(end, stepMs, 150);
    instants[instants.length - 1] = end;
    const times = instants.map((ms) => ms / 1000);
    const old = (ms: number) => ms > newest + 2000;

    const parts = [
      ...TIERS.map((tier) => ["fonn_hits_total", { tier }] as const),
      ["fonn_misses_total", {}] as const,
    ];
    const grown = parts.map(([name, labels]) =>
      instants.map((ms) => (old(ms) ? null : figures.growth(name, labels, spanMs, ms))),
    );
    const shares = grown.map((column) =>
      column.map((value, at) => {
        const all = grown.reduce((sum, other) => sum + (other[at] ?? 0), 0);
        return all === 0 || grown[3]?.[at] === null ? null : (value ?? 0) / all;
      }),
    );
    this.gets.update(times, shares);

    const quantiles = instants.map((ms) =>
      old(ms) ? [] : figures.quantiles(QUANTILES, "fonn_request_duration_seconds", {}, spanMs, ms),
    );
    this.latency.update(
      times,
      QUANTILES.map((_, at) => quantiles.map((values) => values[at] ?? null)),
    );

    const rates = (command: string | string[]) =>
      instants.map((ms) =>
        old(ms) ? null : figures.rate("fonn_commands_total", { command }, spanMs, ms),
      );
    this.traffic.update(times, [
      rates("get"),
      rates("store"),
      rates(["delete", "touch", "arithmetic", "flush"]),
    ]);
  }
}
