"""redis-py's client for Redis Cluster, against one server that it finds the others by.

Usage: cluster.py HOST PORT SERVERS. SERVERS is how many servers own slots. Ends with status 0 and one
line, or with the failed assertion.
"""

import sys

import redis
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster


def main(host, port, servers):
    for protocol in 2, 3:
        for reads in None, LoadBalancingStrategy.ROUND_ROBIN:
            client = RedisCluster(
                startup_nodes=[ClusterNode(host, port)],
                protocol=protocol,
                load_balancing_strategy=reads,
                socket_timeout=60,
                # Every slot has to have an owner.
                require_full_coverage=True,
            )
            primaries = client.get_primaries()
            assert len(primaries) == servers, primaries
            work(client, f"{protocol}-{reads and reads.name}")
            facts(client, primaries)
            client.close()
    print(f"keys of {servers} servers were found")


def work(client, name):
    keys = [f"{name}-{number}" for number in range(200)]
    for key in keys:
        assert client.set(key, key)
    for key in keys:
        assert client.get(key) == key.encode()
    assert client.mset_nonatomic({key: b"new" for key in keys})
    assert client.mget_nonatomic(keys) == [b"new"] * len(keys)
    # One slot by its tag, and all slots by way of a pipeline.
    tagged = {f"{{{name}}}-{number}": b"v" for number in range(10)}
    assert client.mset(tagged)
    assert client.mget(list(tagged)) == [b"v"] * 10
    with client.pipeline() as pipe:
        for key in keys:
            pipe.incr(f"count-{key}")
        assert pipe.execute() == [1] * len(keys)
    with client.pipeline() as pipe:
        for key in keys:
            pipe.delete(key)
        assert pipe.execute() == [1] * len(keys)
    assert client.exists(*keys) == 0


def facts(client, primaries):
    info = client.cluster_info(target_nodes=primaries[0])
    assert info["cluster_state"] == "ok", info
    assert info["cluster_slots_assigned"] == "16384", info
    nodes = client.cluster_nodes()
    mine = [node for node in nodes.values() if "myself" in node["flags"]]
    assert len(mine) == 1, nodes
    identity = client.cluster_myid(primaries[0])
    assert any(node["node_id"].encode() == identity for node in nodes.values()), nodes
    slots = 0
    for shard in client.cluster_shards(target_nodes=primaries[0]):
        # By the versions of library and protocol: texts or bytes, pairs or all in one list.
        ends = shard["slots"] if "slots" in shard else shard[b"slots"]
        if isinstance(ends[0], (list, tuple)):
            ends = [end for pair in ends for end in pair]
        for first, last in zip(ends[0::2], ends[1::2]):
            slots += int(last) - int(first) + 1
    assert slots == 16384, slots
    slot = client.cluster_keyslot("{a}b")
    assert slot == client.cluster_keyslot("a") == 15495
    client.set("{a}b", "v")
    assert client.cluster_countkeysinslot(slot) >= 1
    assert client.cluster_links(primaries[0]) == []
    assert client.dbsize(target_nodes=primaries) > 0
    info = client.info(section="cluster", target_nodes=primaries[0])
    assert info["cluster_enabled"] == 1, info
    try:
        client.execute_command("CLUSTER BOGUS", target_nodes=primaries[0])
    except redis.ResponseError as error:
        assert "unknown subcommand" in str(error), error
    else:
        raise AssertionError("CLUSTER BOGUS was answered")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
