//! `fonnctl map`, `drain`, `remove`, `weight`, `replicas`: the cluster of a node.

use std::future::Future;
use std::time::Duration;

use fonn_proto::grpc::v1::{
    ClusterMember, ClusterStatus, DrainRequest, MapEntry, MemberState, MembershipChangeResponse,
    MembershipMapRequest, MembershipMapResponse, RemoveRequest, SetReplicasRequest,
    SetWeightRequest,
};
use tonic::{Response, Status};

use super::Verdict;
use super::args;
use super::connection::Connection;
use super::error::CtlError;
use super::output::Output;
use super::progress::Progress;
use super::table::{Table, pairs, printable};
use super::words::percent;

/// Between looks at what is needed from a member that leaves.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Bad is a cluster without a leader.
pub(super) async fn map(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let mut membership = node.membership();
    let map = node.call(membership.map(MembershipMapRequest {})).await?;
    output.show(&map, render_map)?;
    Ok(match &map.status {
        Some(status) if status.leader.is_empty() => Verdict::Bad,
        _ => Verdict::Good,
    })
}

pub(super) async fn drain(
    node: &Connection,
    args: args::Drain,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = DrainRequest {
        node: args.node.clone(),
        undo: args.undo,
    };
    let changed = node.call(node.membership().drain(request)).await?;
    if args.undo || args.no_wait {
        output.show(&changed, render_change)?;
        return Ok(Verdict::Good);
    }
    wait_for_leave(node, &args.node).await?;
    let mut membership = node.membership();
    // The drain is done, whether or not the member answers just now.
    let map = node
        .call(membership.map(MembershipMapRequest {}))
        .await
        .ok();
    let epoch = map.and_then(|it| it.status).map(|it| it.epoch);
    // The reply to the change may say that slots are still copied.
    let changed = MembershipChangeResponse {
        message: format!(
            "{} owns 0 slots, and the others have all that it had: it may be switched off",
            args.node
        ),
        epoch: epoch.unwrap_or(changed.epoch),
    };
    output.show(&changed, render_change)?;
    Ok(Verdict::Good)
}

