"""One scenario for a Python client of each family, against one node.

Usage: clients.py HOST PORT. Each client does what programs do with it; then each reads what the
others wrote. Ends with status 0 and one line per client, or with the failed assertion.
"""

import sys
import time

import bmemcached
import pymemcache
import redis


class Text:
    """pymemcache: memcached text."""

    def __init__(self, host, port):
        self.client = pymemcache.Client((host, port), timeout=60, connect_timeout=60)

    def set(self, key, value, ttl=0):
        # The default of the library is noreply, pipelined with what follows.
        self.client.set(key, value, expire=ttl)

    def get(self, key):
        return self.client.get(key)

    def delete(self, key):
        return self.client.delete(key, noreply=False)

    def counter(self, key):
        self.client.set(key, b"10", noreply=False)
        assert self.client.incr(key, 5) == 15
        assert self.client.decr(key, 3) == 12

    def conditional(self, key):
        assert self.client.add(key, b"one", noreply=False)
        assert not self.client.add(key, b"two", noreply=False)
        value, token = self.client.gets(key)
        assert value == b"one"
        assert self.client.cas(key, b"two", token, noreply=False)
        assert self.client.cas(key, b"three", token, noreply=False) is False
        assert self.client.append(key, b"!", noreply=False)
        assert self.client.get(key) == b"two!"

    def many(self, values):
        assert self.client.set_many(values, noreply=False) == []
        found = self.client.get_many(list(values) + ["absent"])
        assert found == values, found

    def extras(self):
        assert self.client.version()
        assert self.client.stats()[b"version"]
        assert self.client.touch("many-1", 100, noreply=False)
        assert not self.client.touch("absent", 100, noreply=False)


class Binary:
    """python-binary-memcached: memcached binary."""

    def __init__(self, host, port):
        self.client = bmemcached.Client((f"{host}:{port}",), socket_timeout=60)
        self.client.enable_retry_delay(False)

    def set(self, key, value, ttl=0):
        assert self.client.set(key, value, time=ttl, compress_level=0)

    def get(self, key):
        # What other clients wrote carries no flags, which this library takes for text.
        value = self.client.get(key)
        return value.encode() if isinstance(value, str) else value

    def delete(self, key):
        return self.client.delete(key)

    def counter(self, key):
        self.client.delete(key)
        assert self.client.incr(key, 5, default=10) == 10
        assert self.client.incr(key, 5) == 15
        assert self.client.decr(key, 3) == 12

    def conditional(self, key):
        assert self.client.add(key, b"one")
        assert not self.client.add(key, b"two")
        assert self.client.replace(key, b"uno")
        value, token = self.client.gets(key)
        assert value == b"uno" and token
        assert self.client.cas(key, b"two", token)
        assert not self.client.cas(key, b"three", token)
        assert self.client.get(key) == b"two"

    def many(self, values):
        assert not self.client.set_multi(values)
        found = self.client.get_multi(list(values) + ["absent"])
        assert found == values, found

    def extras(self):
        stats = self.client.stats()
        assert all(server["version"] for server in stats.values()), stats
        # A number and a text carry flags that only this library understands.
        assert self.client.set("number", 42) and self.client.get("number") == 42
        assert self.client.set("text", "søk") and self.client.get("text") == "søk"
        long = b"compressible " * 10_000
        assert self.client.set("long", long, compress_level=6) and self.client.get("long") == long


