#!/usr/bin/env python3
"""Runs a real Prometheus on a real cluster of one node, with a router, and asks every query of the dashboards.

usage: live.py PROMETHEUS FONN_NODE FONN_ROUTER

A query that fails, or that has no data although its metrics are published, is an error; so is an alert that fires.
Queries are asked again for a minute, since what is recorded comes a little after what is measured; an alert may not even fire once.
"""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIABLES = {"$__rate_interval": "20s", "$__range": "1m", "$cluster": ".*", "$instance": ".*"}
DEADLINE_S = 60
# Ratios of what has not happened in so short a time, and namespaces with a quota, which users are needed for.
MAY_BE_EMPTY = {"Compression by level", "Entries a segment", "Of its quota", "Lost to quotas"}


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


@contextlib.contextmanager
def process(log, *command):
    with open(log, "w", encoding="utf-8") as out:
        it = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield it
    finally:
        it.terminate()
        try:
            it.wait(20)
        except subprocess.TimeoutExpired:
            it.kill()


def until(what, condition):
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.2)
    sys.exit(f"{what} did not happen within {DEADLINE_S} s")


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


class Prometheus:
    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"

    def ask(self, query):
        url = f"{self.base}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            return json.loads(get(url))["data"]["result"]
        except urllib.error.HTTPError as error:
            return error.read().decode()


def load(port):
    """Entries of some KiB, and hits and misses, over RESP."""
    with socket.create_connection(("127.0.0.1", port)) as it:
        for round_ in range(3):
            for number in range(100):
                value = os.urandom(3000)
                key = f"{round_}/{number}".encode()
                it.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))
                it.recv(64)
                for name in (key, b"none"):
                    it.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(name), name))
                    while not it.recv(65536).endswith(b"\r\n"):
                        pass
            time.sleep(3)


def build(port):
    """Hits and misses of a build tool."""
    for number in range(20):
        url = f"http://127.0.0.1:{port}/cache/{number}"
        urllib.request.urlopen(urllib.request.Request(url, os.urandom(3000), method="PUT")).read()
        urllib.request.urlopen(url).read()
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/none")
        time.sleep(0.2)


def queries():
    for path in sorted((ROOT / "deploy/grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                yield f"{path.name}: {panel['title']}", panel["title"], query


def hasty_rules(folder):
    """The rules, each group every second: those that record every 30 s would tell what was before the load."""
    for path in sorted((ROOT / "deploy/prometheus/rules").glob("*.yaml")):
        text = re.sub(r"^    interval: \d+s$", "    interval: 1s", path.read_text(), flags=re.MULTILINE)
        pathlib.Path(folder, path.name).write_text(text)
    return f"{folder}/*.yaml"


def unanswered(prometheus):
    """What is wrong with the answers, and how many queries were asked."""
    problems, asked = [], 0
    for where, title, query in queries():
        asked += 1
        result = prometheus.ask(query)
        if isinstance(result, str):
            problems.append(f"{where}: {result}")
        elif not result and title not in MAY_BE_EMPTY:
            problems.append(f"{where}: no data")
    return problems, asked


def main():
    prometheus_bin, node_bin, router_bin = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        clients, admin, members, http, front, router, web = (free_port() for _ in range(7))
        config = pathlib.Path(folder, "prometheus.json")
        # JSON is YAML.
        config.write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [hasty_rules(folder)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"cluster": "check"}}]}
                for job, port in (("fonn-node", admin), ("fonn-router", router))
            ],
        }))
        bucket = pathlib.Path(folder, "bucket")
        bucket.mkdir()
        running.enter_context(process(
            f"{folder}/node.log", node_bin, "--listen", f"127.0.0.1:{clients}", "--admin-listen", f"127.0.0.1:{admin}",
            "--http-listen", f"127.0.0.1:{http}", "--data-dir", f"{folder}/data", "--ram-budget", "128m", "--disk-budget", "2g",
            "--node-id", "a", "--cluster-listen", f"127.0.0.1:{members}", "--bootstrap",
            "--cold-tier", f"file://{bucket}", "--cold-budget", "1g", "--spill", "write-behind:1s",
        ))
        until("the start of the node", lambda: get(f"http://127.0.0.1:{admin}/readyz"))
        running.enter_context(process(
            f"{folder}/router.log", router_bin, "--listen", f"127.0.0.1:{front}", "--admin-listen", f"127.0.0.1:{router}",
            "--cluster", f"127.0.0.1:{members}",
        ))
        until("the start of the router", lambda: get(f"http://127.0.0.1:{router}/readyz"))
        running.enter_context(process(
            f"{folder}/prometheus.log", prometheus_bin, f"--config.file={config}",
            f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{web}",
        ))
        prometheus = Prometheus(web)
        until("a scrape", lambda: prometheus.ask("fonn_connections_limit"))
        for port in (clients, front):
            load(port)
        build(http)
        # Rates need a few scrapes, recorded ratios one more, and what is recorded of those another.
        deadline = time.monotonic() + DEADLINE_S
        problems, asked = unanswered(prometheus)
        while problems and time.monotonic() < deadline:
            time.sleep(1)
            problems, asked = unanswered(prometheus)
        fired = prometheus.ask('max_over_time(ALERTS{alertstate="firing"}[10m])')
        problems += [f"fires on a healthy node: {it['metric']['alertname']}" for it in fired]
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    print(f"{asked} queries of the dashboards are answered from a running cluster, and no alert fires")


if __name__ == "__main__":
    main()