/// Waits until a member owns no slots any more: the owners have all that it had then.
async fn wait_for_leave(node: &Connection, member: &str) -> Result<(), CtlError> {
    let mut progress = Progress::new();
    let mut all = 0;
    loop {
        match node
            .call(node.membership().map(MembershipMapRequest {}))
            .await
        {
            // The member that is asked has just started.
            Ok(map) if map.members.is_empty() => {}
            Ok(map) => match slots_left(&map, member)? {
                0 => return Ok(()),
                slots => {
                    all = all.max(slots);
                    let done = u64::from(all - slots);
                    progress.set(done, all.into(), "slots taken over by others");
                }
            },
            // It says nothing for a moment if it starts or falls meanwhile.
            Err(error) if error.is_passing() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The slots that a member that leaves still owns.
///
/// # Errors
/// If the others do not get what it had: it was removed, or it is down.
fn slots_left(map: &MembershipMapResponse, member: &str) -> Result<u32, CtlError> {
    let is_it = |it: &&MapEntry| it.member.as_ref().is_some_and(|it| it.id == member);
    let Some(entry) = map.members.iter().find(is_it) else {
        let why = format!("there is no member `{member}` any more");
        return Err(CtlError::Refused(why));
    };
    let state = entry.member.as_ref().map(ClusterMember::state);
    if entry.slots == 0 && state == Some(MemberState::Down) {
        return Err(CtlError::Refused(format!(
            "{member} is down: the others may lack what only it had. Start it, then \
             `fonnctl drain {member} --undo`"
        )));
    }
    Ok(entry.slots)
}

pub(super) async fn remove(
    node: &Connection,
    args: args::Remove,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = RemoveRequest { node: args.node };
    change(node, node.membership().remove(request), output).await
}

pub(super) async fn weight(
    node: &Connection,
    args: args::Weight,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = SetWeightRequest {
        node: args.node,
        weight: args.weight.into(),
    };
    change(node, node.membership().set_weight(request), output).await
}

pub(super) async fn replicas(
    node: &Connection,
    replicas: u8,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let request = SetReplicasRequest {
        replicas: replicas.into(),
    };
    change(node, node.membership().set_replicas(request), output).await
}

async fn change(
    node: &Connection,
    call: impl Future<Output = Result<Response<MembershipChangeResponse>, Status>>,
    output: &Output,
) -> Result<Verdict, CtlError> {
    let changed = node.call(call).await?;
    output.show(&changed, render_change)?;
    Ok(Verdict::Good)
}

pub(super) fn render_change(changed: &MembershipChangeResponse) -> String {
    let message = printable(&changed.message);
    format!("{message} (map {})\n", changed.epoch)
}

/// A line about the cluster, here and in `fonnctl status`.
pub(super) fn status_line(status: &ClusterStatus) -> String {
    if status.cluster.is_empty() {
        return format!("{} has not joined one yet", status.node);
    }
    if status.state() == MemberState::Unspecified {
        let (node, cluster, epoch) = (&status.node, &status.cluster, status.epoch);
        return format!("{node} is no member of {cluster} by map {epoch}");
    }
    let leader = match status.leader.as_str() {
        "" => "no leader: the map stays as it is".to_owned(),
        leader if leader == status.node => "it leads".to_owned(),
        leader => format!("led by {leader}"),
    };
    format!(
        "{} is {} in {}, {leader}, {} of {} members up, map {}",
        status.node,
        status.state().name(),
        status.cluster,
        status.members_up,
        status.members,
        status.epoch
    )
}

pub(super) fn render_map(map: &MembershipMapResponse) -> String {
    let none = ClusterStatus::default();
    let status = map.status.as_ref().unwrap_or(&none);
    let mut table = Table::new(&[
        "NODE", "STATE", "VOTES", "ZONE", ">WEIGHT", ">SLOTS", ">FIRST", ">SHARE", "CLIENTS",
        "CLUSTER", "VERSION",
    ]);
    let all: u32 = map.members.iter().map(|it| it.slots_first).sum();
    for entry in &map.members {
        if let Some(member) = &entry.member {
            table.row(member_row(entry, member, status, all));
        }
    }
    let about = [
        ("cluster", status_line(status)),
        ("owners", format!("{} a slot", map.replicas)),
    ];
    let about = pairs(&about);
    format!("{about}\n{}", table.render())
}

fn member_row(
    entry: &MapEntry,
    member: &ClusterMember,
    status: &ClusterStatus,
    all: u32,
) -> [String; 11] {
    let votes = match () {
        () if member.id == status.leader => "leader",
        () if status.voters.contains(&member.id) => "yes",
        () => "no",
    };
    [
        member.id.clone(),
        member.state().name(),
        votes.to_owned(),
        member.zone.clone(),
        member.weight.to_string(),
        entry.slots.to_string(),
        entry.slots_first.to_string(),
        percent(entry.slots_first.into(), all.into()),
        member.client_address.clone(),
        member.cluster_address.clone(),
        member.version.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> ClusterStatus {
        ClusterStatus {
            node: "a".to_owned(),
            cluster: "00000000000000ab".to_owned(),
            epoch: 7,
            leader: "b".to_owned(),
            voters: vec!["a".to_owned(), "b".to_owned()],
            state: MemberState::Active.into(),
            members_up: 2,
            members: 3,
        }
    }

    fn entry(id: &str, state: MemberState, slots: u32) -> MapEntry {
        MapEntry {
            member: Some(ClusterMember {
                id: id.to_owned(),
                client_address: format!("{id}:11211"),
                cluster_address: format!("{id}:11290"),
                zone: "default".to_owned(),
                weight: 100,
                share: 100,
                state: state.into(),
                version: "0.1.0".to_owned(),
            }),
            slots_first: slots,
            slots: slots * 2,
        }
    }

    #[test]
    fn a_map_shows_the_leader_and_the_owners() {
        let map = MembershipMapResponse {
            status: Some(status()),
            replicas: 2,
            members: vec![
                entry("a", MemberState::Active, 100),
                entry("b", MemberState::Active, 300),
                entry("c", MemberState::Down, 0),
            ],
        };
        assert_eq!(
            render_map(&map),
            "\
cluster  a is active in 00000000000000ab, led by b, 2 of 3 members up, map 7
owners   2 a slot

NODE  STATE   VOTES   ZONE     WEIGHT  SLOTS  FIRST  SHARE  CLIENTS  CLUSTER  VERSION
a     active  yes     default     100    200    100   25 %  a:11211  a:11290  0.1.0
b     active  leader  default     100    600    300   75 %  b:11211  b:11290  0.1.0
c     down    no      default     100      0      0    0 %  c:11211  c:11290  0.1.0
"
        );
    }

    #[test]
    fn how_a_node_stands_is_one_line() {
        let leading = ClusterStatus {
            node: "b".to_owned(),
            ..status()
        };
        assert!(status_line(&leading).contains("it leads"));
        let lost = ClusterStatus {
            leader: String::new(),
            ..status()
        };
        assert!(status_line(&lost).contains("no leader"));
        let outside = ClusterStatus {
            cluster: String::new(),
            ..status()
        };
        assert_eq!(status_line(&outside), "a has not joined one yet");
        let removed = ClusterStatus {
            state: MemberState::Unspecified.into(),
            epoch: 7,
            cluster: "ci".to_owned(),
            ..status()
        };
        assert_eq!(status_line(&removed), "a is no member of ci by map 7");
    }

    #[test]
    fn a_member_that_is_down_has_not_been_drained() {
        let map = MembershipMapResponse {
            status: Some(status()),
            replicas: 1,
            members: vec![
                entry("a", MemberState::Draining, 0),
                entry("b", MemberState::Draining, 7),
                entry("c", MemberState::Down, 0),
            ],
        };
        let left = |member| slots_left(&map, member).map_err(|error| error.to_string());
        assert_eq!((left("a"), left("b")), (Ok(0), Ok(14)));
        let why = left("c").unwrap_err();
        assert!(why.contains("c is down"), "{why}");
        assert!(why.contains("drain c --undo"), "{why}");
        assert!(left("d").unwrap_err().contains("no member `d`"));
    }

    #[test]
    fn a_change_is_told_with_its_map() {
        let changed = MembershipChangeResponse {
            epoch: 8,
            message: "b owns 0 slots now, 2 others own the rest".to_owned(),
        };
        assert_eq!(
            render_change(&changed),
            "b owns 0 slots now, 2 others own the rest (map 8)\n"
        );
    }
}
