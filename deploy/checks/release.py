#!/usr/bin/env python3
"""Makes the provenance of two files and compares it with them and with the checkout."""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(folder, *names):
    done = subprocess.run([ROOT / "deploy/provenance", *names], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "a.tar.gz").write_bytes(b"archive")
        (folder / "a.cdx.json").write_bytes(b"{}")
        _, text = provenance(folder, "a.tar.gz", "a.cdx.json")
        statement = json.loads(text)
        found = {it["name"]: it["digest"]["sha256"] for it in statement["subject"]}
        if found != {it: sha256(folder / it) for it in ("a.tar.gz", "a.cdx.json")}:
            sys.exit(f"the provenance is of {found}")
        inputs = {it["name"]: it["digest"] for it in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        wanted = {"source": {"gitCommit": commit}, **{it: {"sha256": sha256(ROOT / it)} for it in ("Cargo.lock", "rust-toolchain.toml")}}
        if inputs != wanted:
            sys.exit(f"the provenance has the inputs {inputs}, not {wanted}")
        (folder / 'a"b').write_bytes(b"")
        if provenance(folder, 'a"b')[0] == 0 or provenance(folder, "absent")[0] == 0:
            sys.exit("a file that cannot be named, or is not there, has a provenance")
    print("the provenance names the files, the commit and the inputs")


if __name__ == "__main__":
    main()
