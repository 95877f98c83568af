//! `CLUSTER`: the owners of slots, in the words of Redis Cluster (Redis cluster specification;
//! documentation of `CLUSTER SLOTS`, `SHARDS`, `NODES` and `INFO`).
//!
//! Redis knows shards: slots of one primary and its replicas. Here every slot has its own owners,
//! so a member may be the primary of some slots and hold copies of others. `SLOTS` and `SHARDS` say
//! so, slots with the same owners being a shard. `NODES` has one role a node: there a member is a
//! primary unless all it has are the copies of one other. There is no cluster bus, so its port
//! is 0.
//!
//! `SLOTS` of three members is a megabyte: each slot is placed by itself, so that as few as
//! possible move when members come and go, and two thirds of all slots have another primary than
//! the one before. The command has no shorter form for ranges with the same owners; `SHARDS`, which
//! has, is a fifth of it. So each is worded once for a view, and shared by all replies.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bytes::Bytes;
use smallvec::SmallVec;

use super::encode::{
    Protocol, put_array_len, put_bulk, put_error, put_integer, put_map_len, put_text,
};
use super::wording;
use crate::Out;
use crate::cluster::{ClusterMember, ClusterView, Health, SlotRange};
use crate::placement::SLOT_COUNT;

/// What is asked of a view.
#[derive(Debug)]
pub(super) enum Question<'a> {
    Slots,
    Shards,
    Nodes,
    MyId,
    MyShardId,
    Info,
    /// How many members say that the one of this id has failed.
    FailureReports(&'a [u8]),
    /// The members that replicate only the member of this id.
    Replicas(&'a [u8]),
}

/// `CLUSTER HELP`.
pub(super) const HELP: &[&str] = &[
    "CLUSTER <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "COUNT-FAILURE-REPORTS <node-id>",
    "    Return 0: members agree on failed members, and count no reports.",
    "COUNTKEYSINSLOT <slot>",
    "    Return the number of keys in <slot>.",
    "INFO",
    "    Return facts about the cluster.",
    "KEYSLOT <key>",
    "    Return the slot of <key>.",
    "LINKS",
    "    Return an empty array: there is no cluster bus.",
    "MYID",
    "    Return the id of this node.",
    "MYSHARDID",
    "    Return the id of the shard that this node is in.",
    "NODES",
    "    Return the nodes and their slots. Output format:",
    "    <id> <ip:port> <flags> <primary> <pings> <pongs> <epoch> <link> <slot> ...",
    "REPLICAS <node-id>",
    "    Return the replicas of <node-id>.",
    "SHARDS",
    "    Return the slots that have the same owners, and these.",
    "SLOTS",
    "    Return ranges of slots with their owners: first, last, primary, replicas.",
    "HELP",
    "    Print this help.",
];

/// Words of a view what was asked of the one `before` it: it will be asked again. Milliseconds, not
/// for a reactor.
pub fn word_as(view: &ClusterView, before: &ClusterView) {
    for answer in [Long::Slots, Long::Shards, Long::Nodes] {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            if before.is_worded(answer.number(protocol)) {
                drop(answer.of(view, protocol));
            }
        }
    }
}

/// Answers a question from a view.
pub(super) fn put_answer(
    out: &mut Out,
    protocol: Protocol,
    question: &Question<'_>,
    view: &ClusterView,
) {
    let me = usize::from(view.me());
    let my_id = view.members().get(me).map(|member| member.id);
    match question {
        Question::Slots => out.put_shared(&Long::Slots.of(view, protocol)),
        Question::Shards => out.put_shared(&Long::Shards.of(view, protocol)),
        Question::Nodes => out.put_shared(&Long::Nodes.of(view, protocol)),
        Question::MyId => put_bulk(
            out,
            my_id
                .map_or_else(String::new, |id| id.to_string())
                .as_bytes(),
        ),
        Question::MyShardId => {
            let primary = view.primary_of(me).and_then(|it| view.members().get(it));
            let id = primary.map(|primary| primary.id).or(my_id);
            let shard = id.map_or_else(String::new, |id| id.shard().to_string());
            put_bulk(out, shard.as_bytes());
        }
        Question::Info => put_text(out, protocol, &info(view)),
        Question::FailureReports(id) => match view.position_of(id) {
            Some(_) => put_integer(out, 0),
            None => put_error(out, &wording::unknown_node(id)),
        },
        Question::Replicas(id) => match view.position_of(id) {
            Some(position) => put_replicas(out, view, position),
            None => put_error(out, &wording::unknown_node(id)),
        },
    }
}

