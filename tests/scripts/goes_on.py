"""redis-py's client for Redis Cluster, while one of the two servers that it goes to is killed.

Usage: goes_on.py HOST PORT SECONDS. Says how many servers own slots, reads and writes all the time, until standard input has
ended and one server owns all, and then for how long it failed and whether a key was lost. The client itself tries again at
once and gives up soon; what it gives up is tried again for so many seconds, by the same client. Ends with status 0, or with
the error that it gave.
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


def main(host, port, patience):
    client = RedisCluster(
        startup_nodes=[ClusterNode(host, port)],
        socket_timeout=patience,
        require_full_coverage=True,
    )
    keys = [f"key-{number}" for number in range(100)]
    for key in keys:
        assert client.set(key, key)
    print(f"{len(client.get_primaries())} servers", flush=True)
    killed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), killed.set()), daemon=True).start()
    patient = Patient(patience)
    while not killed.is_set() or len(client.get_primaries()) != 1:
        for key in keys:
            assert patient.call(client.get, key) == key.encode(), key
            assert patient.call(client.set, key, key), key
    print("1 server", flush=True)
    assert client.mget_nonatomic(keys) == [key.encode() for key in keys]
    print(f"no key was lost, and no call failed for longer than {patient.longest:.2f} s", flush=True)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
