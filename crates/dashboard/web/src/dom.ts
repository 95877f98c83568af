// Elements without a framework. Text is only ever set as text: figures and names come from outside.

type Child = Node | string | null;
type Properties = Record<string, string | number | boolean | null | ((event: Event) => void)>;

/** An element with attributes (functions are listeners, `true` is an empty attribute) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") {
      element.addEventListener(name, value);
    } else {
      setAttribute(element, name, value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Sets an attribute, or removes it (`null`, `false`); the page is touched only if that changes it. */
export function setAttribute(
  element: Element,
  name: string,
  value: string | number | boolean | null,
): void {
  if (value === null || value === false) {
    element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Sets the text of an element; the page is touched only if that changes it. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows or hides an element. */
export function setShown(element: HTMLElement, shown: boolean): void {
  if (element.hidden === shown) element.hidden = !shown;
}

/** A picture of 16 by 16 out of the shapes that the page has; decoration only, so hidden from readers. */
export function icon(name: IconName): SVGSVGElement {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", `icon icon-${name}`);
  const path = document.createElementNS(namespace, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export type IconName = "ok" | "warning" | "error" | "info";

/** Outlines are told apart without color: a tick, a triangle, a cross, an i. */
const ICONS: Record<IconName, string> = {
  ok: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm3.6 5.2-4.2 4.9a.8.8 0 0 1-1.2 0L4.3 8.9l1.1-1 1.4 1.5 3.6-4.2Z",
  warning: "M8 1.2 15.4 14.4H.6ZM7.2 6v4h1.6V6Zm0 5.2v1.6h1.6v-1.6Z",
  error: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm2.9 8.8-1.1 1.1L8 9.1l-1.8 1.8-1.1-1.1L6.9 8 5.1 6.2l1.1-1.1L8 6.9l1.8-1.8 1.1 1.1L9.1 8Z",
  info: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1Zm-.8 3h1.6v1.6H7.2Zm0 2.8h1.6V12H7.2Z",
};

export interface Row {
  key: string;
  cells: (string | Node)[];
}

/** What is in a column with `>` in front of its title stands right, as numbers do. */
const classOf = (column: string) => (column.startsWith(">") ? "number" : "");

/** A table whose rows are patched, so that a button in it keeps the focus. */
export class Table {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private rows = new Map<string, HTMLTableRowElement>();

  constructor(
    caption: string,
    private readonly columns: readonly string[],
  ) {
    const heads = columns.map((column) =>
      h("th", { scope: "col", class: classOf(column) }, column.replace(/^>/, "")),
    );
    const table = h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...heads)),
      this.body,
    );
    // Narrow screens scroll it; for keyboards that takes the focus.
    this.element = h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${caption}` },
      table,
    );
  }

  update(rows: Row[]): void {
    const kept = new Map<string, HTMLTableRowElement>();
    for (const row of rows) {
      kept.set(row.key, this.patch(this.rows.get(row.key), row));
    }
    for (const [key, element] of this.rows) if (!kept.has(key)) element.remove();
    [...kept.values()].forEach((element, place) => {
      if (this.body.children[place] !== element) {
        this.body.insertBefore(element, this.body.children[place] ?? null);
      }
    });
    this.rows = kept;
  }

  private patch(existing: HTMLTableRowElement | undefined, row: Row): HTMLTableRowElement {
    const element = existing ?? this.emptyRow(row.key);
    row.cells.forEach((content, place) => {
      const cell = element.children[place];
      if (!cell) return;
      if (typeof content === "string") setText(cell, content);
      else if (cell.firstChild !== content) cell.replaceChildren(content);
    });
    return element;
  }

  private emptyRow(key: string): HTMLTableRowElement {
    const cells = this.columns.map((column, place) =>
      place === 0 ? h("th", { scope: "row" }) : h("td", { class: classOf(column) }),
    );
    return h("tr", { "data-key": key }, ...cells);
  }
}

/** The mark of a color in a legend. */
export function swatch(color: string): HTMLElement {
  const mark = h("span", { class: "swatch", "aria-hidden": "true" });
  mark.style.background = color;
  return mark;
}

/** A section of the page with its heading. */
export function section(id: string, title: string, ...children: Child[]): HTMLElement {
  const heading = `${id}-title`;
  return h(
    "section",
    { id, class: "panel", "aria-labelledby": heading },
    h("h2", { id: heading }, title),
    ...children,
  );
}
