// The cluster: members, who leads, whose slots are whose, and what can be done about a member.

import { brief, isUnimplemented } from "../api.js";
import { ask } from "../dialog.js";
import { h, icon, section, setShown, swatch, Table } from "../dom.js";
import { duration, exact, percent, plural, UNKNOWN } from "../format.js";
import { MemberState } from "../gen/fonn/v1/cluster_pb.js";
import type { MapEntry, MembershipMapResponse } from "../gen/fonn/v1/membership_pb.js";
import type { RouterStatusResponse } from "../gen/fonn/v1/router_pb.js";
import { MEMBER_HEADER, memberHref } from "../member.js";
import type { Actions, Panel, View } from "../view.js";
import { Facts } from "./facts.js";
import { Code, ConnectError } from "@connectrpc/connect";

const SLOTS = 16_384;

/** Of members, as owners of slots. */
const COLORS = ["#2f6fd6", "#189a80", "#b4479b", "#c77d14", "#7a5fd0", "#6b7685"];

const STATES: Record<MemberState, { word: string; icon: "ok" | "warning" | "error" | "info" }> = {
  [MemberState.UNSPECIFIED]: { word: "—", icon: "info" },
  [MemberState.JOINING]: { word: "joining", icon: "info" },
  [MemberState.ACTIVE]: { word: "active", icon: "ok" },
  [MemberState.DRAINING]: { word: "draining", icon: "warning" },
  [MemberState.DOWN]: { word: "down", icon: "error" },
};

/** Which topology a router applies, since when, and from whom it has it. */
export function routerLine(router: RouterStatusResponse): string {
  const follows = router.followed.length > 0 ? `follows ${router.followed.join(", ")}` : "hears no member";
  if (router.epoch === 0n) return `knows no topology yet, ${follows}`;
  const since = duration(Number(router.nowMs - router.appliedAtMs) / 1_000);
  const behind = router.behindMs > 0n ? `, may be behind by ${duration(Number(router.behindMs) / 1_000)}` : "";
  return `applies epoch ${router.epoch} since ${since}, ${follows}${behind}`;
}

export class Cluster implements Panel {
  readonly element: HTMLElement;
  private readonly facts = new Facts();
  private readonly strip = h("div", { class: "slots", role: "img" });
  private readonly legend = h("ul", { class: "legend" });
  private readonly table = new Table("Members", [
    "Member", "State", "Zone", ">Weight", ">Slots first", ">Slots in all", "Clients connect to",
    "Change",
  ]);
  private readonly buttons = new Map<string, HTMLElement>();
  private members: MapEntry[] = [];
  private exists = true;
  private hasRouter = true;

  constructor(private readonly actions: Actions) {
    this.element = section(
      "cluster",
      "Cluster",
      this.facts.element,
      this.strip,
      this.legend,
      this.table.element,
    );
    this.element.hidden = true;
  }

  /** The map as the node has it; nothing where there is no cluster, and then it is not asked again. */
  async ask(): Promise<MembershipMapResponse | null> {
    if (!this.exists) return null;
    try {
      return await this.actions.api.membership.map({}, brief);
    } catch (error) {
      const alone = ConnectError.from(error).code === Code.FailedPrecondition;
      if (alone || isUnimplemented(error)) {
        this.exists = false;
        return null;
      }
      throw error;
    }
  }

  /** The router that serves the page; nothing where a node does, and then it is not asked again. */
  async askRouter(): Promise<RouterStatusResponse | null> {
    if (!this.hasRouter) return null;
    try {
      // Without a member: the process that serves the page is asked itself.
      return await this.actions.api.router.status({}, { ...brief, headers: { [MEMBER_HEADER]: "" } });
    } catch (error) {
      if (!isUnimplemented(error)) throw error;
      this.hasRouter = false;
      return null;
    }
  }

  update({ figures, membership, router, source }: View): void {
    setShown(this.element, membership !== null);
    if (!membership) return;
    this.members = membership.members;
    const { status } = membership;
    const heard = figures.now("fonn_cluster_heartbeat_age_seconds");
    this.facts.update([
      ["Figures of", source ?? UNKNOWN],
      ["Leader", status?.leader || "none: nothing can be changed"],
      ["Leader heard", heard === null ? UNKNOWN : status?.leader === source ? "it leads" : `${duration(heard)} ago`],
      ["Term", exact(figures.now("fonn_cluster_term"))],
      ["Voters", status?.voters.join(", ") || UNKNOWN],
      ["Members", `${exact(status?.membersUp)} of ${exact(status?.members)} up`],
      ["Owners of each slot", exact(membership.replicas)],
      ["Version of the map", exact(Number(status?.epoch ?? 0))],
      ...(router === null ? [] : [["This router", routerLine(router)] as [string, string]]),
    ]);
    this.showSlots();
    this.table.update(this.members.map((entry) => this.row(entry, source)));
  }

