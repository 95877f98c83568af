// Names with values, one a line.

import { h, setText } from "../dom.js";

export class Facts {
  readonly element = h("dl", { class: "facts" });
  private values = new Map<string, HTMLElement>();

  update(rows: [string, string][]): void {
    const names = rows.map(([name]) => name);
    if (names.join("\n") !== [...this.values.keys()].join("\n")) {
      this.values = new Map(names.map((name) => [name, h("dd")]));
      const pairs = [...this.values].map(([name, value]) => h("div", {}, h("dt", {}, name), value));
      this.element.replaceChildren(...pairs);
    }
    for (const [name, value] of rows) {
      const element = this.values.get(name);
      if (element) setText(element, value);
    }
  }
}
