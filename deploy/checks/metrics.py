#!/usr/bin/env python3
"""Compares what alerts, tests, runbooks and dashboards name with what there is.

- Every `fonn_…` metric, and every label and label value that a query selects, is in docs/metrics.md or recorded by a rule.
- Every alert has a severity, texts, a runbook section, a dashboard, and a test in which it fires.
- Every runbook section belongs to an alert.
"""

import json
import pathlib
import re
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
# Put on by whoever scrapes, and by histograms.
TARGET_LABELS = {"job", "cluster", "instance", "zone", "le"}
SEVERITIES = {"critical", "warning", "info"}
NAME = re.compile(r"(?<![\w:])((?:fonn|process)_[a-z0-9_]+)(?![\w:]*:)(\s*\{[^}]*\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def metrics():
    """Name → (kind, {label: values}) of docs/metrics.md."""
    found = {}
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        row = re.match(r"\| `([a-z0-9_]+)` \| (\w+) \| (.*?) \| ", line)
        if row:
            labels = {
                label: set(re.findall(r"`([^`]+)`", values))
                for label, values in re.findall(r"`(\w+)`: ((?:`[^`]+` ?)+)", row[3])
            }
            found[row[1]] = (row[2], labels)
    return found


def alternatives(pattern):
    """The words of a regular expression of the form a|b; None if it is another."""
    words = pattern.strip("()").split("|")
    return words if all(re.fullmatch(r"[\w:-]+", word) for word in words) else None


def check_query(query, known, variables=frozenset()):
    """What in a query does not exist."""
    for name, selector in NAME.findall(query):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, labels = known.get(name, known.get(base, (None, None)))
        if kind is None or (name != base and name not in known and kind != "histogram"):
            yield f"there is no metric {name}"
            continue
        for label, operator, value in MATCHER.findall(selector):
            if label in TARGET_LABELS or any(f"${it}" in value for it in variables):
                continue
            if label not in labels:
                yield f"{name} has no label {label}"
            elif operator in ("=", "!=") and value not in labels[label]:
                yield f"{name} has no {label}={value}"
            elif operator in ("=~", "!~"):
                for word in alternatives(value) or []:
                    if word not in labels[label]:
                        yield f"{name} has no {label}={word}"


def rules():
    for path in sorted((PROMETHEUS / "rules").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield path.name, rule


def recorded_names(query):
    return re.findall(r"[a-z]+:fonn_[\w]+:\w+", query)


def anchors(path):
    """What `#…` may name in a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", it.lower()).replace(" ", "-") for it in headings}


def check_rules(known, recorded, dashboards):
    fired = set(
        re.findall(
            r"labels: 'ALERTS\{alertname=\"(\w+)\"",
            "".join(it.read_text() for it in (PROMETHEUS / "tests").glob("*.yaml")),
        )
    )
    alerts = set()
    for file, rule in rules():
        name = rule.get("alert") or rule["record"]
        for problem in check_query(rule["expr"], known):
            yield f"{file}: {name}: {problem}"
        for used in recorded_names(rule["expr"]):
            if used not in recorded:
                yield f"{file}: {name}: nothing records {used}"
        if "alert" not in rule:
            continue
        alerts.add(name)
        annotations = rule.get("annotations", {})
        if rule.get("labels", {}).get("severity") not in SEVERITIES:
            yield f"{file}: {name} has no severity of {sorted(SEVERITIES)}"
        for text in ("summary", "description", "runbook_url", "dashboard"):
            if not annotations.get(text):
                yield f"{file}: {name} has no annotation {text}"
        page, _, anchor = annotations.get("runbook_url", "").partition("#")
        if not (ROOT / page).is_file() or anchor not in anchors(ROOT / page):
            yield f"{file}: {name}: its runbook {page}#{anchor} is not there"
        if annotations.get("dashboard", "").removeprefix("/d/") not in dashboards:
            yield f"{file}: {name}: its dashboard is not there"
        if name not in fired:
            yield f"{file}: {name} fires in no test"
    runbooks = ROOT / "docs/operations/runbooks.md"
    for heading in re.findall(r"^### (.*)$", runbooks.read_text(), re.M):
        if heading not in alerts:
            yield f"runbooks.md: {heading} is no alert"
    for name in NAME.findall(runbooks.read_text()):
        for problem in check_query("".join(name), known):
            yield f"runbooks.md: {problem}"


def check_dashboard(file, dashboard, known, recorded):
    variables = {it["name"] for it in dashboard["templating"]["list"]}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for problem in check_query(query, known, variables):
                yield f"{file}: {panel['title']}: {problem}"
            for used in recorded_names(query):
                if used not in recorded:
                    yield f"{file}: {panel['title']}: nothing records {used}"
            for variable in re.findall(r"\$\{?(\w+)", query):
                if variable not in variables and not variable.startswith("__"):
                    yield f"{file}: {panel['title']}: there is no variable {variable}"


def main():
    known = metrics()
    if len(known) < 50:
        sys.exit("docs/metrics.md could not be read")
    recorded = {rule["record"] for _, rule in rules() if "record" in rule}
    files = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
    dashboards = {file.name: json.loads(file.read_text()) for file in files}
    problems = list(check_rules(known, recorded, {it["uid"] for it in dashboards.values()}))
    for file, dashboard in dashboards.items():
        problems += check_dashboard(file, dashboard, known, recorded)
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    alerts = sum("alert" in rule for _, rule in rules())
    print(f"{alerts} alerts and {len(dashboards)} dashboards name only what {len(known)} metrics have")


if __name__ == "__main__":
    main()
