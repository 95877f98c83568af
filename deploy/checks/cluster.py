#!/usr/bin/env python3
"""Starts the clusters of the chart, of the compose file and of docs/operations/install.md for real, with users and certificates as
they are configured there.

usage: cluster.py HELM COMPOSE.json PROMETHEUS FONN_NODE FONN_ROUTER FONNCTL   (as root; COMPOSE.json is what Compose makes of both files)

Every machine is a network namespace with an address and a name; a bridge connects them. So all listen and connect as they would on
machines of their own, and refuse what they refuse there. Then: all members find each other, a client logs in at a router and gets what it stored,
every router sends Redis Cluster clients to itself at a name that its certificate has, the health check passes, metrics are for who logs in, and Prometheus reads them with its own configuration.
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import compose as compose_file
import helm
from settings import ROOT

DEADLINE_S = 90
BRIDGE = "machines"
PASSWORD = "secret"
# argon2 of that, with parameters that cost next to nothing.
HASH = "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w"
USERS = "".join(
    f'[[user]]\nname = "{name}"\nrole = "{role}"\nhash = "{HASH}"\n' for name, role in (("ci", "read-write"), ("monitor", "read"))
)
CHART_VALUES = (
    "routers.replicas=2", "coldTier.url=", "coldTier.s3Endpoint=", "coldTier.s3Region=", "nodes.ramBudget=64m",
    "nodes.storage.sizeGi=2", "nodes.credentialsSecret=",
)


class Machine:
    """A node or router with a name, a network, and a directory of its own in the place of its root."""

    def __init__(self, name, number, folder, is_router):
        self.name, self.number, self.is_router = name, number, is_router
        self.address = f"10.99.0.{number}"
        self.root = pathlib.Path(folder, name)
        self.admin = 11281 if is_router else 11280
        self.environment, self.arguments = {}, []
        self.process = None

    def here(self, text):
        """The same with the directories of this machine."""
        for folder in ("/etc/fonn", "/run/secrets", "/var/cache/fonn", "/etc/prometheus"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def write(self, path, text):
        file = pathlib.Path(f"{self.root}{path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def connect(self):
        """Plugs it into the bridge."""
        space, port = f"machine{self.number}", f"port{self.number}"
        for command in (
            f"netns add {space}", f"link add {port} type veth peer name eth0 netns {space}", f"link set {port} master {BRIDGE} up",
            f"-n {space} link set lo up", f"-n {space} address add {self.address}/24 dev eth0", f"-n {space} link set eth0 up",
        ):
            ip(command)

    def inside(self, *command):
        """A command as it is run on this machine."""
        return ["ip", "netns", "exec", f"machine{self.number}", *command]

    def start(self, programs):
        log = open(self.root / "log", "w", encoding="utf-8")
        environment = {"PATH": os.environ["PATH"], **self.environment}
        program = programs["router" if self.is_router else "node"]
        command = self.inside(program, *self.arguments)
        self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def ip(command):
    subprocess.run(["ip", *command.split()], check=True)


def fail(what, machines):
    for it in machines:
        print(f"--- {it.name}:\n{(it.root / 'log').read_text()[-1500:]}")
    sys.exit(what)


def certificates(folder, *machines):
    done = subprocess.run([ROOT / "deploy/make-certificates", f"{folder}/pki", *machines], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return pathlib.Path(folder, "pki")


def chart(helm_bin, folder):
    """Two nodes more than the one that forms the cluster, and two routers, with the certificate that cert-manager would make."""
    objects = helm.render(
        helm_bin, helm.VERSIONS[-1], "-f", str(helm.CHART / "ci/nodes-only.yaml"), *(f"--set={it}" for it in CHART_VALUES)
    )
    data = helm.configuration(objects)
    certificate = next(it for it in objects if it["kind"] == "Certificate")["spec"]
    pki = certificates(folder, f"all={','.join(it for it in certificate['dnsNames'] if it != 'localhost')}")
    machines = []
    for number in range(5):
        is_router = number > 2
        # What Kubernetes' DNS has for a router's pod.
        name = f"10-99-0-{number + 1}.fonn-router.cache.svc" if is_router else f"fonn-node-{number}.fonn-node.cache.svc"
        machine = Machine(name, number + 1, folder, is_router)
        if is_router:
            config = helm.prepared(data, {"POD_IP": machine.address}, "router")
        else:
            config = helm.prepared(data, helm.environment(objects, number))
        machine.write("/etc/fonn/config.toml", machine.here(config))
        machine.write("/etc/fonn/users/users.toml", USERS)
        for secret, file in (("tls.crt", "cert"), ("tls.key", "key"), ("ca.crt", "ca")):
            machine.write(f"/etc/fonn/tls/{secret}", (pki / f"all/{file}.pem").read_text())
        machine.arguments = ["--config", f"{machine.root}/etc/fonn/config.toml"]
        machines.append(machine)
    monitors = [it["spec"]["endpoints"][0] for it in objects if it["kind"] == "ServiceMonitor"]
    for it in monitors:
        if it["scheme"] != "https" or it["tlsConfig"]["serverName"] != "fonn.cache.svc" or "basicAuth" not in it:
            sys.exit(f"Prometheus cannot read the chart's metrics: {it}")
    return machines, pki / "ca.pem"


def compose(file, folder):
    services = json.loads(pathlib.Path(file).read_text())["services"]
    ours = {name: it for name, it in services.items() if re.match(r"node|router", name)}
    pki = certificates(folder, *ours)
    machines = []
    for number, (name, service) in enumerate(sorted(ours.items())):
        machine = Machine(name, number + 11, folder, "router" in name)
        given = compose_file.environment(service)
        environment = {key: value for key, value in given.items() if not re.search("_S3_|AWS_|COLD", key)}
        machine.environment = {key: machine.here(value) for key, value in environment.items()}
        if not machine.is_router:
            machine.environment |= {"FONN_RAM_BUDGET": "64m", "FONN_DISK_BUDGET": "1g", "XDG_CACHE_HOME": f"{machine.root}/var/cache"}
        mounted = {it["target"] for it in service.get("volumes", [])} | {f"/run/secrets/{it['source']}" for it in service["secrets"]}
        if not {"/etc/fonn", "/run/secrets/users", "/run/secrets/monitor_password"} <= mounted:
            sys.exit(f"{name} lacks a secret: {mounted}")
        for part in ("ca", "cert", "key"):
            machine.write(f"/etc/fonn/{part}.pem", (pki / f"{name}/{part}.pem").read_text())
        machine.write("/run/secrets/users", USERS)
        machine.write("/run/secrets/monitor_password", PASSWORD)
        machines.append(machine)
    return machines, pki / "ca.pem"


def by_hand(folder):
    """What install.md has for machines under systemd: its command for certificates, its node.toml with what it says of the others, its
    router.toml and router.env."""
    text = (ROOT / "docs/operations/install.md").read_text()
    command = re.search(r"deploy/make-certificates pki (.*?)\n```", text, re.S)[1].replace("\\\n", " ").split()
    example = re.search(r"having `bootstrap = true`:\n\n```toml\n(.*?)```", text, re.S)[1]
    example = re.sub(r"^cold_tier.*\n", "", example, flags=re.M)
    router = re.search(r"certificates of their own:\n\n```toml\n(.*?)```", text, re.S)[1]
    environment = re.search(r"`/etc/fonn/router.env`.*?```sh\n(.*?)```", text, re.S)[1]
    unit = (ROOT / "deploy/systemd/fonn-router.service").read_text()
    if "\nEnvironmentFile=-/etc/fonn/router.env\n" not in unit:
        sys.exit("the router's unit does not read /etc/fonn/router.env")
    pki = certificates(folder, *command)
    machines = []
    for number, it in enumerate(command):
        name, host = it.split("=")[0], re.split("[=,]", it)[1]
        machine = Machine(host, number + 21, folder, name.startswith("router"))
        if machine.is_router:
            config = router
            machine.environment = dict(it.split("=", 1) for it in environment.replace("router1", name).splitlines())
        else:
            config = example.replace("node2", name) + 'data_dir = "/var/cache/fonn"\nram_budget = "64m"\ndisk_budget = "1g"\n'
            if name == "node1":
                config = re.sub("^join.*$", "bootstrap = true", config, flags=re.M)
        machine.write("/etc/fonn/config.toml", machine.here(config))
        machine.write("/etc/fonn/users.toml", USERS)
        for part in ("ca", "cert", "key"):
            machine.write(f"/etc/fonn/{part}.pem", (pki / f"{name}/{part}.pem").read_text())
        machine.arguments = ["--config", f"{machine.root}/etc/fonn/config.toml"]
        machines.append(machine)
    return machines, pki / "ca.pem"


def get(machine, authority, path, login=None):
    """Status and body, over TLS, with the certificate checked against the machine's name."""
    context = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection(machine.name, machine.admin, timeout=5, context=context)
    headers = {"authorization": "Basic " + base64.b64encode(f"{login}:{PASSWORD}".encode()).decode()} if login else {}
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def until(what, machines, condition):
    deadline = time.monotonic() + DEADLINE_S
    error = None
    while time.monotonic() < deadline:
        ended = [it.name for it in machines if it.process.poll() is not None]
        if ended:
            fail(f"{what}: {', '.join(ended)} ended", machines)
        try:
            if condition():
                return
        except (OSError, http.client.HTTPException) as it:
            error = it
        time.sleep(0.2)
    fail(f"{what}: not within {DEADLINE_S} s ({error})", machines)


