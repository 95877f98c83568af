"""redis-py's client for Redis Cluster, while the one of several servers that it goes to is killed.

Usage: goes_on.py SECONDS HOST:PORT... Says the port of the server that owns all slots for it, and reads and writes all the
time. Once standard input has ended, it goes on until another server owns all. Then it says for how long it failed and whether
a key was lost. The client itself tries again at once and gives up soon; what it gives up is tried again for so many seconds,
by the same client. Ends with status 0, or with the error that it gave.
"""

import sys
import threading
import time

import redis
from redis.cluster import ClusterNode, RedisCluster

FAILURES = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ClusterError)


class Patient:
    """Calls that are tried again."""

    def __init__(self, patience):
        self.patience = patience
        self.longest = 0

    def call(self, method, *args):
        begun = time.monotonic()
        while True:
            try:
                value = method(*args)
            except FAILURES:
                if time.monotonic() - begun > self.patience:
                    raise
                time.sleep(0.02)
            else:
                self.longest = max(self.longest, time.monotonic() - begun)
                return value


def owner(client):
    (primary,) = client.get_primaries()
    return primary.port


def main(patience, servers):
    addresses = [server.rpartition(":") for server in servers]
    client = RedisCluster(
        startup_nodes=[ClusterNode(host, int(port)) for host, _, port in addresses],
        # Else the client forgets the servers that it was given, and knows the one that owns all slots.
        dynamic_startup_nodes=False,
        socket_timeout=patience,
        require_full_coverage=True,
    )
    keys = [f"key-{number}" for number in range(100)]
    for key in keys:
        assert client.set(key, key)
    first = owner(client)
    print(first, flush=True)
    killed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), killed.set()), daemon=True).start()
    patient = Patient(patience)
    while not killed.is_set() or owner(client) == first:
        for key in keys:
            assert patient.call(client.get, key) == key.encode(), key
            assert patient.call(client.set, key, key), key
    assert client.mget_nonatomic(keys) == [key.encode() for key in keys]
    print(f"no key was lost, and no call failed for longer than {patient.longest:.2f} s", flush=True)
    client.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
