// The top of the page: whose it is, whether it lives, and how it is shown.

import { h, setAttribute, setText } from "../dom.js";
import { duration } from "../format.js";
import { applyTheme, nextTheme, theme, THEME_WORDS } from "../theme.js";
import type { Actions, Panel, View } from "../view.js";

const WINDOWS = [
  { ms: 5 * 60_000, text: "5 min" },
  { ms: 60 * 60_000, text: "1 h" },
];

export class Header implements Panel {
  readonly element: HTMLElement;
  private readonly name = h("span", { class: "node-name" });
  private readonly live = h("span", { class: "live" }, "connecting");
  private readonly windows: HTMLButtonElement[];
  private readonly themeButton: HTMLButtonElement;

  constructor(actions: Actions, redraw: () => void) {
    this.windows = WINDOWS.map(({ ms, text }) =>
      h("button", { type: "button", click: () => actions.setWindow(ms) }, text),
    );
    this.themeButton = h("button", {
      type: "button",
      class: "quiet",
      click: () => {
        applyTheme(nextTheme());
        this.showTheme();
        redraw();
      },
    });
    this.showTheme();
    this.element = h(
      "header",
      { class: "top" },
      h("span", { class: "brand" }, "Fonn"),
      this.name,
      this.live,
      h("span", { class: "spring" }),
      h("a", { href: "#keys", class: "to-keys" }, "Look up a key"),
      h("div", { class: "segments", role: "group", "aria-label": "Time shown" }, ...this.windows),
      this.themeButton,
    );
  }

  update(view: View): void {
    const { status, connection, source } = view;
    const words = [location.host];
    if (source !== null) words.push(`member ${source}`);
    if (status) words.push(status.version, `up ${duration(Number(status.uptimeMs) / 1000)}`);
    setText(this.name, words.join(" · "));
    const states = { connecting: "connecting", live: "live", lost: "no connection" };
    setText(this.live, states[connection.state]);
    setAttribute(this.live, "data-state", connection.state);
    WINDOWS.forEach(({ ms }, at) => {
      const button = this.windows[at];
      if (button) setAttribute(button, "aria-pressed", String(view.windowMs === ms));
    });
  }

  private showTheme(): void {
    setText(this.themeButton, THEME_WORDS[theme()]);
    setAttribute(this.themeButton, "aria-label", `Colors: ${THEME_WORDS[theme()]}. Change`);
  }
}