def stored_and_read(router, authority, machines):
    """A client that logs in over TLS."""
    context = ssl.create_default_context(cafile=authority)
    deadline = time.monotonic() + DEADLINE_S
    with socket.create_connection((router.name, 11211), timeout=10) as plain, context.wrap_socket(plain, server_hostname=router.name) as it:
        for command, answer in (("GET k", "NOAUTH"), (f"AUTH ci {PASSWORD}", "+OK"), ("SET k v", "+OK"), ("GET k", "$1")):
            found = "-TRYAGAIN"
            # What a cluster says that has only just been formed.
            while found.startswith("-TRYAGAIN") and time.monotonic() < deadline:
                it.sendall(f"{command}\r\n".encode())
                found = it.recv(4096).decode()
            if answer not in found:
                fail(f"{router.name}: {command.split()[0]}: {found}", machines)


def resp_reply(stream):
    """A reply of RESP2: lists, integers and texts."""
    line = stream.readline().decode().strip()
    kind, rest = line[:1], line[1:]
    if kind == "*":
        return [resp_reply(stream) for _ in range(int(rest))]
    if kind == "$":
        return stream.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
    return int(rest) if kind == ":" else line


def told_by(router, authority):
    """The first owners (host and port) that a router tells Redis Cluster clients, and how many slots they have together."""
    context = ssl.create_default_context(cafile=authority)
    with socket.create_connection((router.name, 11211), timeout=10) as plain, context.wrap_socket(plain, server_hostname=router.name) as it:
        with it.makefile("rb") as stream:
            it.sendall(f"AUTH ci {PASSWORD}\r\n".encode())
            resp_reply(stream)
            it.sendall(b"CLUSTER SLOTS\r\n")
            ranges = resp_reply(stream)
    if not isinstance(ranges, list):
        return set(), 0
    return {(owner[0], owner[1]) for _, _, owner, *_ in ranges}, sum(last - first + 1 for first, last, *_ in ranges)


