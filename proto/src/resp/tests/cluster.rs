//! `CLUSTER`, compared with a Redis cluster; and the redirected clients.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use super::{Client, LIMITS, Model, array};
use crate::cluster::{ClusterMember, ClusterView, Health, NodeId, SlotRange};
use crate::placement::{Owners, Placed, SLOT_COUNT, Table};
use crate::request::{Body, ServerOutcome, Step};
use crate::resp::{Parser, inline};
use crate::{Moved, Out, Outcome, Redirects};

const RECORDED: &str = include_str!("redis-7.0-cluster.txt");

/// The nodes of the recorded cluster, by port from 7301 on.
const IDS: [&str; 6] = [
    "3837f73abef4733f4381334c98d36eeff66f4708",
    "3c50799e4291210849d98f0ba272d7bca5c7401f",
    "5f6d546a11dc54340884e6df7cc98cf4baa1f5b2",
    "a9489f7c7593594d887480f17189d4c7d4f970be",
    "24c93df246bd3923bca15b00546f65138cea12d9",
    "576c204d9f3641d92321598baf38fcb8414aedb4",
];

fn id(digits: &str) -> NodeId {
    let mut bytes = [0; 20];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal");
    }
    NodeId::from_bytes(bytes)
}

fn range(first: u16, last: u16, owners: &[u16]) -> SlotRange {
    SlotRange {
        first,
        last,
        owners: Owners::new(owners).expect("one to three owners"),
    }
}

/// The recorded cluster in one of its states.
fn recorded_view(state: &str) -> ClusterView {
    let healths = match state {
        "young" => [Health::Loading; 3],
        "whole" => [Health::Online; 3],
        // That of port 7305 is the second of the replicas.
        _ => [Health::Online, Health::Failed, Health::Online],
    };
    let members = (7301..)
        .zip(IDS)
        .enumerate()
        .map(|(at, (port, digits))| ClusterMember {
            id: id(digits),
            host: "127.0.0.1".to_owned(),
            port,
            health: at.checked_sub(3).map_or(Health::Online, |at| healths[at]),
        });
    let (a, b, c) = ([0, 5], [1, 3], [2, 4]);
    let ranges = match state {
        "moved" => vec![
            range(0, 2, &b),
            range(3, 5460, &a),
            range(5461, 10_922, &b),
            range(10_923, 16_383, &c),
        ],
        _ => vec![
            range(0, 5460, &a),
            range(5461, 10_922, &b),
            range(10_923, 16_383, &c),
        ],
    };
    ClusterView::new(7, 0, members.collect(), ranges).expect("is right")
}

fn knowing(mut client: Client, view: ClusterView) -> Client {
    client.model = Model {
        server: Some(ServerOutcome::Cluster(Arc::new(view))),
        ..Model::default()
    };
    client
}

/// Without what differs from call to call, or is not there in our clusters: ports of the bus,
/// times, epochs, counted messages, and the order of nodes.
fn comparable(request: &str, reply: &str) -> Vec<String> {
    let fields = |line: &str| {
        // Lengths differ by the times.
        if line.starts_with(['$', '=']) {
            return line.replace(|it: char| it.is_ascii_digit(), "");
        }
        let mut fields: Vec<_> = line.split(' ').map(str::to_owned).collect();
        if let [_, address, _, _, ping, pong, epoch, ..] = &mut fields[..] {
            address.truncate(address.find('@').unwrap_or(address.len()));
            [ping, pong, epoch].into_iter().for_each(String::clear);
        }
        fields.join(" ")
    };
    match request.split(' ').nth(1) {
        Some("NODES" | "REPLICAS" | "SLAVES") if !reply.starts_with('-') => {
            // Before the first node, whichever that is.
            let reply = reply.replacen("txt:", "txt:\\n", 1);
            let mut lines: Vec<_> = reply.split("\\n").map(fields).collect();
            lines.sort();
            lines
        }
        Some("INFO") => {
            let differs = |line: &&str| {
                [
                    "cluster_current_epoch",
                    "cluster_my_epoch",
                    "cluster_stats",
                    "$",
                    "=",
                ]
                .iter()
                .any(|it| line.starts_with(it))
            };
            let lines = reply.split("\\r\\n").filter(|line| !differs(line));
            lines.map(str::to_owned).collect()
        }
        _ => vec![reply.to_owned()],
    }
}

