// Curves over time, on uPlot.
//
// The picture is for eyes; the same figures stand beside it as text, which the arrow keys move through.

import uPlot from "uplot";
import { h, setShown, setText, swatch } from "./dom.js";
import { clock, UNKNOWN } from "./format.js";

export interface Curve {
  title: string;
  /** The custom property of its color, like `--ram`. */
  color: string;
  format(value: number | null): string;
  /** Drawn as an area on top of the curves before it. */
  stacked?: boolean;
}

export interface Options {
  title: string;
  curves: Curve[];
  /** Marks of the value axis. */
  axis(value: number): string;
  /** Bounds of the values; free if missing. */
  range?: [number, number];
  logarithmic?: boolean;
  /** Said in the place of curves where there are none. */
  empty: string;
}

const HEIGHT = 190;
/** Distances of the marks on the time axis, in seconds: its marks show minutes. */
const TIME_STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200];

/** A chart with title and legend. `times` are seconds; each curve has a value or a gap for each. */
export class Chart {
  readonly element: HTMLElement;
  private readonly plot: HTMLElement;
  private readonly when: HTMLElement;
  private readonly values: HTMLElement[];
  private readonly empty: HTMLElement;
  private uplot: uPlot | null = null;
  private times: number[] = [];
  private columns: (number | null)[][] = [];
  /** The place that a reader points at; the newest if nothing. */
  private pointed: number | null = null;

