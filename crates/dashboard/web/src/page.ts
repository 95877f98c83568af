// A page about one process, which it follows, and draws what that says once a second.

import { brief, connect, isUnimplemented } from "./api.js";
import { h, setAttribute, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { Cluster } from "./panels/cluster.js";
import { Codecs } from "./panels/codecs.js";
import { Cold } from "./panels/cold.js";
import { Events } from "./panels/events.js";
import { Header } from "./panels/header.js";
import { Headline } from "./panels/headline.js";
import { Keys } from "./panels/keys.js";
import { MembersPanel } from "./panels/members.js";
import { Namespaces } from "./panels/namespaces.js";
import { NodePanel } from "./panels/node.js";
import { SavingsPanel } from "./panels/savings.js";
import { Tiers } from "./panels/tiers.js";
import { Tools } from "./panels/tools.js";
import { Trends } from "./panels/trends.js";
import { VerdictPanel } from "./panels/verdict.js";
import { whose } from "./panels/whose.js";
import type { Session } from "./login.js";
import { Members, ROUND_MS } from "./members.js";
import { oneAtATime } from "./once.js";
import { load, save } from "./savings.js";
import { follow } from "./stream.js";
import { ask as askTools, asked } from "./tools.js";
import type { Actions, Panel, View } from "./view.js";

/** Settings and state change seldom; figures come by themselves. */
const STATUS_MS = 2_000;
/** Builds take longer than this. */
const TOOLS_MS = 5_000;
/** Events kept here; the process keeps as many. */
const EVENTS_MAX = 500;
/** What events about members are about. */
const CLUSTER_TOPIC = "cluster";

/**
 * Fills the body with the page about a member, or about whoever answers; until `signal` is aborted. `windowMs` is how much of
 * the past is shown at first, and `setWindow` gets what is chosen.
 */
export function show(
  session: Session,
  member: string | null,
  windowMs: number,
  setWindow: (windowMs: number) => void,
  signal: AbortSignal,
): void {
  const view: View = {
    member,
    source: null,
    connection: { state: "connecting" },
    notReady: "",
    figures: new Figures(),
    status: null,
    membership: null,
    router: null,
    standings: [],
    namespaces: null,
    tools: null,
    events: [],
    windowMs,
    assumptions: load(localStorage),
  };
  const api = connect(location.origin, {
    login: () => session.header(),
    // A router has any member answer: all else is asked of the one that the figures are of.
    member: (isStream) => member ?? (isStream ? null : view.source),
  });
  const toast = h("p", { class: "toast", role: "status" });
  const actions: Actions = {
    api,
    refresh,
    say: (text, level = "ok") => {
      setText(toast, text);
      setAttribute(toast, "data-level", level);
    },
    assume: (assumptions) => {
      view.assumptions = assumptions;
      save(localStorage, assumptions);
      draw();
    },
    setWindow: (chosen) => {
      view.windowMs = chosen;
      setWindow(chosen);
      draw();
    },
  };

  const trends = new Trends();
  const cold = new Cold();
  const redraw = () => {
    trends.redraw();
    cold.redraw();
  };
  const header = new Header(actions, redraw);
  const health = new VerdictPanel();
  const columns: Panel[][] = [
    [new Tiers(), new Tools(), new Namespaces(), new Codecs(actions), cold, new Keys(actions)],
    [new Events(), new SavingsPanel(actions, view.assumptions.secondsPerHit), new NodePanel(actions)],
  ];
  const headline = new Headline();
  const cluster = new Cluster(actions);
  const each = new MembersPanel();
  const panels: Panel[] = [header, health, headline, trends, cluster, each, ...columns.flat()];
  document.body.replaceChildren(
    h("a", { class: "skip", href: "#main" }, "Skip to the figures"),
    header.element,
    h(
      "main",
      { id: "main", tabindex: -1 },
      member === null ? null : whose(member),
      health.element,
      headline.element,
      trends.element,
      cluster.element,
      each.element,
      h("div", { class: "columns" }, ...columns.map((column) =>
        h("div", { class: "column" }, ...column.map((panel) => panel.element)),
      )),
    ),
    toast,
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw, { signal });

  let drawn = 0;
  function draw(): void {
    // Several things may have changed at once.
    if (drawn !== 0) return;
    drawn = requestAnimationFrame(() => {
      drawn = 0;
      if (signal.aborted) return;
      const state = view.connection.state;
      setAttribute(document.documentElement, "data-connection", state);
      const title = [state === "lost" ? "No connection" : null, member, "Fonn"];
      document.title = title.filter((it) => it !== null).join(" – ");
      for (const panel of panels) panel.update(view);
    });
  }

  const mayAsk = () => !signal.aborted && !document.hidden && view.connection.state === "live";

  const refreshStatus = oneAtATime(async () => {
    if (!mayAsk()) return;
    const [status, namespaces] = await Promise.allSettled([
      api.admin.status({}, brief),
      api.admin.listNamespaces({}, brief),
    ]);
    // Whether there is a connection is for the stream to say.
    if (status.status === "fulfilled") view.status = status.value;
    if (namespaces.status === "fulfilled") view.namespaces = namespaces.value;
    else if (isUnimplemented(namespaces.reason)) view.namespaces = null;
    draw();
  });

  const members = new Members();
  const askMembers = oneAtATime(async () => {
    if (!mayAsk()) return;
    await members.ask(api, signal, () => {
      view.standings = members.standings();
      draw();
    });
  });

  // Apart from the rest, which may take its time: a member that falls is to be seen at once.
  const refreshMap = oneAtATime(async () => {
    if (!mayAsk()) return;
    try {
      view.membership = await cluster.ask();
      if (view.membership !== null) view.router = await cluster.askRouter();
    } catch {
      return;
    }
    const known = view.standings.length;
    members.follow(view.membership);
    view.standings = members.standings();
    if (view.standings.length !== known) askMembers();
    draw();
  });

  const refreshTools = oneAtATime(async () => {
    if (!mayAsk()) return;
    view.tools = await askTools(api, asked(view));
    draw();
  });

  function refresh(): void {
    refreshStatus();
    refreshMap();
  }

  void follow(
    api,
    {
      begin: (source) => {
        // Of two members nothing can be added up.
        if (source !== view.source) {
          view.figures = new Figures();
          view.status = null;
          view.namespaces = null;
        }
        view.source = source;
        view.figures.beginStream();
        view.events = [];
        queueMicrotask(refresh);
        setTimeout(refreshTools, STATUS_MS);
      },
      message: (message) => {
        view.notReady = message.notReadyReason;
        view.events = [...view.events, ...message.events].slice(-EVENTS_MAX);
        view.figures.add(message);
        if (message.events.some((event) => event.topic === CLUSTER_TOPIC)) refreshMap();
        draw();
      },
      connection: (connection) => {
        const back = connection.state === "live" && view.connection.state !== "live";
        view.connection = connection;
        draw();
        if (back) refresh();
      },
      logIn: () => session.logIn(api),
    },
    signal,
  );
  const timers = [
    setInterval(refresh, STATUS_MS),
    setInterval(askMembers, ROUND_MS),
    setInterval(refreshTools, TOOLS_MS),
    // The gap in the curves grows while nobody talks.
    setInterval(() => view.connection.state === "lost" && draw(), 1_000),
  ];
  signal.addEventListener("abort", () => timers.forEach(clearInterval));
  draw();
}