/// The answers that grow with the number of ranges.
#[derive(Clone, Copy)]
enum Long {
    Slots,
    Shards,
    Nodes,
}

impl Long {
    /// The answer, made at the first request.
    fn of(self, view: &ClusterView, protocol: Protocol) -> Bytes {
        view.worded(self.number(protocol), || {
            let mut worded = Out::new();
            match self {
                Self::Slots => put_slots(&mut worded, protocol, view),
                Self::Shards => put_shards(&mut worded, protocol, view),
                Self::Nodes => put_nodes(&mut worded, protocol, view),
            }
            Bytes::from(worded.to_vec())
        })
    }

    /// Under which number the view keeps it: the protocols word it differently.
    const fn number(self, protocol: Protocol) -> usize {
        let answer = match self {
            Self::Slots => 0,
            Self::Shards => 1,
            Self::Nodes => 2,
        };
        match protocol {
            Protocol::Resp2 => answer,
            Protocol::Resp3 => answer + ClusterView::ANSWERS / 2,
        }
    }
}

fn put_nodes(out: &mut Out, protocol: Protocol, view: &ClusterView) {
    let mut text = String::new();
    let slots = slots_of_all(view);
    for position in 0..view.members().len() {
        add_line(&mut text, view, position, slots.get(position));
        text.push('\n');
    }
    put_text(out, protocol, &text);
}

/// There may be thousands of ranges, but few members: each is worded once.
fn put_slots(out: &mut Out, protocol: Protocol, view: &ClusterView) {
    let worded: Vec<Vec<u8>> = view
        .members()
        .iter()
        .map(|member| slots_member(protocol, member))
        .collect();
    let is_there = |position: usize| {
        let member = view.members().get(position);
        member.is_some_and(|member| member.health == Health::Online)
    };
    put_array_len(out, view.ranges().len());
    for range in view.ranges() {
        // Replicas that cannot be read from are left out; a slot has a primary in any case.
        let owners = range.owners.positions().iter().map(|it| usize::from(*it));
        let told = owners
            .enumerate()
            .filter(|(rank, it)| *rank == 0 || is_there(*it));
        let told: SmallVec<[usize; 3]> = told.map(|(_, it)| it).collect();
        put_array_len(out, 2 + told.len());
        put_integer(out, range.first.into());
        put_integer(out, range.last.into());
        for position in told {
            out.put(worded.get(position).map_or(&[][..], Vec::as_slice));
        }
    }
}

fn slots_member(protocol: Protocol, member: &ClusterMember) -> Vec<u8> {
    let mut out = Out::new();
    put_array_len(&mut out, 4);
    put_bulk(&mut out, member.host.as_bytes());
    put_integer(&mut out, member.port.into());
    put_bulk(&mut out, member.id.to_string().as_bytes());
    // What else there is to know of its address: nothing.
    put_map_len(&mut out, protocol, 0);
    out.to_vec()
}

/// There may be thousands of shards too: with two owners a slot nearly every pair of members is
/// one.
fn put_shards(out: &mut Out, protocol: Protocol, view: &ClusterView) {
    // By owners, the primary first.
    let mut shards: BTreeMap<SmallVec<[u16; 3]>, Vec<&SlotRange>> = BTreeMap::new();
    let mut is_owner = vec![false; view.members().len()];
    for range in view.ranges() {
        let owners = range.owners.positions();
        shards.entry(owners.into()).or_default().push(range);
        for owner in owners {
            if let Some(is_owner) = is_owner.get_mut(usize::from(*owner)) {
                *is_owner = true;
            }
        }
    }
    for (position, is_owner) in (0..).zip(is_owner) {
        if !is_owner {
            shards.entry([position].as_slice().into()).or_default();
        }
    }
    let worded: Vec<[Vec<u8>; 2]> = view
        .members()
        .iter()
        .map(|member| ["master", "replica"].map(|role| shards_member(protocol, member, role)))
        .collect();
    put_array_len(out, shards.len());
    for (owners, ranges) in &shards {
        put_map_len(out, protocol, 2);
        put_bulk(out, b"slots");
        put_array_len(out, 2 * ranges.len());
        for range in ranges {
            put_integer(out, range.first.into());
            put_integer(out, range.last.into());
        }
        put_bulk(out, b"nodes");
        put_array_len(out, owners.len());
        for (rank, position) in owners.iter().enumerate() {
            let roles = worded.get(usize::from(*position));
            let member = roles.and_then(|it| it.get(rank.min(1)));
            out.put(member.map_or(&[][..], Vec::as_slice));
        }
    }
}