  constructor(private readonly options: Options) {
    this.plot = h("div", { class: "plot" });
    this.when = h("span", { class: "when" }, "now");
    this.values = options.curves.map(() => h("b", {}, UNKNOWN));
    const legend = options.curves.map((curve, at) =>
      h(
        "li",
        {},
        swatch(`var(${curve.color})`),
        `${curve.title} `,
        this.values[at] ?? null,
      ),
    );
    const id = `chart-${options.title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
    const described = `${id}-legend`;
    this.empty = h("p", { class: "chart-empty", hidden: true }, options.empty);
    const frame = h(
      "div",
      {
        class: "chart-frame",
        tabindex: 0,
        role: "img",
        "aria-label": `${options.title} over time; the arrow keys move through it`,
        "aria-describedby": described,
        keydown: (event) => this.move(event as KeyboardEvent),
        blur: () => this.point(null),
      },
      this.plot,
    );
    this.element = h(
      "section",
      { class: "panel chart", "aria-labelledby": id },
      h("div", { class: "chart-head" }, h("h2", { id }, options.title), this.when),
      h("ul", { class: "legend", id: described }, ...legend),
      h("div", { class: "chart-area" }, frame, this.empty),
    );
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  update(times: number[], columns: (number | null)[][]): void {
    this.times = times;
    this.columns = columns;
    if (this.pointed !== null && this.pointed >= times.length) this.pointed = null;
    this.uplot?.setData(this.drawn());
    setShown(this.empty, columns.every((column) => column.every((value) => value === null)));
    this.legend();
  }

  /** Colors come from the style sheet, so another theme needs another plot. */
  redraw(): void {
    const width = Math.floor(this.plot.clientWidth);
    if (width === 0) return;
    this.uplot?.destroy();
    this.uplot = new uPlot(this.plotOptions(width), this.drawn(), this.plot);
    this.resize();
  }

  private resize(): void {
    const width = Math.floor(this.plot.clientWidth);
    if (width === 0) return;
    if (this.uplot === null) this.redraw();
    else if (this.uplot.width !== width) this.uplot.setSize({ width, height: HEIGHT });
  }

  /** Stacked curves are drawn from the highest sum down, each over the one before. */
  private drawn(): uPlot.AlignedData {
    const sums: (number | null)[][] = [];
    let below: (number | null)[] | null = null;
    this.options.curves.forEach((curve, at) => {
      const column = this.columns[at] ?? [];
      if (!curve.stacked) {
        sums.push(column);
        return;
      }
      const base: (number | null)[] | null = below;
      below = column.map((value, place) => (value === null ? null : value + (base?.[place] ?? 0)));
      sums.push(below);
    });
    return [this.times, ...this.order().map((at) => sums[at] ?? [])] as uPlot.AlignedData;
  }

  private order(): number[] {
    const places = this.options.curves.map((_, at) => at);
    return this.options.curves[0]?.stacked ? places.reverse() : places;
  }

  private plotOptions(width: number): uPlot.Options {
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const { options } = this;
    const series = this.order().map((at): uPlot.Series => {
      const curve = options.curves[at];
      const stroke = color(curve?.color ?? "--text");
      return {
        stroke,
        width: curve?.stacked ? 0 : 1.75,
        ...(curve?.stacked ? { fill: stroke } : {}),
        points: { show: false },
        spanGaps: false,
      };
    });
    const axis: uPlot.Axis = {
      stroke: color("--muted"),
      grid: { stroke: color("--grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    return {
      width,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: !options.curves[0]?.stacked } },
      scales: {
        x: { time: true },
        y: {
          distr: options.logarithmic ? 3 : 1,
          range: (_, min, max) => this.range(min, max),
        },
      },
      axes: [
        { ...axis, size: 26, space: 42, incrs: TIME_STEPS, values: (_, marks) => marks.map((mark) => clock(mark * 1000).slice(0, 5)) },
        {
          ...axis,
          size: 58,
          space: options.logarithmic ? 22 : 32,
          values: (_, marks) => marks.map((mark) => (mark === null ? "" : options.axis(mark))),
          ...(options.logarithmic ? { filter: onlyPowersOfTen } : {}),
        },
      ],
      series: [{}, ...series],
      hooks: { setCursor: [(plot) => this.hover(plot)] },
    };
  }

  private range(min: number | null, max: number | null): [number, number] {
    if (this.options.range) return this.options.range;
    if (this.options.logarithmic) {
      if (min === null || max === null || !(min > 0)) return [1e-5, 1e-2];
      return [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max * 1.01))];
    }
    return [0, max === null || max === 0 ? 1 : max * 1.1];
  }

  private hover(plot: uPlot): void {
    if (document.activeElement === this.plot.parentElement && plot.cursor.left === -10) return;
    this.pointed = plot.cursor.idx ?? null;
    if ((plot.cursor.left ?? -1) < 0) this.pointed = null;
    this.legend();
  }

  private move(event: KeyboardEvent): void {
    const last = this.times.length - 1;
    const at = this.pointed ?? last;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.point(Math.min(Math.max(to, 0), last));
  }

  private point(place: number | null): void {
    this.pointed = place;
    const time = place === null ? undefined : this.times[place];
    const left = time === undefined ? -10 : (this.uplot?.valToPos(time, "x") ?? -10);
    this.uplot?.setCursor({ left, top: place === null ? -10 : 10 }, false);
    this.legend();
  }

  private legend(): void {
    const place = this.pointed ?? this.times.length - 1;
    const time = this.times[place];
    setText(this.when, this.pointed === null || time === undefined ? "now" : clock(time * 1000));
    this.options.curves.forEach((curve, at) => {
      const value = this.columns[at]?.[place] ?? null;
      const element = this.values[at];
      if (element) setText(element, curve.format(value));
    });
  }
}

/** Logarithmic axes have marks between the powers of ten; numbers there would not fit. */
function onlyPowersOfTen(_: uPlot, marks: number[]): (number | null)[] {
  return marks.map((mark) => (Number.isInteger(Math.round(Math.log10(mark) * 1e6) / 1e6) ? mark : null));
}

/** The instants of a chart: `count` steps that end at `endMs`, at whole multiples of `stepMs`. */
export function grid(endMs: number, stepMs: number, count: number): number[] {
  const last = Math.floor(endMs / stepMs) * stepMs;
  return Array.from({ length: count }, (_, at) => last - (count - 1 - at) * stepMs);
}
