// What the cache saves, with the assumption beside it.

import { h, section, setText } from "../dom.js";
import { bytes, dollars, exact, hours, UNKNOWN } from "../format.js";
import { savings } from "../savings.js";
import type { Actions, Panel, View } from "../view.js";
import { Facts } from "./facts.js";

export class SavingsPanel implements Panel {
  readonly element: HTMLElement;
  private readonly facts = new Facts();
  private readonly seconds: HTMLInputElement;
  private readonly reads = h("span");

  constructor(actions: Actions, secondsPerHit: number) {
    this.seconds = h("input", {
      id: "seconds-per-hit",
      type: "number",
      min: 0,
      max: 3600,
      step: "any",
      inputmode: "decimal",
      value: secondsPerHit,
      input: () => {
        const value = this.seconds.valueAsNumber;
        if (Number.isFinite(value) && value >= 0 && value <= 3600) {
          actions.assume({ ...this.assumptions, secondsPerHit: value });
        }
      },
    });
    this.element = section(
      "savings",
      "What it saves",
      this.facts.element,
      h(
        "p",
        { class: "note" },
        h("label", { for: "seconds-per-hit" }, "Assumed: each hit spares "),
        this.seconds,
        " s of compiling. ",
        this.reads,
      ),
    );
  }

  private assumptions = { secondsPerHit: 0, dollarsPerRead: 0 };

  update({ figures, assumptions }: View): void {
    this.assumptions = assumptions;
    const found = savings(figures, assumptions);
    const perMillion = dollars(assumptions.dollarsPerRead * 1e6);
    setText(this.reads, `Each hit from RAM or disk spares one read from a bucket at ${perMillion} a million.`);
    this.facts.update([
      ["Hits since start", exact(found?.hits)],
      ["Compile time", hours(found?.compileSeconds)],
      ["Sent to clients", bytes(found?.servedBytes)],
      ["Reads from a bucket", dollars(found?.readsDollars)],
      ["Spent on requests", found?.spentDollars === null ? "nothing: no bucket" : found ? dollars(found.spentDollars) : UNKNOWN],
    ]);
  }
}