#[test]
fn questions_are_answered_as_by_a_redis_cluster() {
    let mut compared = 0;
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('\t').collect();
        let [state, protocol, request, expected] = columns[..] else {
            panic!("{line}");
        };
        let client = match protocol {
            "2" => Client::new(),
            _ => Client::resp3(),
        };
        let mut client = knowing(client, recorded_view(state));
        if request.starts_with("CLUSTER COUNTKEYSINSLOT") {
            client.model.server = Some(ServerOutcome::Integer(0));
        }
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        inline::split(request.as_bytes(), &mut bytes, &mut spans).expect("quoted well");
        let args: Vec<_> = spans
            .iter()
            .map(|span| &bytes[span.start..span.start + span.len])
            .collect();
        assert_eq!(
            comparable(request, &client.call(&args)),
            comparable(request, expected),
            "{state} {protocol} {request}"
        );
        compared += 1;
    }
    assert_eq!(compared, 76);
}

#[test]
fn what_redis_of_later_versions_or_only_we_answer() {
    let mut client = knowing(Client::new(), recorded_view("whole"));
    let shard = id(IDS[0]).shard();
    assert_eq!(
        client.words("CLUSTER MYSHARDID"),
        format!("$40\\r\\n{shard}\\r\\n")
    );
    assert_eq!(client.words("cluster links"), "*0\\r\\n");
    let help = client.words("CLUSTER HELP");
    for subcommand in crate::resp::COMMANDS
        .iter()
        .find(|info| info.name == "cluster")
        .expect("row")
        .subcommands
    {
        let name = subcommand.name.strip_prefix("cluster|").expect("prefix");
        let is_told = help.contains(&format!("+{}", name.to_uppercase()));
        assert!(is_told || name == "slaves", "{name}");
    }
    // A replica is in the shard of its primary.
    let members = recorded_view("whole").members().to_vec();
    let ranges = recorded_view("whole").ranges().to_vec();
    let replica = ClusterView::new(7, 5, members, ranges).expect("is right");
    let mut client = knowing(Client::new(), replica);
    assert_eq!(
        client.words("CLUSTER MYSHARDID"),
        format!("$40\\r\\n{shard}\\r\\n")
    );
}

#[test]
fn slots_without_an_owner_or_with_a_failed_one_are_told() {
    let mut members = recorded_view("whole").members().to_vec();
    members[1].health = Health::Failed;
    let ranges = vec![range(0, 99, &[0]), range(200, 299, &[1])];
    let view = ClusterView::new(7, 0, members, ranges).expect("is right");
    let mut client = knowing(Client::new(), view);
    let info = client.words("CLUSTER INFO");
    for fact in [
        "cluster_state:fail",
        "cluster_slots_assigned:200",
        "cluster_slots_ok:100",
        "cluster_slots_fail:100",
        "cluster_known_nodes:6",
        "cluster_size:2",
        "cluster_current_epoch:7",
    ] {
        assert!(info.contains(&format!("{fact}\\r\\n")), "{fact} in {info}");
    }
    // Members that own nothing are shards of their own.
    assert!(client.words("CLUSTER SHARDS").starts_with("*6\\r\\n"));
}

/// How the last request of `requests` is to be sent to other members.
fn redirects(requests: &[&str]) -> Redirects {
    let mut parser = Parser::new(LIMITS, 1);
    let mut last = None;
    for request in requests {
        let args: Vec<_> = request.split(' ').map(str::as_bytes).collect();
        let bytes = array(&args);
        let Step::Request { request, .. } = parser.parse(&bytes) else {
            panic!("{request} is complete");
        };
        last = Some(request.reply.redirects());
        if !matches!(request.body, Body::Data(_)) {
            assert_eq!(last, Some(Redirects::Never));
        }
    }
    last.expect("a request")
}

