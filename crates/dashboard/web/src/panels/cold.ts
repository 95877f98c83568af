// The bucket: what it lacks, what it is asked, what it costs.

import { Chart, grid } from "../charts.js";
import { h, section, setShown, setText, Table } from "../dom.js";
import { bytes, count, dollars, duration, exact, latency, perSecond, UNKNOWN } from "../format.js";
import { LATELY_MS, NOW_MS, type Panel, type View } from "../view.js";
import { Facts } from "./facts.js";

export class Cold implements Panel {
  readonly element: HTMLElement;
  private readonly facts = new Facts();
  private readonly trouble = h("p", { class: "failure", hidden: true });
  private readonly requests = new Table("Requests to the bucket", [
    "Request", ">Now", ">Since start", ">Failed", ">99th, 5 min",
  ]);
  private readonly lag = new Chart({
    title: "Behind the disk",
    curves: [{ title: "Age of the oldest entry that the bucket lacks", color: "--cold", format: duration }],
    // Marks may be halves of a second.
    axis: (value) => (value < 10 ? `${value} s` : duration(value)),
    empty: "Nothing is known of this time yet.",
  });

  constructor() {
    this.element = section(
      "cold",
      "Bucket",
      this.trouble,
      this.facts.element,
      this.lag.element,
      this.requests.element,
    );
    this.element.hidden = true;
  }

  redraw(): void {
    this.lag.redraw();
  }

  update(view: View): void {
    const { figures, status } = view;
    const exists = figures.has("fonn_cold_segments");
    setShown(this.element, exists);
    if (!exists) return;
    const trouble = status?.cold?.trouble ?? "";
    setText(this.trouble, trouble);
    setShown(this.trouble, trouble !== "");
    this.facts.update(this.rows(view));
    this.showLag(view);
    this.showRequests(view);
  }

  private rows({ figures, status }: View): [string, string][] {
    const now = (name: string) => figures.now(name);
    const cost = status?.cold?.cost;
    const lost = now("fonn_cold_lost_entries_total");
    const ready = now("fonn_cold_index_ready") === 1;
    return [
      ["Not in the bucket yet", `${exact(now("fonn_cold_unspilled_entries"))} entries, ${bytes(now("fonn_cold_unspilled_bytes"))}`],
      ["Loss window", `${duration(now("fonn_cold_unspilled_seconds"))}, if this machine died now`],
      ["Lost so far", lost === null ? UNKNOWN : `${exact(lost)} entries`],
      ["In the bucket", `${bytes(now("fonn_cold_segment_bytes"))} in ${exact(now("fonn_cold_segments"))} segments`],
      ["Of that still counts", bytes(now("fonn_cold_live_bytes"))],
      ["Index", ready ? "complete" : "is being filled: what it lacks is a miss"],
      ["Requests so far", dollars(figures.now("fonn_cold_store_cost_dollars_total"))],
      ...(cost ? ([["Storage", `${dollars(cost.storageDollarsPerMonth)} a month`]] as [string, string][]) : []),
      ...(status?.cold ? ([["Where", `${status.cold.url}, region ${status.cold.region}`]] as [string, string][]) : []),
    ];
  }

  private showLag({ figures, windowMs }: View): void {
    const newest = figures.newestMs;
    if (newest === null) return;
    const instants = grid(newest, windowMs / 150, 150);
    instants[instants.length - 1] = newest;
    this.lag.update(
      instants.map((ms) => ms / 1000),
      [instants.map((ms) => figures.at(ms, "fonn_cold_unspilled_seconds"))],
    );
  }

  private showRequests({ figures }: View): void {
    const ops = figures.labelValues("fonn_cold_store_requests_total", "op");
    const used = ops.filter((op) => (figures.now("fonn_cold_store_requests_total", { op }) ?? 0) > 0);
    this.requests.update(
      used.map((op) => {
        const kinds = figures
          .labelValues("fonn_cold_store_errors_total", "kind", { op })
          .map((kind) => ({ kind, failed: figures.now("fonn_cold_store_errors_total", { op, kind }) ?? 0 }))
          .filter(({ failed }) => failed > 0);
        const time = figures.quantile(0.99, "fonn_cold_store_request_duration_seconds", { op }, LATELY_MS);
        return {
          key: op,
          cells: [
            op.replaceAll("_", " "),
            perSecond(figures.rate("fonn_cold_store_requests_total", { op }, NOW_MS)),
            exact(figures.now("fonn_cold_store_requests_total", { op })),
            kinds.map(({ kind, failed }) => `${count(failed)} ${kind.replaceAll("_", " ")}`).join(", ") || "0",
            latency(time),
          ],
        };
      }),
    );
  }
}
