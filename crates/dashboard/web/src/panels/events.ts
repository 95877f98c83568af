// What happened lately.

import { h, icon, section, setShown } from "../dom.js";
import { instant } from "../format.js";
import { EventLevel, type Event } from "../gen/fonn/v1/telemetry_pb.js";
import type { Panel, View } from "../view.js";

/** More are behind a button. */
const FEW = 8;

const ICONS = {
  [EventLevel.UNSPECIFIED]: "info",
  [EventLevel.INFO]: "info",
  [EventLevel.WARNING]: "warning",
  [EventLevel.ERROR]: "error",
} as const;

const WORDS = {
  [EventLevel.UNSPECIFIED]: "",
  [EventLevel.INFO]: "",
  [EventLevel.WARNING]: "Warning: ",
  [EventLevel.ERROR]: "Error: ",
};

export class Events implements Panel {
  readonly element: HTMLElement;
  private readonly list = h("ol", { class: "events", "aria-label": "Events, newest first" });
  private readonly none = h("p", { class: "note" }, "Nothing yet.");
  private readonly more: HTMLButtonElement;
  private all = false;
  private shown = "";
  private events: Event[] = [];

  constructor() {
    this.more = h("button", {
      type: "button",
      class: "quiet",
      click: () => {
        this.all = !this.all;
        this.draw();
      },
    });
    this.element = section("events", "Events", this.none, this.list, this.more);
  }

  update({ events }: View): void {
    this.events = events;
    this.draw();
  }

  private draw(): void {
    const newest = this.events.slice().reverse();
    const visible = this.all ? newest : newest.slice(0, FEW);
    const key = `${this.all}/${newest[0]?.atMs}/${newest[0]?.sequence}/${newest.length}`;
    if (key === this.shown) return;
    this.shown = key;
    this.list.replaceChildren(...visible.map((event) => this.line(event)));
    setShown(this.none, newest.length === 0);
    setShown(this.more, newest.length > FEW);
    this.more.textContent = this.all ? "Show fewer" : `Show all ${newest.length}`;
  }

  private line(event: Event): HTMLElement {
    const at = Number(event.atMs);
    return h(
      "li",
      { "data-level": ICONS[event.level] ?? "info" },
      icon(ICONS[event.level] ?? "info"),
      h("time", { datetime: new Date(at).toISOString() }, instant(at)),
      h("span", { class: "topic" }, event.topic),
      h("span", { class: "message" }, `${WORDS[event.level] ?? ""}${event.message}`),
    );
  }
}
