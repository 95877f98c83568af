"""What a new user does, from README.md alone: its commands, one after the other as they stand there, timed.

Usage: readme.py CHECKOUT. Ends with status 0 and a table of times, or with what is not as the page says.

Needs sccache, a C compiler, redis-cli, memccat and curl. Ports are those of the page: as root it runs in a network of its own,
else 11211 and 11280 have to be free. With FONN_NODE_BIN, FONN_ROUTER_BIN and FONN_CTL_BIN `cargo` builds nothing: it runs these
programs, and the xtask that is built. With FONN_BROWSER=1 the dashboard is looked at in Chromium too (npm ci in tests/browser).
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

# For what is built or started on a busy machine; nothing here is about being fast.
LIMIT_S = 3600 if "FONN_NODE_BIN" not in os.environ else 300

SHIM = """#!/bin/sh
case "$*" in
"run --release --bin fonn-node") exec "$BIN_NODE" ;;
"xtask cluster --release")
    FONN_NODE_BIN="$BIN_NODE" FONN_ROUTER_BIN="$BIN_ROUTER" FONN_CTL_BIN="$BIN_CTL" \\
        CARGO_MANIFEST_DIR="$PWD/xtask" exec target/debug/xtask cluster --release ;;
*) echo "the page says cargo $*" >&2; exit 1 ;;
esac
"""


def fail(text):
    sys.exit(f"README.md: {text}")


class Page:
    """The sessions of the page, and the commands in its sentences."""

    def __init__(self, text):
        self.text = text
        self.sessions = [self.session(block) for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)]

    @staticmethod
    def session(block):
        """Commands with what they print by the page."""
        commands = []
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif line.strip():
                commands[-1][1].append(line)
        return commands

    def find(self, part):
        """The session that has a command of which this is a part."""
        for session in self.sessions:
            if any(part in command for command, _ in session):
                return session
        fail(f"no session has `{part}`")

    def sentence(self, part):
        """The command in a sentence of which this is a part."""
        for command in re.findall(r"`([^`\n]+)`", self.text):
            if part in command:
                return command
        fail(f"no sentence has `{part}`")


class Terminal:
    """A shell whose commands follow each other."""

    def __init__(self, folder, environment):
        self.shell = subprocess.Popen(
            ["bash"], cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def run(self, command, is_shown=True):
        """What it prints."""
        if is_shown:
            print(f"$ {command}", flush=True)
        mark = "end-of-command-7f3a"
        self.shell.stdin.write(f"{command}\nprintf '\\n%s %s\\n' {mark} $?\n")
        self.shell.stdin.flush()
        killer = threading.Timer(LIMIT_S, self.shell.kill)
        killer.start()
        lines = []
        for line in self.shell.stdout:
            if line.startswith(mark):
                killer.cancel()
                if line.split()[1] != "0":
                    fail(f"`{command}` ended with {line.split()[1]}:\n{''.join(lines)}")
                return "".join(lines)
            lines.append(line)
        fail(f"`{command}` did not end:\n{''.join(lines)}")

    def end(self):
        self.shell.stdin.close()
        self.shell.wait(60)


class Server:
    """A command that runs until it is stopped, in a terminal of its own."""

    def __init__(self, command, folder, environment):
        print(f"$ {command}", flush=True)
        self.text = ""
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.text += line

    def wait_for(self, pattern):
        until(lambda: re.search(pattern, self.text) or self.process.poll() is not None, lambda: self.text)
        if not re.search(pattern, self.text):
            fail(f"it ended with {self.process.returncode}:\n{self.text}")

    def end(self, how):
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
        return self.process.wait(60)


def until(condition, otherwise):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            fail(f"in vain:\n{otherwise()}")
        time.sleep(0.02)


def words(line):
    return " ".join(line.split())


def as_said(output, said):
    """Whether all is printed that the page says; times are others each time."""
    printed = {words(line) for line in output.splitlines()}
    for line in said:
        if not words(line).startswith("Average") and words(line) not in printed:
            fail(f"`{words(line)}` is not in\n{output}")


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


class Walk:
    """The user's way, with what each part of it took."""

    def __init__(self, checkout, folder, environment):
        self.checkout = checkout
        self.environment = environment
        self.page = Page((checkout / "README.md").read_text())
        self.terminal = Terminal(folder, environment)
        self.times = []
        self.servers = []

    def timed(self, what, step):
        begun = time.monotonic()
        result = step()
        self.times.append((what, time.monotonic() - begun))
        return result

    def serve(self, command, pattern):
        server = Server(command, self.checkout, self.environment)
        self.servers.append(server)
        server.wait_for(pattern)
        return server

    def session(self, session):
        for command, said in session:
            as_said(self.terminal.run(command), said)

    def node(self):
        ((command, banner),) = self.page.find("--bin fonn-node")
        clients = next(words(line) for line in banner if "clients" in line).split(" (")[0]
        admin = next(words(line) for line in banner if "admin" in line)
        server = self.serve(command, re.escape(admin.split()[1]))
        # What differs from machine to machine is not compared.
        if clients not in words(server.text):
            fail(f"`{clients}` is not in\n{server.text}")
        return server

    def build_again(self):
        """The second half of the session with sccache: hits alone."""
        session = self.page.find("sccache --show-stats")
        self.session(session[[command for command, _ in session].index("sccache --zero-stats"):])

    def alone(self):
        node = self.timed("the node is built, and answers", self.node)
        session = self.page.find("sccache --show-stats")
        self.timed("a build, and the same again: 3 hits of 3", lambda: self.session(session))

        def killed():
            node.end(signal.SIGKILL)
            self.node()
            self.build_again()

        self.timed("the node is killed and started, and all are hits", killed)
        self.timed("other clients find the same", lambda: self.session(self.page.find("memccat")))
        self.servers.pop().end(signal.SIGTERM)

    def cluster(self):
        ((command, _),) = self.page.find("xtask cluster")
        cluster = self.timed(
            "a cluster of three nodes and two routers answers",
            lambda: self.serve(command, r"Ctrl-C stops all"),
        )
        rows = {line.split()[0]: line.split() for line in cluster.text.splitlines() if "http://" in line}
        exports = re.findall(r"^ *(export .*)$", cluster.text, re.M)

        def build():
            self.terminal.run(self.page.sentence("sccache --stop-server"))
            self.terminal.run(exports[0])
            compile = next(command for command, _ in self.page.find("sccache cc") if "sccache cc" in command)
            self.terminal.run(compile)
            self.build_again()

        self.timed("a build through the routers, and the same again: 3 hits of 3", build)
        # router-1, as the page says.
        dashboard = rows["router-1"][3]

        def look():
            if "<title>" not in get(dashboard):
                fail("no page at the router")
            if os.environ.get("FONN_BROWSER"):
                print(self.terminal.run(f"node {self.checkout}/tests/browser/look.mjs {dashboard}"), end="")

        self.timed("the dashboard shows it", look)

        def fall():
            self.terminal.run(self.page.sentence("kill -9 PID").replace("PID", rows["node-2"][4]))
            command = re.search(r"^the map: (.*)$", cluster.text, re.M)[1]
            told = [""]

            def is_down():
                # Its code says that somebody is.
                told[0] = self.terminal.run(f"{command} || true", is_shown=not told[0])
                return re.search(r"^node-2 .*\bdown\b", told[0], re.M)

            until(is_down, lambda: told[0])

        self.timed("a node is killed, and down in the map", fall)

        def stop():
            # Ctrl-C.
            if self.servers.pop().end(signal.SIGINT) != 0:
                fail(f"Ctrl-C:\n{cluster.text}")

        self.timed("Ctrl-C", stop)
        self.terminal.run("sccache --stop-server")

    def end(self):
        for server in self.servers:
            server.end(signal.SIGKILL)
        self.terminal.end()


