#!/usr/bin/env python3
"""Writes dashboards/*.json. With --check: fails if they are not what would be written.

A dashboard is rows of panels; a panel is a title, a unit and queries. Everything else is the same everywhere and is
said once, here. Queries are checked against docs/metrics.md by deploy/checks/metrics.py.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
RATE = "$__rate_interval"
NODE = 'cluster=~"$cluster", instance=~"$instance"'
CLUSTER = 'cluster=~"$cluster"'


def rate(metric, by, selector="", where=NODE):
    """Sum of the rates of a counter, by labels."""
    more = f", {selector}" if selector else ""
    return f"sum by ({by}) (rate({metric}{{{where}{more}}}[{RATE}]))"


def quantile(q, metric, by="", selector="", where=NODE):
    more = f", {selector}" if selector else ""
    labels = ", ".join(it for it in (by, "le") if it)
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{where}{more}}}[{RATE}])))"


def target(index, query, legend, instant=False):
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "expr": query,
        "legendFormat": legend,
        "range": not instant,
        "instant": instant,
        "editorMode": "code",
    }


def thresholds(steps):
    """[(None, "green"), (0.8, "red")]: color from a value on."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


GOOD = [(None, "green")]


def panel(kind, title, unit, queries, description, width, height, options, steps=None, custom=None, limits=None):
    instant = kind in ("stat", "gauge")
    defaults = {"unit": unit, "thresholds": thresholds(steps or GOOD)}
    if steps:
        defaults["color"] = {"mode": "thresholds"}
    else:
        defaults["color"] = {"mode": "palette-classic"}
    if custom:
        defaults["custom"] = custom
    defaults.update(limits or {})
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [target(i, query, legend, instant) for i, (query, legend) in enumerate(queries)],
    }


def graph(title, unit, *queries, about="", stacked=False, width=8, top=None):
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 25 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    limits = {"min": 0}
    if top is not None:
        limits["max"] = top
    return panel("timeseries", title, unit, queries, about, width, 8, options, custom=custom, limits=limits)


def stat(title, unit, query, about="", steps=None, width=4, legend=""):
    options = {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "orientation": "auto",
        "textMode": "auto",
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }
    return panel("stat", title, unit, [(query, legend)], about, width, 4, options, steps=steps or GOOD)


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"w": WIDTH, "h": 1}}


def place(panels):
    """From left to right and from top to bottom, a row below what is above it."""
    x = y = height = 0
    for number, it in enumerate(panels, 1):
        at = it["gridPos"]
        if x + at["w"] > WIDTH:
            x, y, height = 0, y + height, 0
        it["id"] = number
        it["gridPos"] = {"x": x, "y": y, **at}
        x, height = x + at["w"], max(height, at["h"])
    return panels


def variable(name, label, query):
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
        "options": [],
        "regex": "",
        "hide": 0,
    }


def dashboard(name, title, about, panels, of_nodes=True):
    variables = [
        {
            "type": "datasource",
            "name": "datasource",
            "label": "Prometheus",
            "query": "prometheus",
            "options": [],
            "regex": "",
            "refresh": 1,
            "multi": False,
            "includeAll": False,
            "hide": 0,
        },
        variable("cluster", "Cluster", "label_values(fonn_connections_limit, cluster)"),
    ]
    if of_nodes:
        instances = 'label_values(fonn_connections_limit{cluster=~"$cluster"}, instance)'
        variables.append(variable("instance", "Node", instances))
    return {
        "uid": f"fonn-{name}",
        "title": title,
        "description": about,
        "tags": ["fonn"],
        "timezone": "browser",
        "editable": False,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "schemaVersion": 41,
        "version": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "Fonn",
                "tags": ["fonn"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "",
                "url": "",
            }
        ],
        "templating": {"list": variables},
        "panels": place(panels),
    }


RATIO = [(None, "red"), (0.4, "orange"), (0.7, "green")]
NONE_IS_GOOD = [(None, "green"), (1, "red")]
FILL = [(None, "green"), (1.0, "orange"), (1.1, "red")]

