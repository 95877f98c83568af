#!/usr/bin/env python3
"""Prints the queries of all dashboards as recording rules, so that `promtool check rules` parses them."""

import json
import pathlib

DASHBOARDS = pathlib.Path(__file__).resolve().parents[1] / "grafana/dashboards"
# What Grafana puts in before it asks.
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h"}


def main():
    rules = []
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"]
                for variable, value in VARIABLES.items():
                    query = query.replace(variable, value)
                # Rules must differ from each other.
                name = f"query:{file.stem}_{panel['id']}_{target['refId']}".lower()
                rules.append({"record": name, "expr": query})
    print(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))


if __name__ == "__main__":
    main()
