#!/usr/bin/env python3
"""Compares names that deploy/, terraform/ and docs/operations/ use with their one source.

- Every FONN_… variable and every `--flag` of the programs exists; so do the ports.
- Every relative link in docs/operations leads somewhere.
- An image has one version everywhere, and the compiler is the pinned one.
- The example of the chart's nodes.settings has keys that a node has.
- Who waits for a new node waits longer than that may wait for the bucket's index.
"""

import json
import re
import sys

from settings import ROOT, known_keys, known_ports, known_variables, table

FOLDERS = ("deploy", "terraform", "docs/operations")
# Other programs have flags in the same documents: a flag of ours is one behind `fonn-node` or `fonn-router` on its line.
OURS = re.compile(r"fonn-(?:node|router)\b([^|`\n#]*)")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
# Compose publishes the second router's client port here.
OTHER_PORTS = {11212}
# Settings of compose.yaml, of the boot script, of checks, and placeholders.
OTHER_VARIABLES = re.compile(
    r"FONN_(IMAGE|NODE_MEMORY|S3_(ACCESS|SECRET)_KEY|BOOT_\w+|LIFECYCLE_SECONDS|TEST_\w+|CI_TOOLS|CACHE_\w+)$"
)
COMMON_FLAGS = {"config", "help", "version"}


def files():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            skipped = {".terraform", "__pycache__", "node_modules"} & set(path.parts)
            if path.is_file() and not path.is_symlink() and not skipped and path.suffix not in (".json", ".sum", ".tgz"):
                yield path.relative_to(ROOT), path.read_text()


def check_names(path, text):
    variables = known_variables()
    for name in set(re.findall(r"\bFONN_[A-Z0-9_]+\b", text)) - variables:
        if not OTHER_VARIABLES.match(name):
            yield f"{path}: there is no variable {name}"
    flags = {key.replace("_", "-") for key in known_keys()} | COMMON_FLAGS
    # What builds or watches the programs has flags of its own.
    lines = [it for it in text.splitlines() if not re.search(r"cargo|journalctl", it)]
    for arguments in OURS.findall("\n".join(lines)):
        for flag in FLAG.findall(arguments):
            if flag not in flags:
                yield f"{path}: neither node nor router has --{flag}"
    for port in {int(it) for it in re.findall(r"(?<![\d.])112\d\d(?!\d)", text)} - set(known_ports().values()) - OTHER_PORTS:
        yield f"{path}: nothing listens on {port}"


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", it.lower()).replace(" ", "-") for it in headings}


def check_links(path, text):
    if path.suffix != ".md":
        return
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        page, _, anchor = link.partition("#")
        target = (ROOT / path).parent / page if page else ROOT / path
        if not target.exists():
            yield f"{path}: {link} leads nowhere"
        elif anchor and target.is_file() and anchor not in anchors(target.read_text()):
            yield f"{path}: {link}: there is no such heading"


def check_images(texts):
    versions = {}
    for path, text in texts:
        # deploy/compose.yaml and the chart's values.
        for name, version in re.findall(r"\b((?:[\w.-]+/)*(?:busybox|prometheus|grafana|versitygw)):(v?\d[\w.-]*)", text):
            versions.setdefault(name, {}).setdefault(version, []).append(str(path))
    for name, found in versions.items():
        if len(found) > 1:
            yield f"{name} has several versions: {json.dumps(found)}"


def check_compiler():
    """The image of the build has the pinned compiler."""
    pinned = re.search(r'channel = "([\d.]+)"', (ROOT / "rust-toolchain.toml").read_text())[1]
    for path, wanted in (("deploy/Dockerfile", f"RUST_IMAGE=rust:{pinned}-"), ("deploy/compose.yaml", f"RUST_IMAGE:-rust:{pinned}-")):
        if wanted not in (ROOT / path).read_text():
            yield f"{path} does not build with Rust {pinned}"
    # A default would be a tag.
    for line in (ROOT / "deploy/Dockerfile").read_text().splitlines():
        if re.match(r"ARG \w+_IMAGE=", line):
            yield f"deploy/Dockerfile has a default for a base image: {line}"


def check_example():
    """The example of nodes.settings has keys of a node's file."""
    path = "deploy/helm/fonn/values.yaml"
    example = re.search(r"# Keys of node.toml, for example \{(.*?)\}", (ROOT / path).read_text())
    keys = re.findall(r"(\w+): ", example[1]) if example else []
    if not keys:
        yield f"{path}: the example of nodes.settings could not be read"
    for key in set(keys) - set(table()):
        yield f"{path}: a node has no setting {key}"


def check_patience():
    """What is told of a node that reads the bucket's index, and is not ready meanwhile, is longer than it may take."""
    source = (ROOT / "node/src/cli/ready.rs").read_text()
    longest = int(re.search(r"INDEX_WAIT_MAX: Duration = Duration::from_secs\((\d+)\)", source)[1])
    image = re.search(r"--start-period=(\d+)s", (ROOT / "deploy/Dockerfile").read_text())
    path = "terraform/modules/cluster/variables.tf"
    machine = re.search(r'variable "warmup_seconds" \{.*?default\s+= (\d+)', (ROOT / path).read_text(), re.S)
    for where, found in (("deploy/Dockerfile", image), (path, machine)):
        if int(found[1]) <= longest:
            yield f"{where}: {found[1]} s are too short for a node that reads the bucket's index for {longest} s"
    if longest != 120:
        yield "the documents say two minutes"


def main():
    texts = list(files())
    problems = [*check_images(texts), *check_compiler(), *check_example(), *check_patience()]
    for path, text in texts:
        # This file and its source name what they look for.
        if path.parts[:2] != ("deploy", "checks"):
            problems += check_names(path, text)
            problems += check_links(path, text)
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    print(f"{len(texts)} files name only settings, ports, pages and images that there are")


if __name__ == "__main__":
    main()