def walk(checkout):
    with tempfile.TemporaryDirectory(prefix="fonn-readme-") as scratch:
        scratch = pathlib.Path(scratch)
        home = pathlib.Path.home()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FONN_", "SCCACHE_", "XDG_", "AWS_"))
        }
        environment |= {
            "HOME": str(scratch),
            "CARGO_HOME": os.environ.get("CARGO_HOME", str(home / ".cargo")),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(home / ".rustup")),
        }
        programs = {name: os.environ.get(f"FONN_{name}_BIN") for name in ("NODE", "ROUTER", "CTL")}
        if all(programs.values()):
            (scratch / "bin").mkdir()
            shim = scratch / "bin" / "cargo"
            shim.write_text(SHIM)
            shim.chmod(0o755)
            environment["PATH"] = f"{shim.parent}:{environment['PATH']}"
            environment |= {f"BIN_{name}": os.path.abspath(file) for name, file in programs.items()}
        for program in ("sccache", "cc", "redis-cli", "memccat", "curl"):
            if shutil.which(program, path=environment["PATH"]) is None:
                sys.exit(f"{program} is missing")
        it = Walk(checkout, scratch, environment)
        try:
            it.alone()
            it.cluster()
        finally:
            subprocess.run(["sccache", "--stop-server"], env=environment, capture_output=True, check=False)
            it.end()
        return it.times


def main():
    checkout = pathlib.Path(sys.argv[1]).resolve()
    if os.geteuid() == 0 and "OWN_NETWORK" not in os.environ:
        inner = 'ip link set lo up && exec "$@"'
        own = ["unshare", "--net", "sh", "-c", inner, "sh", sys.executable, __file__, str(checkout)]
        os.execvpe(own[0], own, os.environ | {"OWN_NETWORK": "1"})
    times = walk(checkout)
    print()
    for what, seconds in times:
        print(f"{seconds:8.1f} s  {what}")
    print(f"{sum(seconds for _, seconds in times):8.1f} s  in all")


main()
