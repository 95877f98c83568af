// Whether all is well: the first thing that is read.

import { h, icon, setAttribute, setShown, setText } from "../dom.js";
import { verdict, wholeCluster } from "../health.js";
import { together } from "../members.js";
import type { Panel, View } from "../view.js";

export class VerdictPanel implements Panel {
  readonly element: HTMLElement;
  private readonly picture = h("span", { class: "picture" });
  private readonly title = h("h1");
  private readonly sentence = h("p");
  private readonly cluster = h("p", { class: "whole", hidden: true });
  private readonly problems = h("ul", { class: "problems" });
  private shown = "";

  constructor() {
    this.element = h(
      "section",
      { class: "verdict", id: "health", "aria-label": "Health" },
      this.picture,
      // Only the title interrupts a reader: the sentence changes every second.
      h("div", {}, h("div", { role: "status" }, this.title), this.sentence, this.cluster, this.problems),
    );
  }

  update(view: View): void {
    const found = verdict(view);
    setAttribute(this.element, "data-level", found.level);
    setText(this.title, found.title);
    setText(this.sentence, found.sentence);
    const all = view.connection.state === "live" ? together(view.standings) : null;
    setShown(this.cluster, all !== null);
    if (all) setText(this.cluster, wholeCluster(all, view.assumptions));
    const key = JSON.stringify([found.level, found.problems]);
    if (key === this.shown) return;
    this.shown = key;
    this.picture.replaceChildren(icon(found.level));
    this.problems.replaceChildren(
      ...found.problems.map((problem) =>
        h("li", { "data-level": problem.level }, icon(problem.level), h("a", { href: `#${problem.section}` }, problem.text)),
      ),
    );
  }
}
