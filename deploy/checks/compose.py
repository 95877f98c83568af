#!/usr/bin/env python3
"""Checks a compose file, or several on top of each other, as Compose itself reads them (the path of what it makes of them is the
argument): what every service must have."""

import json
import sys

PUBLISHED_ON = "127.0.0.1"


def environment(service):
    """Its variables. Of several files Compose makes a list."""
    given = service.get("environment", {})
    return dict(it.split("=", 1) for it in given) if isinstance(given, list) else given


def problems(name, service):
    if not service.get("read_only"):
        yield f"{name} can write to its root"
    if service.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in service.get("security_opt", []):
        yield f"{name} has capabilities, or may gain some"
    image = service["image"]
    if "build" not in service and (":" not in image or image.endswith(":latest")):
        yield f"{name}: {image} moves"
    for port in service.get("ports", []):
        if port.get("host_ip") != PUBLISHED_ON:
            yield f"{name} is published on {port.get('host_ip', 'every address')}"


def advertised(name, service):
    """A router in a container listens on all addresses, and tells Redis Cluster clients its own name and port."""
    given = environment(service)
    port = given.get("FONN_LISTEN", "").rpartition(":")[2]
    if given.get("FONN_ADVERTISE") != f"{name}:{port}":
        yield f"{name} advertises {given.get('FONN_ADVERTISE')}, not {name}:{port}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        services = json.load(file)["services"]
    found = [it for name, service in services.items() for it in problems(name, service)]
    nodes = {environment(it).get("FONN_NODE_ID") for it in services.values()} - {None}
    routers = [name for name, it in services.items() if "fonn-router" in str(it.get("entrypoint"))]
    found += [it for name in routers for it in advertised(name, services[name])]
    if len(nodes) != 3 or len(routers) != 2:
        found.append(f"there are {len(nodes)} nodes and {len(routers)} routers")
    for it in found:
        print(it)
    if found:
        sys.exit(1)
    print(f"{len(services)} services: {len(nodes)} nodes, {len(routers)} routers, none with more rights than it needs")


if __name__ == "__main__":
    main()
