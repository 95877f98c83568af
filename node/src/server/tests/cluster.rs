//! Clients that find owners by themselves, at a node that is in no cluster and at one that is.

use std::sync::Arc;

use fonn_disk_tier::levels::CodecChoice;
use fonn_proto::cluster::NodeId;
use fonn_proto::member::MemberState;
use fonn_proto::placement;
use tokio::sync::watch;

use super::*;
use fonn_membership::testing as maps;
use fonn_membership::view::Views;

#[test]
fn a_node_in_no_cluster_owns_all_slots_at_the_address_that_the_client_reached() {
    let node = Node::start(Options::default());
    let mut client = node.connect();
    let (port, id) = (node.addr.port(), NodeId::of_name("fonn-node"));
    let slots = format!(
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$40\r\n{id}\r\n*0\r\n"
    );
    exchange(
        &mut client,
        &resp(&[b"CLUSTER", b"SLOTS"]),
        slots.as_bytes(),
    );
    let my_id = format!("$40\r\n{id}\r\n");
    exchange(&mut client, &resp(&[b"CLUSTER", b"MYID"]), my_id.as_bytes());
    exchange(
        &mut client,
        &resp(&[b"INFO", b"cluster"]),
        b"$30\r\n# Cluster\r\ncluster_enabled:1\r\n\r\n",
    );
    // It owns them: no client is redirected.
    let replies = b"+OK\r\n$1\r\nv\r\n";
    exchange(&mut client, b"SET foo v\r\nGET foo\r\n", replies);
}

/// Sets keys, of which some are of one slot; asks how many.
fn count_keys_of_a_slot(node: &Node) {
    let mut client = node.connect();
    let slot = placement::slot(b"tag").to_string();
    let count = resp(&[b"CLUSTER", b"COUNTKEYSINSLOT", slot.as_bytes()]);
    exchange(&mut client, &count, b":0\r\n");
    for n in 0..300 {
        let key = format!("{{tag}}-{n}");
        exchange(
            &mut client,
            &resp(&[b"SET", key.as_bytes(), b"v"]),
            b"+OK\r\n",
        );
        let key = format!("{{other}}-{n}");
        exchange(
            &mut client,
            &resp(&[b"SET", key.as_bytes(), b"v"]),
            b"+OK\r\n",
        );
    }
    exchange(&mut client, &resp(&[b"DEL", b"{tag}-7"]), b":1\r\n");
    exchange(&mut client, &count, b":299\r\n");
    // Of the database that was chosen.
    exchange(&mut client, b"SELECT 1\r\n", b"+OK\r\n");
    exchange(&mut client, &count, b":0\r\n");
}

#[test]
fn the_keys_of_a_slot_are_counted_in_ram_and_on_disk() {
    count_keys_of_a_slot(&Node::start(Options::default()));
    let dir = tempfile::tempdir().unwrap();
    count_keys_of_a_slot(&Node::start(Options {
        disk: Some(DiskOptions {
            dir: dir.path().join("data"),
            budget_bytes: 256 << 20,
            durability: Durability::Batched,
            fresh: CodecChoice::none(),
            compacted: CodecChoice::none(),
            codec_min_bytes: 256,
            value_len_max: VALUE_LEN_MAX,
            queue_bytes_max: 8 << 20,
            memory_bytes: 4 << 20,
            read_threads: 1,
            compaction_percent: 0,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        }),
        ..Options::default()
    }));
}

#[test]
fn a_member_tells_the_map() {
    let member = |id, address| maps::member(id, address, MemberState::Active, 100);
    let members = vec![member("a", "10.0.0.1:1"), member("b", "10.0.0.2:2")];
    let map = maps::map(9, 1, members);
    let (_maps, receiver) = watch::channel(Arc::new(map));
    let views = Views::of(receiver, "b", "10.0.0.2:2");
    let node = Node::start(Options {
        views: Some(Arc::new(views)),
        ..Options::default()
    });
    let mut client = node.connect();
    client.write_all(&resp(&[b"CLUSTER", b"NODES"])).unwrap();
    client.write_all(&resp(&[b"PING"])).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"+PONG\r\n") {
        let mut part = [0; 4096];
        let len = client.read(&mut part).unwrap();
        assert!(len > 0, "the connection ended");
        reply.extend_from_slice(&part[..len]);
    }
    let reply = String::from_utf8(reply).unwrap();
    let lines: Vec<_> = reply.lines().skip(1).take(2).collect();
    let head = |name: &str, address: &str, flags: &str| {
        let id = NodeId::of_name(name);
        format!("{id} {address}@0 {flags} - 0 0 9 connected ")
    };
    assert!(lines[0].starts_with(&head("a", "10.0.0.1:1", "master")));
    assert!(lines[1].starts_with(&head("b", "10.0.0.2:2", "myself,master")));
    let my_id = format!("$40\r\n{}\r\n", NodeId::of_name("b"));
    exchange(&mut client, &resp(&[b"CLUSTER", b"MYID"]), my_id.as_bytes());
}
