// The node: how it was started, its settings, what it uses, and every figure it publishes.

import { h, section, setShown, Table } from "../dom.js";
import { bytes, count, duration, exact, instant, latency } from "../format.js";
import { LATELY_MS, NOW_MS, type Actions, type Panel, type View } from "../view.js";
import { Facts } from "./facts.js";
import { Settings } from "./settings.js";

export class NodePanel implements Panel {
  readonly element: HTMLElement;
  private readonly facts = new Facts();
  private readonly settings: Settings;
  private readonly filter: HTMLInputElement;
  private readonly details: HTMLDetailsElement;
  private readonly table = new Table("All figures", ["Metric", ">Value"]);
  private readonly none = h("p", { class: "note" }, "No metric has this in its name.");
  private view: View | null = null;

  constructor(actions: Pick<Actions, "api">) {
    this.settings = new Settings(actions);
    const redraw = () => this.view && this.showAll(this.view);
    this.filter = h("input", { id: "metric-filter", type: "search", autocomplete: "off", input: redraw });
    this.details = h(
      "details",
      { toggle: redraw },
      h("summary", {}, "All figures"),
      h("p", { class: "field" }, h("label", { for: "metric-filter" }, "Only those with"), this.filter),
      this.none,
      this.table.element,
    );
    this.element = section("node", "Node", this.facts.element, this.settings.element, this.details);
  }

  update(view: View): void {
    this.view = view;
    const { figures, status } = view;
    const cores = figures.rate("process_cpu_seconds_total", {}, NOW_MS);
    const started = figures.now("process_start_time_seconds");
    this.facts.update([
      ["Clients connect to", status?.listeners.join(", ") || "—"],
      ["A write is acknowledged", DURABILITY[status?.durability ?? ""] ?? "—"],
      ["Data directory", status?.disk?.directory || "none"],
      ["Connections", `${exact(figures.now("fonn_connections"))} of ${exact(figures.now("fonn_connections_limit"))}`],
      ["Connections over HTTP", exact(figures.now("fonn_http_connections"))],
      [
        "99 of 100 reads over HTTP take",
        latency(figures.quantile(0.99, "fonn_http_request_duration_seconds", { operation: "read" }, LATELY_MS)),
      ],
      ["Resident memory", bytes(figures.now("process_resident_memory_bytes"))],
      ["Processor", cores === null ? "—" : `${cores.toFixed(2)} cores`],
      ["Open files", count(figures.now("process_open_fds"))],
      ["Started", started === null ? "—" : `${instant(started * 1000)}, ${duration(Number(status?.uptimeMs ?? 0) / 1000)} ago`],
    ]);
    this.settings.update(view);
    this.showAll(view);
  }

  private showAll({ figures }: View): void {
    if (!this.details.open) return;
    const wanted = this.filter.value.trim().toLowerCase();
    const rows = figures.all().filter(({ name }) => name.toLowerCase().includes(wanted));
    setShown(this.none, rows.length === 0);
    this.table.update(
      rows.map(({ name, value }) => ({
        key: name,
        cells: [name, Number.isInteger(value) ? exact(value) : String(Number(value.toPrecision(8)))],
      })),
    );
  }
}

const DURABILITY: Record<string, string> = {
  none: "once it is in RAM",
  batched: "once the kernel has it (survives a crash of the process)",
  fsync: "once the disk has it (survives a loss of power)",
};
