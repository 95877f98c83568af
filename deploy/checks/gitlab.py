#!/usr/bin/env python3
"""Lints the shell in the GitLab snippet: each job's scripts, as the one script that a runner makes of them.

usage: gitlab.py SHELLCHECK FILE.yaml
"""

import subprocess
import sys

import yaml

SHELLCHECK, FILE = sys.argv[1:]
SCRIPTS = ("before_script", "script", "after_script")

with open(FILE) as file:
    jobs = yaml.safe_load(file)


def inherited(name):
    """A job with what it extends."""
    job = jobs[name]
    base = job.get("extends")
    return {**(inherited(base) if base else {}), **job}


linted = 0
for name in jobs:
    job = inherited(name)
    if not any(part in job for part in SCRIPTS):
        continue
    # Before and script run in one shell, after in another one. Images without bash have sh.
    for parts in (SCRIPTS[:2], SCRIPTS[2:]):
        lines = [line for part in parts for line in job.get(part, [])]
        if not lines:
            continue
        # The job's and the project's variables come from outside.
        text = "\n".join(["#!/bin/sh", *lines, ""])
        done = subprocess.run([SHELLCHECK, "--shell=sh", "-"], input=text, text=True, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"{FILE}: {name}, {' and '.join(parts)}:\n{done.stdout}{done.stderr}")
        linted += 1
if linted == 0:
    sys.exit(f"{FILE}: no script was found")
print(f"{FILE}: {linted} scripts are clean")
