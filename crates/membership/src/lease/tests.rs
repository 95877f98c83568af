use fonn_proto::grpc::v1::RaftEnds;

use super::*;

const LEADER: RaftId = 1;
const SILENCE: Duration = Duration::from_millis(1500);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn question(sequence: u64, granted: u64, epoch: u64) -> PingRequest {
    PingRequest {
        ends: Some(RaftEnds {
            source: LEADER,
            ..RaftEnds::default()
        }),
        sequence,
        granted,
        is_leading: true,
        epoch,
        ..PingRequest::default()
    }
}

#[test]
fn a_lease_runs_from_the_receipt_of_the_question_whose_answer_arrived() {
    let (mut lease, start) = (Lease::default(), Instant::now());
    let hear = |lease: &mut Lease, it, at| {
        lease.hear(&it, SILENCE, start + ms(at));
        lease.left(1, start + ms(at))
    };
    assert_eq!(hear(&mut lease, question(10, 0, 1), 0), ms(0));
    assert_eq!(hear(&mut lease, question(11, 10, 1), 250), ms(1250));
    // Answers do not arrive any more.
    for (at, sequence) in (500..3000).step_by(250).zip(12..) {
        let left = hear(&mut lease, question(sequence, 10, 1), at);
        assert_eq!(left, ms(1500_u64.saturating_sub(at)));
    }
}

#[test]
fn a_question_of_a_former_life_promises_nothing() {
    let (mut lease, now) = (Lease::default(), Instant::now());
    lease.hear(&question(11, 10, 1), SILENCE, now);
    assert_eq!(lease.left(1, now), Duration::ZERO);
}

#[test]
fn a_leader_has_nothing_of_what_the_last_leader_promised() {
    let (mut lease, now) = (Lease::default(), Instant::now());
    lease.hear(&question(10, 0, 1), SILENCE, now);
    lease.hear(&question(11, 10, 1), SILENCE, now);
    assert_eq!(lease.left(1, now), SILENCE);
    lease.lead();
    assert_eq!(lease.left(1, now), ms(0));
    lease.promise(1, now + ms(600), now);
    assert_eq!(lease.left(1, now), ms(600), "what it knows itself");
}

#[test]
fn a_leader_has_the_lease_that_it_grants_itself() {
    let (mut lease, now) = (Lease::default(), Instant::now());
    lease.lead();
    lease.promise(1, now + ms(600), now);
    assert_eq!(lease.left(1, now), ms(600));
}

#[test]
fn a_promise_counts_by_its_map_and_newer_ones() {
    let (mut lease, now) = (Lease::default(), Instant::now());
    lease.hear(&question(10, 0, 4), SILENCE, now);
    lease.hear(&question(11, 10, 4), SILENCE, now);
    lease.hear(&question(12, 11, 5), SILENCE, now + ms(500));
    let now = now + ms(500);
    assert_eq!(lease.left(3, now), ms(0));
    assert_eq!(lease.left(4, now), ms(1000), "what was promised before");
    assert_eq!(lease.left(5, now), ms(1000));
    lease.hear(&question(13, 12, 5), SILENCE, now);
    assert_eq!(
        (lease.left(4, now), lease.left(5, now)),
        (ms(1000), ms(1500))
    );
}

#[test]
fn a_member_that_asks_without_leading_promises_nothing() {
    let (mut lease, now) = (Lease::default(), Instant::now());
    let follower = |sequence, granted| PingRequest {
        is_leading: false,
        ..question(sequence, granted, 1)
    };
    lease.hear(&follower(10, 0), SILENCE, now);
    lease.hear(&follower(11, 10), SILENCE, now);
    assert_eq!(lease.left(1, now), ms(0));
    // Once it leads, the question of before is as good.
    lease.hear(&question(12, 11, 1), SILENCE, now);
    assert_eq!(lease.left(1, now), SILENCE);
}