def found_by_cluster_clients(where, routers, authority, machines):
    """Every router sends Redis Cluster clients to itself, at a name that leads there and that its certificate has."""
    for router in routers:
        until(
            f"{where}: {router.name} tells where it is", machines,
            lambda router=router: told_by(router, authority) == ({(router.name, 11211)}, 16384),
        )


def run(where, machines, authority, programs):
    names = "".join(f"{it.address} {it.name}\n" for it in machines)
    hosts = machines[0].root.parent / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{names}")
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    nodes = [it for it in machines if not it.is_router]
    routers = [it for it in machines if it.is_router]
    with contextlib.ExitStack() as running:
        for it in machines:
            it.connect()
            it.start(programs)
            running.callback(it.process.wait)
            running.callback(it.process.kill)
        until(f"{where}: readiness", machines, lambda: all(get(it, authority, "/readyz")[0] == 200 for it in machines))
        active = f'fonn_cluster_members{{state="active"}} {len(nodes)}\n'
        until(f"{where}: one cluster", machines, lambda: all(active in get(it, authority, "/metrics", "monitor")[1] for it in nodes))
        for it in machines:
            if get(it, authority, "/metrics")[0] != 401:
                sys.exit(f"{where}: {it.name} shows its metrics to everybody")
        for it in routers:
            stored_and_read(it, authority, machines)
        found_by_cluster_clients(where, routers, authority, machines)
        checked = [it for it in machines if "FONN_ADMIN" in it.environment]
        for it in checked:
            command, environment = it.inside(programs["ctl"], "status"), {"PATH": os.environ["PATH"], **it.environment}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{where}: the health check of {it.name}: {done.stdout}{done.stderr}")
        if checked:
            read_by_prometheus(where, machines, authority, programs, running)
    subprocess.run(["umount", "/etc/hosts"], check=True)
    print(f"{where}: {len(nodes)} nodes and {len(routers)} routers are one cluster, with users and certificates")


