//! Single steps of one core: which slots are copied together, and what a shell may do on its own.

use std::sync::Arc;
use std::time::Duration;

use fonn_replication::{
    Attempt, Body, Change, Command, Config, Core, Cursor, Disk, Epoch, Event, Layout, MemberId,
    Message, Page, PageRequest, Record, Reply, Rules, Saved, SavedSlot, Slot, SlotSet, Topology,
    Version,
};

use super::raft::first_topology;
use super::store::Entry;
use super::topology::reports;

const NOW: Duration = Duration::from_secs(1);
const A: MemberId = MemberId(0);
const B: MemberId = MemberId(1);
const C: MemberId = MemberId(2);

fn slots(numbers: &[u16]) -> SlotSet {
    numbers.iter().copied().map(Slot).collect()
}

/// Three members with two owners a slot. A and C are in sync, and B copies all four slots: three
/// from A, and one from C.
fn topology() -> Topology {
    let rows = [vec![A, B], vec![A, B], vec![A, B], vec![C, B]];
    let members = [A, B, C].into_iter().collect();
    let layout = Layout::new(&rows, members).expect("rows of equal length");
    let mut topology = first_topology(3, Arc::new(layout));
    for member in [A, B, C] {
        let applied = topology.epoch;
        let asks = Change::Sync {
            member,
            applied,
            incarnation: 1,
        };
        topology = topology.after(&asks).expect("it has an effect");
    }
    for member in [A, C] {
        topology = reports(&topology, member);
    }
    topology
}

struct Member {
    core: Core<Entry>,
}

impl Member {
    /// A member that has started and applied a topology.
    fn started(me: MemberId, disk: Disk, topology: &Topology) -> (Self, Vec<Command<Entry>>) {
        let core = Core::new(Config {
            me,
            slots_len: 4,
            copies_max: 8,
            tick: Duration::from_millis(100),
            refuse_after: Duration::from_secs(3),
            rules: Rules::ALL,
        });
        let mut member = Self { core };
        let incarnation = 1;
        member.handle(Event::Start { disk, incarnation });
        member.handle(Event::Lease(Duration::MAX));
        let out = member.learn(topology);
        (member, out)
    }

    fn handle(&mut self, event: Event<Entry>) -> Vec<Command<Entry>> {
        let mut out = Vec::new();
        self.core.handle(NOW, event, &mut out);
        out
    }

    fn learn(&mut self, topology: &Topology) -> Vec<Command<Entry>> {
        self.handle(Event::Topology(Arc::new(topology.clone())))
    }

    fn hear(&mut self, from: MemberId, body: Body<Entry>) -> Vec<Command<Entry>> {
        let epoch = self.core.applied();
        self.handle(Event::Message(Message { from, epoch, body }))
    }
}

fn clears(out: &[Command<Entry>]) -> Vec<(Attempt, SlotSet)> {
    let clear = |command: &Command<Entry>| match command {
        Command::Clear { attempt, slots } => Some((*attempt, slots.clone())),
        _ => None,
    };
    out.iter().filter_map(clear).collect()
}

fn page_requests(out: &[Command<Entry>]) -> Vec<(MemberId, PageRequest)> {
    let request = |command: &Command<Entry>| match command {
        Command::Send(to, message) => match &message.body {
            Body::PageRequest(request) => Some((*to, request.clone())),
            _ => None,
        },
        _ => None,
    };
    out.iter().filter_map(request).collect()
}

/// A member that was an owner of three slots up to an epoch.
fn was_in_sync_until(epoch: Epoch) -> Disk {
    let state = SavedSlot {
        synced: Some(epoch),
        ..SavedSlot::default()
    };
    let mut slots = vec![state; 4];
    slots[3] = SavedSlot::default();
    Disk::Clean(Saved {
        applied: epoch,
        is_fit: true,
        slots,
    })
}

#[test]
fn a_learner_copies_all_slots_of_a_primary_together_when_their_old_content_is_gone() {
    let (mut learner, out) = Member::started(B, Disk::Empty, &topology());
    assert_eq!(page_requests(&out), []);
    let [(first, of_a), (second, of_c)] = &clears(&out)[..] else {
        panic!("two groups: {out:?}");
    };
    assert_eq!([of_a, of_c], [&slots(&[0, 1, 2]), &slots(&[3])]);
    let out = learner.handle(Event::Cleared(*second));
    assert_eq!(page_requests(&out)[0].0, C);
    let out = learner.handle(Event::Cleared(*first));
    let [(to, request)] = &page_requests(&out)[..] else {
        panic!("one request: {out:?}");
    };
    assert_eq!((*to, &request.slots, request.after), (A, of_a, None));
}

#[test]
fn a_group_goes_on_where_it_was_after_an_epoch_that_changes_other_slots() {
    let before = topology();
    let (mut learner, out) = Member::started(B, Disk::Empty, &before);
    let (attempt, _) = clears(&out)[0];
    let out = learner.handle(Event::Cleared(attempt));
    let (_, request) = page_requests(&out)[0].clone();
    let next = Some(Cursor::from([7]));
    let page = Page {
        request,
        records: Vec::new(),
        next: next.clone(),
    };
    let out = learner.hear(A, Body::Page(page));
    assert_eq!(Some(&page_requests(&out)[0].1.cursor), next.as_ref());

    let after = before.after(&Change::Down(C)).expect("it has an effect");
    let out = learner.learn(&after);
    let [(to, request)] = &page_requests(&out)[..] else {
        panic!("one request: {out:?}");
    };
    assert_eq!((*to, request.attempt), (A, attempt));
    assert_eq!(Some(&request.cursor), next.as_ref());
    assert_eq!(clears(&out)[0].1, slots(&[3]), "its primary is another one");
}