#[test]
fn a_question_without_a_number_promises_nothing() {
    let (mut lease, now) = (Lease::default(), Instant::now());
    lease.hear(&question(0, 0, 1), SILENCE, now);
    lease.hear(&question(9, 0, 1), SILENCE, now);
    assert_eq!(lease.left(1, now), ms(0));
}

const LEADS: Role = Role {
    leads: Some(3),
    acked: Some(Duration::ZERO),
};
const FOLLOWS: Role = Role {
    leads: None,
    acked: None,
};

#[test]
fn nothing_is_promised_to_a_failing_member_until_it_is_up_again() {
    let (mut grants, now) = (Grants::new(40), Instant::now());
    grants.look(LEADS, (1, None), now);
    let sequence = grants.question();
    assert_eq!(grants.granted(7), 0, "it has not answered");
    grants.answered(7, sequence);
    assert_eq!(grants.granted(7), sequence);
    grants.fall(7);
    grants.answered(7, grants.sequence);
    assert_eq!(grants.granted(7), 0);
    grants.settle(7);
    assert_eq!(grants.granted(7), sequence);
    grants.look(FOLLOWS, (1, None), now);
    assert_eq!(grants.granted(7), 0);
}

#[test]
fn a_new_leader_waits_for_promises_of_the_last_one_and_less_for_that_one_itself() {
    let (mut grants, now) = (Grants::new(0), Instant::now());
    grants.look(FOLLOWS, (1, Some(5)), now);
    grants.look(LEADS, (1, Some(1)), now + ms(100));
    let may_fall = |id, at: u64| grants.may_fall(id, SILENCE, now + ms(100 + at));
    assert!(!may_fall(5, 399) && may_fall(5, 400));
    assert!(!may_fall(7, 2499) && may_fall(7, 2500));
    // The same term goes on.
    grants.look(LEADS, (1, Some(1)), now + ms(900));
    assert!(grants.may_fall(7, SILENCE, now + ms(2600)));
    let later = Role {
        leads: Some(4),
        ..LEADS
    };
    grants.look(later, (1, Some(1)), now + ms(2600));
    assert!(!grants.may_fall(7, SILENCE, now + ms(2700)));
}

#[test]
fn a_leader_that_leads_again_without_another_between_knows_the_last_one() {
    let (mut grants, now) = (Grants::new(0), Instant::now());
    grants.look(FOLLOWS, (1, Some(5)), now);
    grants.look(LEADS, (1, Some(1)), now);
    grants.look(FOLLOWS, (1, Some(1)), now + ms(100));
    let again = Role {
        leads: Some(5),
        ..LEADS
    };
    grants.look(again, (1, Some(1)), now + ms(200));
    assert!(grants.may_fall(5, SILENCE, now + ms(600)));
    assert!(!grants.may_fall(7, SILENCE, now + ms(600)));
}

#[test]
fn a_leader_promises_while_a_majority_has_answered_and_what_was_before_is_applied() {
    use crate::types::LogId;
    use openraft::CommittedLeaderId;
    let mut metrics = Metrics::new_initial(1);
    metrics.current_term = 3;
    metrics.millis_since_quorum_ack = Some(1000);
    metrics.last_applied = Some(LogId::new(CommittedLeaderId::new(3, 1), 9));
    assert!(!Role::of(&metrics).promises(), "it does not lead");
    metrics.state = ServerState::Leader;
    assert!(Role::of(&metrics).promises());
    assert_eq!(Role::of(&metrics).own_lease(), None);
    metrics.millis_since_quorum_ack = Some(900);
    assert_eq!(Role::of(&metrics).own_lease(), Some(ms(100)));
    metrics.millis_since_quorum_ack = Some(1001);
    assert!(!Role::of(&metrics).promises());
    metrics.millis_since_quorum_ack = Some(0);
    metrics.last_applied = Some(LogId::new(CommittedLeaderId::new(2, 2), 9));
    assert!(
        !Role::of(&metrics).promises(),
        "what was proposed before may follow"
    );
    assert_eq!(Role::of(&metrics).leads, Some(3));
}