def read_by_prometheus(where, machines, authority, programs, running):
    machine = Machine("prometheus", 99, machines[0].root.parent, True)
    config = (ROOT / "deploy/prometheus/prometheus.secure.yaml").read_text().replace(": 15s", ": 1s")
    machine.write("/etc/prometheus/prometheus.yml", machine.here(config))
    machine.write("/etc/prometheus/ca.pem", pathlib.Path(authority).read_text())
    machine.write("/run/secrets/monitor_password", PASSWORD)
    log = open(machine.root / "log", "w", encoding="utf-8")
    command = [
        programs["prometheus"], f"--config.file={machine.root}/etc/prometheus/prometheus.yml",
        f"--storage.tsdb.path={machine.root}/tsdb", "--web.listen-address=127.0.0.1:9090",
    ]
    machine.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    running.callback(machine.process.wait)
    running.callback(machine.process.kill)

    def all_up():
        connection = http.client.HTTPConnection("127.0.0.1", 9090, timeout=5)
        connection.request("GET", "/api/v1/query?query=sum(up)")
        result = json.loads(connection.getresponse().read())["data"]["result"]
        return bool(result) and result[0]["value"][1] == str(len(machines))

    until(f"{where}: Prometheus reads all", [*machines, machine], all_up)


def main():
    if os.environ.get("FONN_TEST_UNSHARED") != "1":
        os.environ["FONN_TEST_UNSHARED"] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    # Names of networks are kept in files.
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run/netns"], check=True)
    for command in ("link set lo up", f"link add {BRIDGE} type bridge", f"address add 10.99.0.254/24 dev {BRIDGE}", f"link set {BRIDGE} up"):
        ip(command)
    helm_bin, compose_json, *rest = sys.argv[1:]
    programs = dict(zip(("prometheus", "node", "router", "ctl"), rest, strict=True))
    # Settings of who runs this are not theirs.
    for name in [it for it in os.environ if it.startswith("FONN_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        run("chart", *chart(helm_bin, f"{folder}/chart"), programs)
        run("compose", *compose(compose_json, f"{folder}/compose"), programs)
        run("install.md", *by_hand(f"{folder}/by-hand"), programs)


if __name__ == "__main__":
    main()