fn shards_member(protocol: Protocol, member: &ClusterMember, role: &str) -> Vec<u8> {
    let (id, host) = (member.id.to_string(), member.host.as_bytes());
    let health = match member.health {
        Health::Online => "online",
        Health::Loading => "loading",
        Health::Failed => "fail",
    };
    let mut out = Out::new();
    put_map_len(&mut out, protocol, 7);
    put_bulk(&mut out, b"id");
    put_bulk(&mut out, id.as_bytes());
    put_bulk(&mut out, b"port");
    put_integer(&mut out, member.port.into());
    put_bulk(&mut out, b"ip");
    put_bulk(&mut out, host);
    put_bulk(&mut out, b"endpoint");
    put_bulk(&mut out, host);
    put_bulk(&mut out, b"role");
    put_bulk(&mut out, role.as_bytes());
    put_bulk(&mut out, b"replication-offset");
    put_integer(&mut out, 0);
    put_bulk(&mut out, b"health");
    put_bulk(&mut out, health.as_bytes());
    out.to_vec()
}

fn put_replicas(out: &mut Out, view: &ClusterView, primary: usize) {
    let replicas: Vec<_> = (0..view.members().len())
        .filter(|it| view.primary_of(*it) == Some(primary))
        .collect();
    put_array_len(out, replicas.len());
    for position in replicas {
        let mut line = String::new();
        add_line(&mut line, view, position, None);
        put_bulk(out, line.as_bytes());
    }
}

/// The slots of which each member is the primary, as `NODES` has them.
fn slots_of_all(view: &ClusterView) -> Vec<String> {
    let mut slots = vec![String::new(); view.members().len()];
    for range in view.ranges() {
        if let Some(slots) = slots.get_mut(range.primary()) {
            // Writing to a string does not fail.
            let _ = match range.first == range.last {
                true => write!(slots, " {}", range.first),
                false => write!(slots, " {}-{}", range.first, range.last),
            };
        }
    }
    slots
}

/// The line of a member in `NODES`, without its end; `slots` begins with a space.
fn add_line(text: &mut String, view: &ClusterView, position: usize, slots: Option<&String>) {
    let Some(member) = view.members().get(position) else {
        return;
    };
    let primary = view
        .primary_of(position)
        .and_then(|it| view.members().get(it));
    let myself = match position == usize::from(view.me()) {
        true => "myself,",
        false => "",
    };
    let role = match primary {
        None => "master",
        Some(_) => "slave",
    };
    let (failed, link) = match member.health {
        Health::Failed => (",fail", "disconnected"),
        Health::Online | Health::Loading => ("", "connected"),
    };
    let _ = write!(
        text,
        "{} {}:{}@0 {myself}{role}{failed} ",
        member.id, member.host, member.port
    );
    let _ = match primary {
        None => write!(text, "-"),
        Some(primary) => write!(text, "{}", primary.id),
    };
    let slots = slots.map_or("", String::as_str);
    let _ = write!(text, " 0 0 {} {link}{slots}", view.epoch());
}

fn info(view: &ClusterView) -> String {
    let (mut assigned, mut failed) = (0, 0);
    let mut primaries = vec![false; view.members().len()];
    for range in view.ranges() {
        let primary = range.primary();
        let health = view.members().get(primary).map(|member| member.health);
        assigned += range.len();
        failed += match health {
            Some(Health::Failed) | None => range.len(),
            Some(Health::Online | Health::Loading) => 0,
        };
        if let Some(is_primary) = primaries.get_mut(primary) {
            *is_primary = true;
        }
    }
    let state = match (assigned, failed) {
        (SLOT_COUNT, 0) => "ok",
        _ => "fail",
    };
    let ok = assigned - failed;
    let known = view.members().len();
    let size = primaries.into_iter().filter(|it| *it).count();
    let epoch = view.epoch();
    // No messages are sent from member to member as Redis does it.
    format!(
        "cluster_state:{state}\r\n\
         cluster_slots_assigned:{assigned}\r\n\
         cluster_slots_ok:{ok}\r\n\
         cluster_slots_pfail:0\r\n\
         cluster_slots_fail:{failed}\r\n\
         cluster_known_nodes:{known}\r\n\
         cluster_size:{size}\r\n\
         cluster_current_epoch:{epoch}\r\n\
         cluster_my_epoch:{epoch}\r\n\
         cluster_stats_messages_sent:0\r\n\
         cluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n"
    )
}