class Resp:
    """redis-py: RESP, version 2 or 3."""

    def __init__(self, host, port, protocol):
        self.client = redis.Redis(host=host, port=port, protocol=protocol, socket_timeout=60)

    def set(self, key, value, ttl=0):
        assert self.client.set(key, value, ex=ttl or None)

    def get(self, key):
        return self.client.get(key)

    def delete(self, key):
        return self.client.delete(key) == 1

    def counter(self, key):
        self.client.set(key, b"10")
        assert self.client.incr(key, 5) == 15
        assert self.client.decr(key, 3) == 12
        assert self.client.incrbyfloat(key, 0.5) == 12.5

    def conditional(self, key):
        assert self.client.set(key, b"one", nx=True)
        assert self.client.set(key, b"two", nx=True) is None
        assert self.client.set(key, b"two", xx=True)
        assert self.client.getset(key, b"three") == b"two"
        assert self.client.append(key, b"!") == 6
        assert self.client.getrange(key, 0, 2) == b"thr"
        assert self.client.getdel(key) == b"three!"
        assert self.client.exists(key) == 0

    def many(self, values):
        assert self.client.mset(values)
        found = self.client.mget(list(values) + ["absent"])
        assert found == list(values.values()) + [None], found
        with self.client.pipeline(transaction=False) as pipe:
            for key in values:
                pipe.get(key)
                pipe.strlen(key)
            replies = pipe.execute()
        assert replies[0::2] == list(values.values())
        assert replies[1::2] == [len(value) for value in values.values()]

    def transactions(self):
        # The library wraps a pipeline in MULTI and EXEC by default.
        with self.client.pipeline() as pipe:
            replies = pipe.set("{t}a", 1).incr("{t}a").get("{t}a").delete("{t}a").execute()
        assert replies == [True, 2, b"2", 1], replies
        self.client.set("{t}n", 5)
        with self.client.pipeline() as pipe:
            pipe.watch("{t}n")
            number = int(pipe.get("{t}n"))
            pipe.multi()
            pipe.set("{t}n", number + 1)
            assert pipe.execute() == [True]
            pipe.watch("{t}n")
            self.client.set("{t}n", 100)
            pipe.multi()
            pipe.set("{t}n", 0)
            try:
                pipe.execute()
            except redis.WatchError:
                pass
            else:
                raise AssertionError("the watched key has changed")
        assert self.client.get("{t}n") == b"100"
        assert self.client.rename("{t}n", "{t}m") and self.client.get("{t}m") == b"100"
        assert self.client.delete("{t}m") == 1

    def extras(self):
        self.transactions()
        assert self.client.ping()
        assert self.client.info()["redis_version"]
        assert self.client.config_get("maxmemory")["maxmemory"]
        assert self.client.dbsize() > 0
        assert self.client.type("many-1") == b"string"
        assert {key for key in self.client.scan_iter(match="many-*")} == {
            f"many-{number}".encode() for number in range(20)
        }
        assert self.client.expire("many-1", 100) and 90 <= self.client.ttl("many-1") <= 100
        assert self.client.persist("many-1") and self.client.ttl("many-1") == -1
        assert self.client.command_count() > 50
        assert self.client.client_info()["id"] > 0
        other = redis.Redis(
            connection_pool=redis.ConnectionPool(
                **{**self.client.connection_pool.connection_kwargs, "db": 5}
            )
        )
        assert other.get("many-1") is None
        try:
            self.client.lpush("list", 1)
        except redis.ResponseError as error:
            assert "unknown command" in str(error)
        else:
            raise AssertionError("LPUSH is not supported and must say so")


def scenario(client, name):
    """What every family can do."""
    key = f"{name}-key"
    assert client.get(key) is None
    for size in (0, 1, 1000, 100_000, 3_000_000):
        value = bytes((size + index) & 0xFF for index in range(min(size, 997))) * (size // 997 + 1)
        value = value[:size]
        client.set(key, value)
        assert client.get(key) == value, size
    assert client.delete(key)
    assert not client.delete(f"{name}-absent") or name == "binary", "nothing to delete"
    assert client.get(key) is None
    client.set(key, b"short", ttl=1)
    deadline = time.monotonic() + 60
    while client.get(key) is not None:
        assert time.monotonic() < deadline, "one second has no end"
        time.sleep(0.02)
    client.counter(f"{name}-counter")
    client.conditional(f"{name}-conditional")
    client.many({f"many-{number}": b"value %d" % number for number in range(20)})
    client.extras()
    client.set(f"{name}-shared", name.encode() * 1000)


def main():
    host, port = sys.argv[1], int(sys.argv[2])
    clients = {
        "text": Text(host, port),
        "binary": Binary(host, port),
        "resp2": Resp(host, port, 2),
        "resp3": Resp(host, port, 3),
    }
    for name, client in clients.items():
        scenario(client, name)
        print(f"{name}: {type(client).__doc__} passed")
    for name in clients:
        for reader_name, reader in clients.items():
            got = reader.get(f"{name}-shared")
            assert got == name.encode() * 1000, f"{reader_name} reads {name}: {got!r:.80}"
    print("each reads what the others wrote")


main()