NODE_PANELS = [
    row("Serving"),
    stat("Hit ratio", "percentunit", f"avg(instance:fonn_hit_ratio:rate5m{{{NODE}}})", "Of gets, over five minutes.", RATIO),
    stat("Gets", "reqps", f"sum(instance:fonn_hits:rate5m{{{NODE}}} + instance:fonn_misses:rate5m{{{NODE}}})"),
    stat("99 % of requests within", "s", f"max(instance:fonn_request_duration_seconds:p99_5m{{{NODE}}})",
         "Waiting for disk and bucket included.", [(None, "green"), (0.1, "orange"), (0.5, "red")]),
    stat("Connections", "short", f"sum(fonn_connections{{{NODE}}})"),
    stat("Refusals", "reqps", f"sum(instance:fonn_refusals:rate5m{{{NODE}}})", "Commands answered with an error.",
         [(None, "green"), (0.01, "orange"), (1, "red")]),
    stat("Up for", "s", f"min(time() - process_start_time_seconds{{job=\"fonn-node\", {NODE}}})"),
    graph("Hits by tier, and misses", "reqps", (rate("fonn_hits_total", "tier"), "{{tier}}"),
          (rate("fonn_misses_total", "reason"), "miss: {{reason}}"), stacked=True, width=12),
    graph("Hit ratio by node", "percentunit", (f"instance:fonn_hit_ratio:rate5m{{{NODE}}}", "{{instance}}"), width=12, top=1),
    graph("Requests: percentiles", "s", *[(quantile(q, "fonn_request_duration_seconds"), name)
                                          for q, name in ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"))],
          about="From the arrival of a request to its reply."),
    graph("Slower tiers: 99th percentile", "s", (quantile(0.99, "fonn_tier_get_duration_seconds", "tier"), "{{tier}}")),
    graph("Commands", "reqps", (rate("fonn_commands_total", "command"), "{{command}}"), stacked=True),
    graph("Traffic", "Bps", (rate("fonn_received_bytes_total", "instance"), "{{instance}} in"),
          (rate("fonn_sent_bytes_total", "instance"), "{{instance}} out")),
    graph("Refusals and errors", "reqps", (rate("fonn_refusals_total", "reason"), "{{reason}}"),
          (rate("fonn_protocol_errors_total", "instance"), "{{instance}} protocol error")),
    graph("Connections", "short", (f"fonn_connections{{{NODE}}}", "{{instance}}"),
          (rate("fonn_connections_rejected_total", "instance"), "{{instance}} closed at once, a second"),
          (rate("fonn_connections_stalled_total", "instance"), "{{instance}} stalled, a second")),
    graph("Logins that failed", "reqps", (rate("fonn_authentication_failures_total", "instance"), "{{instance}}")),
    row("Namespaces"),
    graph("Requests by namespace", "reqps", (rate("fonn_namespace_requests_total", "namespace, result"), "{{namespace}} {{result}}"), stacked=True,
          about="The namespace without a name is all others."),
    graph("Of its quota", "percentunit",
          (f"max by (namespace, instance) (fonn_namespace_used_bytes{{{NODE}}} / fonn_namespace_quota_bytes{{{NODE}}})", "{{instance}} {{namespace}}"),
          about="On each node. What is written past it costs the namespace its own oldest entries."),
    graph("Lost to quotas", "ops", (rate("fonn_namespace_quota_evictions_total", "namespace"), "{{namespace}} entries lost"),
          (rate("fonn_namespace_quota_refusals_total", "namespace"), "{{namespace}} writes refused")),
    row("Build tools"),
    graph("Lookups by tool", "reqps", (rate("fonn_tool_lookups_total", "tool, outcome"), "{{tool}} {{outcome}}"), stacked=True,
          about="Over HTTP and the Remote Execution API."),
    graph("Hit ratio by tool", "percentunit",
          (rate("fonn_tool_lookups_total", "tool", 'outcome="hit"') + " / (" + rate("fonn_tool_lookups_total", "tool") + " > 0)", "{{tool}}"), top=1),
    graph("Bytes by tool", "Bps", (rate("fonn_tool_served_bytes_total", "tool"), "{{tool}} served"),
          (rate("fonn_tool_stored_bytes_total", "tool"), "{{tool}} stored"), about="Served bytes did not have to be made again."),
    graph("Responses by status", "reqps", (rate("fonn_http_requests_total", "status"), "{{status}}"), stacked=True),
    graph("Over HTTP: 99th percentile", "s", (quantile(0.99, "fonn_http_request_duration_seconds", "operation"), "{{operation}}"),
          about="From the head of a request to the head of its response. A write has sent its value by then."),
    graph("Remote Execution API: 99th percentile", "s", (quantile(0.99, "fonn_reapi_request_duration_seconds", "method"), "{{method}}")),
    graph("Reads that failed as misses", "reqps", (rate("fonn_http_lost_reads_total", "reason"), "{{reason}}"), stacked=True),
    graph("Chunks of long values", "Bps", (rate("fonn_http_chunk_bytes_total", "outcome"), "{{outcome}}"), stacked=True,
          about="Shared chunks were there before: another value has the same bytes."),
    row("RAM"),
    graph("RAM of its budget", "percentunit", (f"fonn_ram_used_bytes{{{NODE}}} / fonn_ram_budget_bytes{{{NODE}}}", "{{instance}}")),
    graph("Resident memory of budget", "percentunit",
          (f"process_resident_memory_bytes{{job=\"fonn-node\", {NODE}}} / fonn_ram_budget_bytes{{{NODE}}}", "{{instance}}"),
          about="Up to 115 % and 64 MiB are promised."),
    graph("Entries", "short", (f"fonn_ram_entries{{{NODE}}}", "{{instance}}"),
          (f"fonn_ram_dirty_entries{{{NODE}}}", "{{instance}} not on disk yet")),
    graph("Left RAM", "ops", (rate("fonn_ram_evictions_total", "instance"), "{{instance}} evicted"),
          (rate("fonn_ram_evictions_unfetched_total", "instance"), "{{instance}} evicted, never read"),
          (rate("fonn_ram_expired_total", "instance"), "{{instance}} expired")),
    graph("Memory held by clients", "bytes", (f"fonn_receiving_bytes{{{NODE}}}", "{{instance}} arriving"),
          (f"fonn_unsent_bytes{{{NODE}}}", "{{instance}} not read by the client"),
          (f"fonn_ram_withheld_bytes{{{NODE}}}", "{{instance}} withheld from entries")),
    graph("Processor", "percentunit", (f"sum by (instance) (rate(process_cpu_seconds_total{{job=\"fonn-node\", {NODE}}}[{RATE}]))", "{{instance}}"),
          about="1 is one core."),
    row("Disk"),
    graph("Disk of its budget", "percentunit", (f"fonn_disk_used_bytes{{{NODE}}} / fonn_disk_budget_bytes{{{NODE}}}", "{{instance}}")),
    graph("Entries on disk", "short", (f"fonn_disk_entries{{{NODE}}}", "{{instance}}")),
    graph("Writer waits for the device", "percentunit", (rate("fonn_disk_stalled_seconds_total", "instance"), "{{instance}}"), top=1),
    graph("Compression by level", "percentunit",
          (f"sum by (level) (rate(fonn_codec_bytes_out_total{{{NODE}}}[{RATE}])) / (sum by (level) (rate(fonn_codec_bytes_in_total{{{NODE}}}[{RATE}])) > 0)", "{{level}}"),
          about="Bytes stored of bytes given; 100 %: stored as they came."),
    graph("Processor time of codecs", "percentunit", (rate("fonn_codec_cpu_seconds_total", "level, codec"), "{{level}} {{codec}}"), stacked=True),
    graph("Compaction", "Bps", (rate("fonn_disk_compaction_read_bytes_total", "instance"), "{{instance}} read"),
          (rate("fonn_disk_compaction_written_bytes_total", "instance"), "{{instance}} written")),
]

COLD_PANELS = [
    row("At a glance"),
    stat("Loss window", "s", f"max(fonn_cold_unspilled_seconds{{{NODE}}})", "What the loss of a machine would take with it, in time.",
         [(None, "green"), (30, "orange"), (120, "red")]),
    stat("Entries not in the bucket", "short", f"sum(fonn_cold_unspilled_entries{{{NODE}}})"),
    stat("Entries lost", "short", f"sum(increase(fonn_cold_lost_entries_total{{{NODE}}}[$__range]))",
         "Given up by the disk before the bucket had them, in the time shown.", NONE_IS_GOOD),
    stat("Index complete on", "percentunit", f"avg(fonn_cold_index_ready{{{NODE}}})", "Of the nodes.", [(None, "red"), (0.99, "green")]),
    stat("Requests cost a day", "currencyUSD", f"sum(rate(fonn_cold_store_cost_dollars_total{{{NODE}}}[1h])) * 86400",
         "As in the last hour, by the configured prices."),
    stat("Bytes in the bucket", "bytes", f"sum(max by (cluster) (fonn_cold_region_bytes{{{NODE}}}))"),
    row("Spilling"),
    graph("Age of the oldest entry not in the bucket", "s", (f"fonn_cold_unspilled_seconds{{{NODE}}}", "{{instance}}")),
    graph("Backlog", "bytes", (f"fonn_cold_unspilled_bytes{{{NODE}}}", "{{instance}}")),
    graph("Brought into the bucket", "Bps", (rate("fonn_cold_spilled_bytes_total", "instance"), "{{instance}}")),
    graph("Entries a segment", "short",
          (f"sum by (instance) (rate(fonn_cold_spilled_entries_total{{{NODE}}}[$__rate_interval])) / (sum by (instance) (rate(fonn_cold_spilled_segments_total{{{NODE}}}[$__rate_interval])) > 0)", "{{instance}}"),
          about="How many entries one upload pays for."),
    graph("Entries lost", "ops", (rate("fonn_cold_lost_entries_total", "instance"), "{{instance}}")),
    graph("Uploads tried again", "ops", (rate("fonn_cold_upload_retries_total", "instance"), "{{instance}}")),
    row("Reading"),
    graph("Reads", "reqps", (rate("fonn_cold_reads_total", "result"), "{{result}}"), stacked=True),
    graph("Time of a cold hit", "s", (quantile(0.5, "fonn_tier_get_duration_seconds", "", 'tier="cold"'), "50 %"),
          (quantile(0.99, "fonn_tier_get_duration_seconds", "", 'tier="cold"'), "99 %")),
    graph("Index", "short", (f"fonn_cold_index_entries{{{NODE}}}", "{{instance}} entries")),
    row("Requests to the object store"),
    graph("Requests", "reqps", (rate("fonn_cold_store_requests_total", "op"), "{{op}}"), stacked=True),
    graph("Errors", "reqps", (rate("fonn_cold_store_errors_total", "kind, op"), "{{op}}: {{kind}}"),
          about="not_found is the usual answer to a follower's question."),
    graph("Time of a request: 99th percentile", "s", (quantile(0.99, "fonn_cold_store_request_duration_seconds", "op"), "{{op}}")),
    graph("May run at once, and waits", "short", (f"fonn_cold_store_concurrency_limit{{{NODE}}}", "{{instance}} limit: {{class}}"),
          (f"fonn_cold_store_in_flight_requests{{{NODE}}}", "{{instance}} in flight"),
          (f"sum by (instance, class) (fonn_cold_store_queue_depth{{{NODE}}})", "{{instance}} waiting: {{class}}")),
    graph("Transferred", "Bps", (rate("fonn_cold_store_sent_bytes_total", "op"), "{{op}} out"),
          (rate("fonn_cold_store_received_bytes_total", "op"), "{{op}} in")),
    graph("Cost a day", "currencyUSD", (f"sum by (instance) (rate(fonn_cold_store_cost_dollars_total{{{NODE}}}[1h])) * 86400", "{{instance}}"), stacked=True),
    row("The bucket"),
    graph("This region's segments", "bytes", (f"max by (cluster) (fonn_cold_region_bytes{{{NODE}}})", "{{cluster}} taken"),
          (f"max by (cluster) (fonn_cold_budget_bytes{{{NODE}}})", "{{cluster}} budget")),
    graph("Of which counts", "bytes", (f"max by (cluster) (fonn_cold_segment_bytes{{{NODE}}})", "{{cluster}} all regions"),
          (f"max by (cluster) (fonn_cold_live_bytes{{{NODE}}})", "{{cluster}} live")),
    graph("Collected", "Bps", (rate("fonn_cold_collected_bytes_total", "cluster"), "{{cluster}}"),
          (rate("fonn_cold_dropped_entries_total", "cluster"), "{{cluster}} entries given up, a second")),
    graph("Followed segments", "ops", (rate("fonn_cold_followed_segments_total", "instance"), "{{instance}}"),
          (rate("fonn_cold_announced_segments_total", "instance"), "{{instance}} announced")),
    graph("Lost members", "short", (f"fonn_cold_takeover_slots{{{NODE}}}", "{{instance}} slots not known yet"),
          (rate("fonn_cold_takeover_waits_total", "instance, result"), "{{instance}} lookups {{result}}, a second")),
    graph("Damage", "ops", (rate("fonn_cold_reads_total", "instance", 'result="damaged"'), "{{instance}} damaged reads"),
          (rate("fonn_cold_unreadable_segments_total", "instance"), "{{instance}} unreadable segments"),
          (rate("fonn_cold_vanished_segments_total", "instance"), "{{instance}} vanished segments")),
    graph("Who collects", "short", (f"fonn_cold_collecting{{{NODE}}}", "{{instance}}"), top=1),
]


def by_node(metric, where=CLUSTER):
    return f"{metric}{{{where}}}"


CLUSTER_PANELS = [
    row("At a glance"),
    stat("Nodes up", "short", f'sum(up{{job="fonn-node", {CLUSTER}}})'),
    stat("Nodes down", "short", f'count(up{{job="fonn-node", {CLUSTER}}}) - sum(up{{job="fonn-node", {CLUSTER}}})', steps=NONE_IS_GOOD),
    stat("Routers up", "short", f'sum(up{{job="fonn-router", {CLUSTER}}}) or vector(0)'),
    stat("Hit ratio", "percentunit", f"avg(cluster:fonn_hit_ratio:rate5m{{{CLUSTER}}})", steps=RATIO),
    stat("Gets", "reqps", f"sum(cluster:fonn_gets:rate5m{{{CLUSTER}}})"),
    stat("Loss window", "s", f"max(fonn_cold_unspilled_seconds{{{CLUSTER}}})", steps=[(None, "green"), (30, "orange"), (120, "red")]),
    row("Membership"),
    graph("Members by state", "short", (f"max by (cluster, state) (fonn_cluster_members{{{CLUSTER}}})", "{{cluster}} {{state}}"), stacked=True),
    graph("Epoch of the topology", "short", (by_node("fonn_cluster_epoch"), "{{instance}}"), about="Equal everywhere, but for moments."),
    graph("Last heard the leader", "s", (by_node("fonn_cluster_heartbeat_age_seconds"), "{{instance}}")),
    graph("Leader", "short", (by_node("fonn_cluster_is_leader"), "{{instance}}"), top=1),
    graph("Term", "short", (f"max by (cluster) (fonn_cluster_term{{{CLUSTER}}})", "{{cluster}}"), about="Grows with each election."),
    graph("Voters", "short", (f"max by (cluster) (fonn_cluster_voters{{{CLUSTER}}})", "{{cluster}}")),
    row("Between members"),
    graph("Slots that are being copied", "short", (f'sum by (instance) (fonn_cluster_slots{{{CLUSTER}, part="learner"}})', "{{instance}}"),
          about="Falls to 0 after each return of a member and each new layout."),
    graph("Commands on their way", "reqps", (rate("fonn_cluster_commands_total", "event", where=CLUSTER), "{{event}}"),
          about="At members: answered here, sent on to the owner, or held up."),
    graph("What members do for each other", "reqps", (rate("fonn_cluster_replication_total", "event", where=CLUSTER), "{{event}}"),
          about="not_replicated: writes that were refused because an owner did not take them. not_taken: copies that could not be kept."),
    graph("Requests to members: 99th percentile", "s", (quantile(0.99, "fonn_peer_request_duration_seconds", "instance", where=CLUSTER), "{{instance}}"),
          about="As who asks sees it, routers among them."),
    graph("Requests to members that failed", "percentunit", (by_node("instance:fonn_peer_failures:ratio_rate5m"), "{{instance}}")),
    graph("Under way to members", "short", (by_node("fonn_peer_requests_in_flight"), "{{instance}}")),
    row("Routers"),
    graph("Requests: percentiles", "s", *[(quantile(q, "fonn_router_request_duration_seconds", where=CLUSTER), name)
                                          for q, name in ((0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"))],
          about="What clients of routers wait for."),
    graph("Hedged reads", "reqps", (rate("fonn_router_commands_total", "event", 'event=~"hedged|hedge_won|hedge_denied"', CLUSTER), "{{event}}"),
          about="Reads that were late and asked of the next owner too; hedge_denied: too many were late."),
    graph("Router connections", "short", (by_node("fonn_router_connections"), "{{instance}}"),
          (rate("fonn_router_connections_rejected_total", "instance", where=CLUSTER), "{{instance}} closed at once, a second")),
    graph("Traffic of routers", "Bps", (rate("fonn_router_received_bytes_total", "instance", where=CLUSTER), "{{instance}} in"),
          (rate("fonn_router_sent_bytes_total", "instance", where=CLUSTER), "{{instance}} out")),
    graph("Refused by routers", "reqps", (rate("fonn_router_busy_total", "instance", where=CLUSTER), "{{instance}} no memory"),
          (rate("fonn_router_too_large_total", "instance", where=CLUSTER), "{{instance}} too large"),
          (rate("fonn_router_protocol_errors_total", "instance", where=CLUSTER), "{{instance}} protocol error")),
    row("Balance"),
    graph("Gets by node", "reqps", (f"instance:fonn_hits:rate5m{{{CLUSTER}}} + instance:fonn_misses:rate5m{{{CLUSTER}}}", "{{instance}}"), stacked=True),
    graph("Hit ratio by node", "percentunit", (by_node("instance:fonn_hit_ratio:rate5m"), "{{instance}}"), top=1),
    graph("99th percentile by node", "s", (by_node("instance:fonn_request_duration_seconds:p99_5m"), "{{instance}}")),
    graph("Hits by tier", "reqps", (rate("fonn_hits_total", "tier", where=CLUSTER), "{{tier}}"), stacked=True,
          about="After a change of members the bucket and the disks of others take over from RAM for a while."),
    graph("RAM of its budget", "percentunit", (f"fonn_ram_used_bytes{{{CLUSTER}}} / fonn_ram_budget_bytes{{{CLUSTER}}}", "{{instance}}")),
    graph("Disk of its budget", "percentunit", (f"fonn_disk_used_bytes{{{CLUSTER}}} / fonn_disk_budget_bytes{{{CLUSTER}}}", "{{instance}}")),
    row("Trouble"),
    graph("Down", "short", (f'1 - up{{job=~"fonn-.*", {CLUSTER}}}', "{{instance}}"), top=1),
    graph("Refusals by node", "reqps", (f"sum by (instance, reason) (instance:fonn_refusals:rate5m{{{CLUSTER}}})", "{{instance}} {{reason}}")),
    graph("Starts in an hour", "short", (f'changes(process_start_time_seconds{{job=~"fonn-.*", {CLUSTER}}}[1h])', "{{instance}}")),
    graph("Loss window by node", "s", (by_node("fonn_cold_unspilled_seconds"), "{{instance}}")),
    graph("Errors of the bucket", "percentunit", (by_node("instance:fonn_cold_store_errors:ratio_rate5m"), "{{instance}}")),
    graph("Connections", "short", (by_node("fonn_connections"), "{{instance}}"), stacked=True),
]

DASHBOARDS = [
    dashboard("cluster", "Fonn: cluster", "All nodes and routers of a cluster: balance and trouble.", CLUSTER_PANELS, of_nodes=False),
    dashboard("node", "Fonn: node", "Serving, RAM and disk of chosen nodes.", NODE_PANELS),
    dashboard("cold", "Fonn: cold tier", "The bucket: loss window, reads, requests, cost, collection.", COLD_PANELS),
]


def main():
    stale = []
    for it in DASHBOARDS:
        path = HERE / f"{it['uid'].removeprefix('fonn-')}.json"
        text = json.dumps(it, indent=1) + "\n"
        if "--check" in sys.argv:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what deploy/grafana/make-dashboards.py writes; run it")


if __name__ == "__main__":
    main()
