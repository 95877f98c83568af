#!/usr/bin/env python3
"""Renders the chart with several sets of values and checks what comes out.

usage: helm.py HELM CRDS   (the program; the directory with the CRDs of the Prometheus operator and of cert-manager)

- `helm lint --strict`; every object against Kubernetes' own schema (strictly, for the oldest and the newest version),
  ServiceMonitor, PrometheusRule and Certificate against their operators'.
- The scripts that complete the configurations of nodes and routers are run, and their results parsed.
- Values that must be refused are.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

import jsonschema
import kubernetes_validate
import yaml

from settings import known_keys

CHART = pathlib.Path(__file__).resolve().parents[1] / "helm/fonn"
VERSIONS = ["1.28", "1.36"]
REFUSED = {
    "nobody may reach it and it is not insecure": [],
    "an unknown value": ["access.insecure=true", "nodes.replica=3"],
    "users, and routers that nodes do not know": ["access.usersSecret=users"],
    "revocations without a list": ["access.usersSecret=users", "access.certManager.issuerRef.name=issuer", "access.revocations=true"],
    "two certificates": ["access.usersSecret=users", "access.tlsSecret=tls", "access.certManager.issuerRef.name=issuer"],
    "users, and a Prometheus that does not log in": ["access.usersSecret=users", "access.tlsSecret=tls", "access.networkPolicy.enabled=false", "monitoring.serviceMonitor=true"],
    "a Prometheus that the network policy keeps out": ["access.insecure=true", "monitoring.serviceMonitor=true"],
    "an empty peer of the admin ports": ["access.insecure=true", "access.networkPolicy.admins[0].podSelector=null"],
    "no node": ["access.insecure=true", "nodes.replicas=0"],
    "an image by tag": ["allowTags=false", "access.insecure=true", f"initImage.digest=sha256:{'0' * 64}"],
    "a helper's image by tag": ["allowTags=false", "access.insecure=true", f"image.digest=sha256:{'0' * 64}"],
    "a moving tag": ["access.insecure=true", "image.tag=latest"],
    "a bucket that is none": ["access.insecure=true", "coldTier.url=http://x"],
    "more RAM than there is": ["access.insecure=true", "nodes.ramBudget=120%"],
    "more RAM than a router has": ["access.insecure=true", "routers.ramBudget=120%"],
    "a size that is none": ["access.insecure=true", "coldTier.budget=much"],
    "a router that is found at no port": ["access.insecure=true", "routers.advertise=cache.example.com"],
    "a router that is found at a wildcard": ["access.insecure=true", "routers.advertise=*:11211"],
    "two addresses of a router": ["access.insecure=true", "routers.settings.advertise=cache.example.com:11211"],
}
# An address of a pod, and what the chart makes of it without TLS, and with it.
PODS = (
    ("10.1.2.3", "10.1.2.3:11211", "10-1-2-3.fonn-router.cache.svc:11211"),
    ("fd00::a:1", "[fd00::a:1]:11211", "fd00--a-1.fonn-router.cache.svc:11211"),
)
problems = []


def run(helm, *arguments):
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def render(helm, version, *arguments):
    code, out, err = run(helm, "template", "fonn", str(CHART), "-n", "cache", "--kube-version", f"{version}.0", *arguments)
    if code:
        sys.exit(f"helm template {' '.join(arguments)}: {err}")
    return [it for it in yaml.safe_load_all(out) if it]


def crd_schemas(directory):
    schemas = {}
    for kind in ("monitoring.coreos.com_servicemonitors", "monitoring.coreos.com_prometheusrules", "cert-manager.io_certificates"):
        crd = yaml.safe_load((directory / f"{kind}.yaml").read_text())
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schemas[crd["spec"]["names"]["kind"]] = strict(schema)
    return schemas


def strict(schema):
    """Structural schemas drop unknown fields; here they are errors."""
    if isinstance(schema, dict):
        if "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
            schema.setdefault("additionalProperties", False)
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
        # Go's way to ignore the case, which Python's has at the beginning only.
        if "(?i)" in str(schema.get("pattern")):
            schema.pop("pattern")
        for value in schema.values():
            strict(value)
    elif isinstance(schema, list):
        for value in schema:
            strict(value)
    return schema


def check_objects(objects, version, crds, where):
    for it in objects:
        name = f"{where}: {it['kind']}/{it['metadata']['name']}"
        try:
            if it["kind"] in crds:
                # Its metadata is any object's, which the CRD leaves to Kubernetes.
                body = {key: value for key, value in it.items() if key != "metadata"}
                jsonschema.validate(body, crds[it["kind"]])
            else:
                kubernetes_validate.validate(it, version, strict=True)
        except (kubernetes_validate.ValidationError, jsonschema.ValidationError) as error:
            problems.append(f"{name}: {getattr(error, 'message', error)}")
        if it["kind"] in ("StatefulSet", "Deployment"):
            check_pod(it["spec"]["template"]["spec"], name)


def check_pod(pod, name):
    if not pod["securityContext"]["runAsNonRoot"] or pod["automountServiceAccountToken"]:
        problems.append(f"{name}: runs as root or holds a token")
    for container in pod["containers"] + pod.get("initContainers", []):
        security = container["securityContext"]
        if not security["readOnlyRootFilesystem"] or security["capabilities"] != {"drop": ["ALL"]}:
            problems.append(f"{name}: {container['name']} may write or has capabilities")
        if "memory" not in container["resources"]["limits"]:
            problems.append(f"{name}: {container['name']} has no memory limit")
    for container in pod["containers"]:
        probes = {it: container[it]["httpGet"]["path"] for it in ("livenessProbe", "readinessProbe")}
        if probes != {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}:
            problems.append(f"{name}: probes are {probes}")


def configuration(objects):
    """The files of the ConfigMap by their names."""
    return next(it for it in objects if it["kind"] == "ConfigMap" and "node.toml" in it["data"])["data"]


def environment(objects, ordinal, zone=""):
    """What the container that completes a node's configuration is given."""
    nodes = next(it for it in objects if it["kind"] == "StatefulSet")["spec"]
    given = {it["name"]: it.get("value") for it in nodes["template"]["spec"]["initContainers"][0]["env"]}
    return {**given, "POD_NAME": f"fonn-node-{ordinal}", "ZONE": zone}


