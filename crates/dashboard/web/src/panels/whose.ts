// Whose figures these are, where one member was asked for, and the way back.

import { h } from "../dom.js";
import { ANYBODY_HREF } from "../member.js";

export function whose(member: string): HTMLElement {
  return h(
    "section",
    { class: "whose", "aria-label": "Member shown" },
    h("p", {}, "This is the member ", h("b", {}, member), `, asked by way of ${location.host}.`),
    h("a", { href: ANYBODY_HREF }, `Back to ${location.host}`),
  );
}