  /** A member's part of the strip is its part of the slots; the order is that of the table. */
  private showSlots(): void {
    const owners = this.members.filter((entry) => entry.slotsFirst > 0);
    const key = owners.map((entry) => `${entry.member?.id} ${entry.slotsFirst}`).join();
    if (this.strip.dataset["key"] === key) return;
    this.strip.dataset["key"] = key;
    this.strip.replaceChildren(
      ...owners.map((entry) => {
        const part = h("span", { class: "owner" });
        part.style.background = this.color(entry);
        part.style.flexGrow = String(entry.slotsFirst);
        return part;
      }),
    );
    const shares = owners.map((entry) => `${entry.member?.id} ${percent(entry.slotsFirst / SLOTS)}`);
    this.strip.setAttribute("aria-label", `Slots by first owner: ${shares.join(", ")}`);
    this.legend.replaceChildren(
      ...owners.map((entry, at) =>
        h("li", {}, swatch(this.color(entry)), shares[at] ?? ""),
      ),
    );
  }

  private color(entry: MapEntry): string {
    return COLORS[this.members.indexOf(entry) % COLORS.length] ?? "";
  }

  private row(entry: MapEntry, shown: string | null): { key: string; cells: (string | Node)[] } {
    const member = entry.member;
    const id = member?.id ?? "";
    const state = member?.state ?? MemberState.UNSPECIFIED;
    return {
      key: id,
      cells: [
        this.link(id, id === shown),
        this.state(id, state),
        member?.zone ?? "",
        exact(member?.weight),
        `${exact(entry.slotsFirst)} (${percent(entry.slotsFirst / SLOTS)})`,
        exact(entry.slots),
        member?.clientAddress ?? "",
        this.menu(id, state),
      ],
    };
  }

  /** Kept while nothing changes, so that the focus stays where it is. */
  private kept(key: string, make: () => HTMLElement): HTMLElement {
    let element = this.buttons.get(key);
    if (!element) {
      element = make();
      this.buttons.set(key, element);
    }
    return element;
  }

  /** Goes to the figures of a member. */
  private link(id: string, shown: boolean): HTMLElement {
    return this.kept(`${id}/link/${shown}`, () => {
      const link = h("a", { href: memberHref(id), "aria-label": `Figures of ${id}`, "aria-current": shown }, id);
      return shown ? h("span", {}, link, " (shown)") : link;
    });
  }

  private state(id: string, state: MemberState): HTMLElement {
    const { word, icon: shape } = STATES[state] ?? STATES[MemberState.UNSPECIFIED];
    return this.kept(`${id}/state/${state}`, () =>
      h("span", { class: "state", "data-level": shape }, icon(shape), word),
    );
  }

  private menu(id: string, state: MemberState): HTMLElement {
    const draining = state === MemberState.DRAINING;
    return this.kept(`${id}/menu/${draining}`, () => {
      const button = (text: string, click: () => Promise<void>) =>
        h(
          "button",
          {
            type: "button",
            "aria-label": `${text.replace("…", "")} ${id}`,
            click: () => void click(),
          },
          text,
        );
      return h(
        "span",
        { class: "buttons-inline" },
        draining
          ? button("Undo drain…", () => this.drain(id, true))
          : button("Drain…", () => this.drain(id, false)),
        button("Weight…", () => this.weight(id)),
        button("Remove…", () => this.remove(id)),
      );
    });
  }

  private async drain(node: string, undo: boolean): Promise<void> {
    const slots = this.members.find((entry) => entry.member?.id === node)?.slotsFirst ?? 0;
    await this.change(
      undo ? `Give ${node} its slots back?` : `Drain ${node}?`,
      undo
        ? "It owns slots again, as its weight says."
        : `Its ${plural(slots, "slot")} go to other members. It goes on answering for what it has, so that nothing becomes cold.`,
      undo ? "Give back" : "Drain",
      async () => (await this.actions.api.membership.drain({ node, undo }, brief)).message,
    );
  }

  private async remove(node: string): Promise<void> {
    await this.change(
      `Remove ${node} for good?`,
      "It can come back only with an empty disk. What it alone has is lost. A member that is only to be restarted needs no removal.",
      "Remove",
      async () => (await this.actions.api.membership.remove({ node }, brief)).message,
      true,
    );
  }

  private async weight(node: string): Promise<void> {
    const now = this.members.find((entry) => entry.member?.id === node)?.member?.weight ?? 100;
    const input = h("input", { id: "weight", type: "number", min: 0, max: 65_535, value: now, required: true });
    await this.change(
      `Weight of ${node}`,
      "Its share of the slots relative to the others'. Only the slots that must move do. It holds until the member starts again with another --weight.",
      "Set weight",
      async () =>
        (await this.actions.api.membership.setWeight({ node, weight: input.valueAsNumber }, brief)).message,
      false,
      h("p", { class: "field" }, h("label", { for: "weight" }, "Weight, 0 owns none"), input),
    );
  }

  private async change(
    title: string,
    text: string,
    action: string,
    perform: () => Promise<string>,
    dangerous = false,
    content?: HTMLElement,
  ): Promise<void> {
    let message = "";
    const done = await ask({
      title,
      text,
      action,
      dangerous,
      ...(content ? { content } : {}),
      perform: async () => {
        message = await perform();
      },
    });
    if (!done) return;
    this.actions.say(message || "Done.");
    this.actions.refresh();
  }
}