def check_advertised(objects, where, router, pod):
    """Where Redis Cluster clients are sent: an address that they reach, under a name that the certificate has."""
    address, plain, named = pod
    wanted = named if "tls_cert" in router else plain
    if router.get("advertise") != wanted:
        problems.append(f"{where}: the router of the pod {address} advertises {router.get('advertise')}, not {wanted}")
    service = [it for it in objects if it["kind"] == "Service" and it["metadata"]["name"] == "fonn-router"]
    deployment = next(it for it in objects if it["kind"] == "Deployment")["spec"]
    selector = deployment["selector"]["matchLabels"]
    if len(service) != 1 or service[0]["spec"].get("clusterIP") != "None" or service[0]["spec"]["selector"] != selector:
        problems.append(f"{where}: no headless service gives the routers names")
    given = deployment["template"]["spec"]["initContainers"][0]["env"]
    if {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} not in given:
        problems.append(f"{where}: the router's script does not know the pod's address")
    arguments = deployment["template"]["spec"]["containers"][0]["args"]
    if arguments != ["--config", "/run/fonn/router.toml"]:
        problems.append(f"{where}: the router does not read what the script wrote: {arguments}")


def check_one_address(helm):
    """One address before all routers wins over those of their pods."""
    values = ("-f", str(CHART / "ci/production.yaml"), "--set=routers.advertise=cache.example.com:11211")
    data = configuration(render(helm, VERSIONS[-1], *values))
    found = tomllib.loads(prepared(data, {"POD_IP": "10.1.2.3"}, "router")).get("advertise")
    if found != "cache.example.com:11211":
        problems.append(f"a router behind a load balancer advertises {found}")