#[test]
fn what_the_primary_cannot_feed_is_copied_in_full_and_the_rest_goes_on() {
    let mut topology = topology();
    let disk = was_in_sync_until(topology.epoch);
    topology = topology.after(&Change::Down(B)).expect("it has an effect");
    let back = Change::Sync {
        member: B,
        applied: topology.epoch,
        incarnation: 1,
    };
    topology = topology.after(&back).expect("it has an effect");
    let (mut learner, out) = Member::started(B, disk, &topology);
    let (_, request) = page_requests(&out)[0].clone();
    assert_eq!(request.slots, slots(&[0, 1, 2]));
    assert!(request.after.is_some());

    let incomplete = Body::Incomplete {
        request: request.clone(),
        slots: slots(&[1]),
    };
    let out = learner.hear(A, incomplete);
    let (_, rest) = page_requests(&out)[0].clone();
    let slots_left = slots(&[0, 2]);
    assert_eq!((rest.attempt, rest.slots), (request.attempt, slots_left));
    let (attempt, cleared) = clears(&out)[0].clone();
    assert_eq!(cleared, slots(&[1]));
    let saved = Command::Save(Some(cleared.clone()));
    let clear = Command::Clear {
        attempt,
        slots: cleared,
    };
    let position = |wanted: &Command<Entry>| out.iter().position(|command| command == wanted);
    assert!(position(&saved).expect("it is saved") < position(&clear).expect("it is cleared"));
}

/// What a member saved that led all slots in the epoch of a topology.
fn leads_all(topology: &Topology) -> Saved {
    let state = SavedSlot {
        in_sync: true,
        synced: Some(topology.epoch),
        ..SavedSlot::default()
    };
    Saved {
        applied: topology.epoch,
        is_fit: true,
        slots: vec![state; 4],
    }
}

/// The primary of three slots, which goes on after a clean start. All members have told that they
/// applied its epoch.
fn primary() -> (Member, Topology) {
    let topology = topology();
    let saved = leads_all(&topology);
    let (mut primary, _) = Member::started(A, Disk::Clean(saved), &topology);
    for other in [B, C] {
        primary.hear(other, Body::Status);
    }
    (primary, topology)
}

/// All that the commands have to do with ownership: floors, and what the member asks of the others.
fn floors_and_proposals(out: &[Command<Entry>]) -> Vec<&Command<Entry>> {
    let is_one =
        |command: &&Command<Entry>| matches!(command, Command::RaiseFloor(_) | Command::Propose(_));
    out.iter().filter(is_one).collect()
}

#[test]
fn a_member_that_lost_writes_is_not_fit_after_a_further_clean_start() {
    let rows = vec![vec![B]; 4];
    let members = [A, B].into_iter().collect();
    let layout = Layout::new(&rows, members).expect("rows of equal length");
    let mut topology = first_topology(2, Arc::new(layout));
    topology = topology.after(&Change::Down(B)).expect("it has an effect");
    assert_eq!(topology.primary(Slot(0)), Some(A), "it stands in");
    let saved = leads_all(&topology);
    for disk in [Disk::Unclean(saved), Disk::Empty] {
        let (first, out) = Member::started(A, disk, &topology);
        assert!(out.contains(&Command::Save(None)));
        // It stops in order before the members agree that it syncs.
        let (second, out) = Member::started(A, Disk::Clean(first.core.saved()), &topology);
        let [Command::Propose(Change::Sync { member: A, .. })] = floors_and_proposals(&out)[..]
        else {
            panic!("it asks to sync, and nothing else: {out:?}");
        };
        let rights = second.core.rights(Slot(0));
        assert!(!rights.leads && !rights.hedged_reads);
    }
}

#[test]
fn a_write_is_complete_at_once_when_no_other_member_needs_it_any_more() {
    let (mut primary, topology) = primary();
    let (before, revision) = (primary.core.rights(Slot(0)), primary.core.revision());
    assert!(before.leads && before.hedged_reads && !before.completes);
    assert_eq!(
        primary.core.targets(Slot(0)).iter().collect::<Vec<_>>(),
        [B]
    );
    primary.learn(&topology.after(&Change::Down(B)).expect("it has an effect"));
    assert!(primary.core.rights(Slot(0)).completes);
    assert!(primary.core.revision() > revision);
}

#[test]
fn writes_that_come_out_of_order_are_acknowledged_as_their_owners_have_them() {
    let (mut primary, topology) = primary();
    for request in [2, 1] {
        let record = Record {
            slot: Slot(0),
            version: Version(request),
            epoch: topology.epoch,
            entry: Entry::Value { key: 0, id: 1 },
        };
        let out = primary.handle(Event::Write { request, record });
        let [Command::Send(B, Message { body, .. })] = &out[..] else {
            panic!("the write is sent: {out:?}");
        };
        assert!(matches!(body, Body::Write(_)));
    }
    for request in [1, 2] {
        let (slot, version) = (Slot(0), Version(request));
        let out = primary.hear(B, Body::Ack { slot, version });
        assert_eq!(out, [Command::Answer(request, Reply::Written)]);
    }
}