#[test]
fn only_clients_that_know_of_owners_are_sent_to_them() {
    use Redirects::{Never, ToOwner, ToPrimary};
    assert_eq!(redirects(&["GET k"]), Never);
    assert_eq!(
        redirects(&["COMMAND COUNT", "INFO cluster", "GET k"]),
        Never
    );
    for asked in [
        "CLUSTER SLOTS",
        "CLUSTER SHARDS",
        "CLUSTER NODES",
        "CLUSTER MYID",
        "CLUSTER INFO",
        "CLUSTER LINKS",
        "CLUSTER HELP",
        "CLUSTER KEYSLOT k",
        "CLUSTER COUNTKEYSINSLOT 1",
        "READWRITE",
    ] {
        assert_eq!(redirects(&[asked, "GET k"]), ToPrimary, "{asked}");
        assert_eq!(redirects(&[asked, "RESET", "GET k"]), Never, "{asked}");
    }
    assert_eq!(redirects(&["CLUSTER BOGUS", "GET k"]), Never);
    assert_eq!(redirects(&["READONLY", "GET k"]), ToOwner);
    assert_eq!(redirects(&["READONLY", "SET k v"]), ToPrimary);
    assert_eq!(redirects(&["READONLY", "READWRITE", "GET k"]), ToPrimary);
    assert_eq!(redirects(&["CLUSTER SLOTS", "SET k v"]), ToPrimary);
    assert_eq!(redirects(&["CLUSTER SLOTS", "ASKING", "SET k v"]), Never);
    let asked = ["CLUSTER SLOTS", "ASKING", "SET k v", "SET k v"];
    assert_eq!(redirects(&asked), ToPrimary);
    assert_eq!(
        redirects(&["CLUSTER SLOTS", "ASKING", "PING", "SET k v"]),
        ToPrimary
    );
    // Several keys may have several owners.
    assert_eq!(redirects(&["CLUSTER SLOTS", "MGET a b"]), Never);
    assert_eq!(redirects(&["CLUSTER SLOTS", "MGET a"]), ToPrimary);
}

#[test]
fn every_command_on_one_key_can_be_answered_with_its_owner() {
    let moved = || Moved {
        slot: 12_182,
        host: "::1".to_owned(),
        port: 7303,
    };
    for words in [
        "GET k",
        "SET k v",
        "SET k v GET",
        "SETNX k v",
        "GETSET k v",
        "APPEND k v",
        "STRLEN k",
        "GETRANGE k 0 1",
        "SETRANGE k 0 v",
        "INCR k",
        "INCRBYFLOAT k 1",
        "MGET k",
        "MSET k v",
        "DEL k",
        "EXISTS k",
        "TOUCH k",
        "EXPIRE k 1",
        "PERSIST k",
        "TTL k",
        "TYPE k",
        "GETDEL k",
        "GETEX k",
    ] {
        let mut parser = Parser::new(LIMITS, 1);
        let args: Vec<_> = words.split(' ').map(str::as_bytes).collect();
        let bytes = array(&args);
        let Step::Request { mut request, .. } = parser.parse(&bytes) else {
            panic!("{words} is complete");
        };
        let Body::Data(commands) = &request.body else {
            panic!("{words} is about a key");
        };
        let mut out = Out::new();
        // A reply that was kept is worded alike.
        let mut kept = request.reply.within(&bytes).expect("is kept");
        assert_eq!(kept.redirects(), request.reply.redirects());
        for command in commands {
            request
                .reply
                .each(command, &Outcome::Moved(moved()), &mut out);
        }
        request.reply.finish(&mut out);
        assert_eq!(out.to_vec(), b"-MOVED 12182 ::1:7303\r\n", "{words}");
        let mut out = Out::new();
        kept.each(&commands[0], &Outcome::Moved(moved()), &mut out);
        let mut kept = kept.within(&bytes).expect("is kept");
        kept.finish(&mut out);
        assert_eq!(out.to_vec(), b"-MOVED 12182 ::1:7303\r\n", "{words}, kept");
    }
}

/// An element of a reply.
#[derive(Debug, PartialEq)]
enum Element {
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Self>),
}

impl Element {
    fn list(self) -> Vec<Self> {
        match self {
            Self::List(list) => list,
            other => panic!("{other:?} is no list"),
        }
    }
}