def check_configuration(objects, where):
    data = configuration(objects)
    # Without routers there is their configuration all the same, and nobody reads it.
    has_routers = any(it["kind"] == "Deployment" for it in objects)
    for pod in PODS:
        router = tomllib.loads(prepared(data, {"POD_IP": pod[0]}, "router"))
        check_keys(router, f"{where}: router.toml")
        if has_routers:
            check_advertised(objects, where, router, pod)
    hosts = {it.partition(":")[0] for it in [*router["cluster"], router.get("advertise", "")]}
    for ordinal, zone in ((0, ""), (1, "eu-central-1a")):
        given = environment(objects, ordinal, zone)
        config = tomllib.loads(prepared(data, given))
        check_keys(config, f"{where}: node.toml")
        hosts |= {config["advertise"].partition(":")[0]}
        wanted = {"node_id": f"fonn-node-{ordinal}", "bootstrap": True if ordinal == 0 else None, "zone": zone or None,
                  "join": None if ordinal == 0 else given["MEMBERS"].split(",")}
        for key, value in wanted.items():
            if config.get(key) != value:
                problems.append(f"{where}: node {ordinal} has {key} = {config.get(key)}, not {value}")
    for it in objects:
        if it["kind"] == "Certificate":
            for host in hosts:
                if not any(names(name, host) for name in it["spec"]["dnsNames"]):
                    problems.append(f"{where}: the certificate does not name {host}")


def names(name, host):
    """Whether a name in a certificate is that of a host, as rustls sees it: a wildcard is one label before two at least."""
    if not name.startswith("*."):
        return name == host
    return name.count(".") >= 2 and host.partition(".")[2] == name[2:]


def prepared(data, environment, role="node"):
    """What the script of a node or of a router makes, run with the paths of a temporary directory."""
    script = {"node": "prepare.sh", "router": "prepare-router.sh"}[role]
    with tempfile.TemporaryDirectory() as folder:
        for part in ("config", "run/fonn"):
            os.makedirs(f"{folder}/{part}")
        pathlib.Path(folder, f"config/{role}.toml").write_text(data[f"{role}.toml"])
        script = data[script].replace("/config/", f"{folder}/config/").replace("/run/fonn", f"{folder}/run/fonn")
        environment = {key: value for key, value in environment.items() if value is not None}
        subprocess.run(["sh", "-c", script], env={"PATH": os.environ["PATH"], **environment}, check=True)
        return pathlib.Path(folder, f"run/fonn/{role}.toml").read_text()


def check_keys(config, where):
    for key in config.keys() - known_keys():
        problems.append(f"{where}: there is no setting {key}")


def check_policy(helm):
    """Admin ports are open to the peers that are named, and to no other."""
    admin_ports = {11280, 11281}
    for values, wanted in (("production", [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]), ("trial", [])):
        objects = render(helm, VERSIONS[-1], "-f", str(CHART / f"ci/{values}.yaml"))
        policies = [it["spec"] for it in objects if it["kind"] == "NetworkPolicy"]
        if len(policies) != 1 or policies[0]["policyTypes"] != ["Ingress"]:
            problems.append(f"{values}: the network policies are {policies}")
        rules = [rule for it in policies for rule in it["ingress"] if admin_ports & {port["port"] for port in rule["ports"]}]
        found = [peer for rule in rules for peer in rule.get("from") or [{"everybody": True}]]
        if found != wanted:
            problems.append(f"{values}: {found} may reach the admin ports, not {wanted}")


def main():
    helm, crds = sys.argv[1], crd_schemas(pathlib.Path(sys.argv[2]))
    sets = sorted((CHART / "ci").glob("*.yaml"))
    for values in sets:
        code, out, err = run(helm, "lint", "--strict", str(CHART), "-f", str(values), "--kube-version", f"{VERSIONS[-1]}.0")
        if code:
            problems.append(f"helm lint with {values.name}: {out}{err}")
        for version in VERSIONS:
            objects = render(helm, version, "-f", str(values))
            check_objects(objects, version, crds, f"{values.name}, Kubernetes {version}")
        check_configuration(objects, values.name)
    check_one_address(helm)
    check_policy(helm)
    rules = [it for it in render(helm, VERSIONS[-1], "-f", str(CHART / "ci/production.yaml")) if it["kind"] == "PrometheusRule"]
    if "https://example.com/fonn/docs/operations/runbooks.md#fonnbusy" not in json.dumps(rules):
        problems.append("alerts in the chart do not link to runbooks")
    for why, values in REFUSED.items():
        # What is refused is not refused for its tags alone.
        values = ["allowTags=true", *values]
        code, _, _ = run(helm, "template", "fonn", str(CHART), "--kube-version", f"{VERSIONS[-1]}.0", *(f"--set={it}" for it in values))
        if code == 0:
            problems.append(f"accepted: {why}")
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    print(f"{len(sets)} sets of values render valid objects for Kubernetes {' and '.join(VERSIONS)}; {len(REFUSED)} are refused")


if __name__ == "__main__":
    main()