/// Reads one element; maps are lists of names and values in turn.
fn read(bytes: &mut &[u8]) -> Element {
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\r')
        .expect("a line");
    let (line, rest) = bytes.split_at(end);
    *bytes = &rest[2..];
    let number: i64 = String::from_utf8_lossy(&line[1..])
        .parse()
        .expect("a number");
    let mut list = |count| Element::List((0..count).map(|_| read(bytes)).collect());
    match line[0] {
        b':' => Element::Number(number),
        b'*' => list(number),
        b'%' => list(2 * number),
        b'$' => {
            let (text, rest) = bytes.split_at(number as usize);
            *bytes = &rest[2..];
            Element::Bytes(text.to_vec())
        }
        sigil => panic!("{}", char::from(sigil)),
    }
}

fn views() -> impl Strategy<Value = ClusterView> {
    let members = prop::collection::vec((".{0,8}", any::<u16>(), 0..3_usize), 3..8);
    let cuts = prop::collection::vec((0..SLOT_COUNT, 0..5_usize), 0..20);
    (members, cuts).prop_map(|(members, cuts)| {
        let rows: [&[u16]; 4] = [&[0], &[1, 2], &[2, 0, 1], &[2]];
        let mut owners = vec![None; usize::from(SLOT_COUNT)];
        for (from, row) in cuts {
            let row = rows.get(row).and_then(|row| Owners::new(row));
            owners[usize::from(from)..].fill(row);
        }
        let members = members
            .into_iter()
            .enumerate()
            .map(|(at, (host, port, health))| ClusterMember {
                id: NodeId::of_name(&at.to_string()),
                host,
                port,
                health: [Health::Online, Health::Loading, Health::Failed][health],
            });
        let ranges = crate::cluster::ranges(|slot| owners[usize::from(slot)]);
        ClusterView::new(3, 1, members.collect(), ranges).expect("is right")
    })
}

/// The answer to a question about a view, and where it is in memory.
fn ask(view: &Arc<ClusterView>, hello: &str, question: &str) -> (usize, Vec<u8>) {
    let mut parser = Parser::new(LIMITS, 1);
    let mut out = Out::new();
    for request in [hello, question] {
        let args: Vec<_> = request.split(' ').map(str::as_bytes).collect();
        let bytes = array(&args);
        let Step::Request { mut request, .. } = parser.parse(&bytes) else {
            panic!("is complete");
        };
        if let Body::Server(command) = &request.body {
            let outcome = ServerOutcome::Cluster(Arc::clone(view));
            request.reply.server(command, &outcome, &mut out);
        }
    }
    let mut slices = [std::io::IoSlice::new(&[])];
    assert_eq!(out.io_slices(&mut slices), 1);
    (slices[0].as_ptr() as usize, out.to_vec())
}

/// With `--release -- --nocapture` it prints what docs/cluster.md says of it.
#[test]
fn answers_about_slots_that_are_placed_one_by_one_are_as_long_as_is_told() {
    for (members, replicas, slots_len_max) in [(3, 1, 1_100_000), (100, 2, 3_000_000)] {
        let names: Vec<_> = (0..members).map(|at| format!("node-{at}")).collect();
        let placed = names.iter().map(|id| Placed {
            id,
            zone: "z",
            weight: 100,
        });
        let table = Table::new(&placed.collect::<Vec<_>>(), replicas).expect("all own slots");
        let ranges = crate::cluster::ranges(|slot| Some(table.owners(slot)));
        let members = names.iter().map(|name| ClusterMember {
            id: NodeId::of_name(name),
            host: "10.0.0.12".to_owned(),
            port: 11_211,
            health: Health::Online,
        });
        let view = ClusterView::new(1, 0, members.collect(), ranges).expect("is right");
        let view = Arc::new(view);
        for question in ["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"] {
            let [first, again] = [(); 2].map(|()| {
                let begun = Instant::now();
                let len = ask(&view, "HELLO 2", question).1.len();
                (len, begun.elapsed())
            });
            println!(
                "{question} of {} members, {replicas} owners a slot: {} bytes; worded, copied out: {:?}; copied out: {:?}",
                names.len(),
                first.0,
                first.1,
                again.1
            );
            assert!(
                question != "CLUSTER SLOTS" || first.0 < slots_len_max,
                "{first:?}"
            );
        }
    }
}

#[test]
fn long_answers_are_encoded_once_for_all_clients_and_for_each_protocol() {
    let rows = [Owners::new(&[0]), Owners::new(&[1, 2])];
    let ranges = crate::cluster::ranges(|slot| rows[usize::from(slot % 2)]);
    let members = ["a", "b", "c"].map(|name| ClusterMember {
        id: NodeId::of_name(name),
        host: "10.0.0.1".to_owned(),
        port: 11_211,
        health: Health::Online,
    });
    let view = ClusterView::new(3, 0, members.into(), ranges).expect("is right");
    let shared = Arc::new(view.clone());
    for question in ["CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER NODES"] {
        for hello in ["HELLO 2", "HELLO 3"] {
            let (first, bytes) = ask(&shared, hello, question);
            let (second, again) = ask(&shared, hello, question);
            assert_eq!(first, second, "{hello}, {question}: it was made twice");
            assert!(bytes == again);
            // What the other protocol and other questions left behind makes no difference.
            let (_, alone) = ask(&Arc::new(view.clone()), hello, question);
            assert!(bytes == alone, "{hello}, {question}");
        }
    }
    // The next map's are made of what was asked of this map, and of no more.
    let asked = Arc::new(view.clone());
    ask(&asked, "HELLO 3", "CLUSTER SLOTS");
    let next = view.clone();
    crate::resp::word_as(&next, &asked);
    let worded = |view: &ClusterView| -> Vec<usize> {
        (0..ClusterView::ANSWERS)
            .filter(|it| view.is_worded(*it))
            .collect()
    };
    assert_eq!(worded(&next), worded(&asked));
    assert_eq!(worded(&next).len(), 1);
}

proptest! {
    #[test]
    fn slots_and_shards_tell_the_owners_of_each_slot(view in views(), is_resp3: bool) {
        let ask = |question: &str| {
            let mut parser = Parser::new(LIMITS, 1);
            let requests = [if is_resp3 { "HELLO 3" } else { "HELLO 2" }, question];
            let mut out = Out::new();
            for request in requests {
                let args: Vec<_> = request.split(' ').map(str::as_bytes).collect();
                let bytes = array(&args);
                let Step::Request { mut request, .. } = parser.parse(&bytes) else {
                    panic!("is complete");
                };
                if let Body::Server(command) = &request.body {
                    let outcome = ServerOutcome::Cluster(Arc::new(view.clone()));
                    request.reply.server(command, &outcome, &mut out);
                }
            }
            let bytes = out.to_vec();
            let mut rest = &bytes[..];
            let element = read(&mut rest);
            assert!(rest.is_empty(), "is one element");
            element.list()
        };
        let id = |position: u16| {
            let member = &view.members()[usize::from(position)];
            Element::Bytes(member.id.to_string().into_bytes())
        };
        let slots = ask("CLUSTER SLOTS");
        prop_assert_eq!(slots.len(), view.ranges().len());
        for (told, range) in slots.into_iter().zip(view.ranges()) {
            let told = told.list();
            prop_assert_eq!(&told[0], &Element::Number(range.first.into()));
            prop_assert_eq!(&told[1], &Element::Number(range.last.into()));
            let owners: Vec<_> = told.into_iter().skip(2).map(|it| it.list().swap_remove(2)).collect();
            let online = |it: &u16| view.members()[usize::from(*it)].health == Health::Online;
            let positions = range.owners.positions();
            let expected = positions.iter().enumerate().filter(|(rank, it)| *rank == 0 || online(it));
            prop_assert_eq!(owners, expected.map(|(_, it)| id(*it)).collect::<Vec<_>>());
        }
        let mut told_slots = 0;
        for shard in ask("CLUSTER SHARDS") {
            let mut shard = shard.list();
            let nodes = shard.swap_remove(3).list();
            let owners: Vec<_> = nodes.into_iter().map(|it| it.list().swap_remove(1)).collect();
            for pair in shard.swap_remove(1).list().chunks(2) {
                let (Element::Number(first), Element::Number(last)) = (&pair[0], &pair[1]) else {
                    panic!("{pair:?}");
                };
                for slot in *first..=*last {
                    let real = view.owners(slot as u16).expect("has owners");
                    let real: Vec<_> = real.positions().iter().map(|it| id(*it)).collect();
                    prop_assert_eq!(&owners, &real);
                    told_slots += 1;
                }
            }
        }
        let owned = view.ranges().iter().map(|it| usize::from(it.len())).sum::<usize>();
        prop_assert_eq!(told_slots, owned);
    }
}
