//! The task by which a member enters its cluster: it forms one, joins one, or tells the one it
//! belongs to that it is back.
//!
//! A member that hears no leader for a while tells that again. It may have been removed meanwhile,
//! and no member would tell it so.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use openraft::BasicNode;
use tonic::{Code, Status};

use fonn_base::backoff::Backoff;
use fonn_base::random::SplitMix64;
use fonn_proto::grpc::v1::JoinRequest;

use super::Start;
use super::identity;
use super::participant::Participant;
use super::state::Change;

/// How long one member has for its answer.
const JOIN_DEADLINE: Duration = Duration::from_secs(3);
/// How long an agreement may take.
const CHANGE_DEADLINE: Duration = Duration::from_secs(3);
/// Waits between attempts; there is no last one.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    cap: Duration::from_secs(5),
    attempts_max: u32::MAX,
};

/// A member that has heard no leader for so long asks again to be admitted, and again after as
/// long. From then on the member goes by its last topology, unless it is refused.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Runs until the member stops.
pub(super) async fn run(participant: Arc<Participant>) {
    loop {
        until_entered(&participant).await;
        tokio::select! {
            biased;
            () = participant.closed() => return,
            () = until_silent(&participant) => {}
        }
    }
}

/// Waits until no leader has been heard for a while. A leader that is cut off does not ask: its log
/// would get an entry each time.
async fn until_silent(participant: &Participant) {
    loop {
        tokio::time::sleep(SILENCE_MAX).await;
        let silence = participant.heard(&participant.metrics()).elapsed();
        if silence >= SILENCE_MAX && !is_leader(participant) {
            return;
        }
    }
}

/// Whether it is the leader by what it knows.
fn is_leader(participant: &Participant) -> bool {
    let leader = participant.leader();
    leader.is_some_and(|(id, _)| id == participant.raft_id())
}

/// Runs until the member has entered, or stops.
async fn until_entered(participant: &Arc<Participant>) {
    let mut random = SplitMix64::from_entropy();
    for attempt in 0.. {
        let entered = tokio::select! {
            entered = enter(participant) => entered,
            () = participant.closed() => return,
        };
        // Once begun it is waited for: it holds the lock of the directory until it ends.
        let belongs = match entered {
            Ok(cluster) => {
                participant.is_refused.send_replace(false);
                belong(participant, cluster).await
            }
            Err(why) => Err(why),
        };
        let Err(why) = belongs else { return };
        let own = &participant.info.id;
        tracing::warn!(node = own, why, "not in the cluster; trying again");
        let wait = BACKOFF.delay(attempt.min(16), &mut random);
        tokio::select! {
            () = tokio::time::sleep(wait.unwrap_or(BACKOFF.cap)) => {}
            () = participant.closed() => return,
        }
    }
}

/// Enters once, and tells the number of the cluster.
async fn enter(participant: &Arc<Participant>) -> Result<u64, String> {
    match &participant.options.start {
        // A member of a cluster forms no second one, whatever it was started with.
        Start::Bootstrap if !is_member(participant) => form(participant).await,
        Start::Bootstrap => announce(participant, &[]).await,
        Start::Join(addresses) => announce(participant, addresses).await,
    }
}

/// Whether the member belongs to a cluster. A process that was killed may have agreed to one, and
/// not have noted it for good.
fn is_member(participant: &Participant) -> bool {
    participant.identity.belonging().cluster() != 0 || participant.state().cluster != 0
}

/// Forms a cluster of one.
async fn form(participant: &Arc<Participant>) -> Result<u64, String> {
    let info = &participant.info;
    let initialized = participant.raft.is_initialized().await;
    if !initialized.map_err(|error| error.to_string())? {
        let founder = BTreeMap::from([(info.raft_id, BasicNode::new(&info.cluster_address))]);
        let initialized = participant.raft.initialize(founder).await;
        initialized.map_err(|error| error.to_string())?;
    }
    let form = Change::Form {
        cluster: identity::draw(),
        founder: info.clone(),
        version: participant.newest_version(),
        down_after_ms: participant.options.down_after.as_millis() as u32,
    };
    let formed = participant.propose(form, CHANGE_DEADLINE).await;
    formed.map_err(|error| error.to_string())?;
    Ok(participant.state().cluster)
}

/// Asks one member after the other to be taken in, or to be known as what this member is now.
async fn announce(participant: &Arc<Participant>, addresses: &[String]) -> Result<u64, String> {
    if is_leader(participant) {
        let join = Change::Join(participant.info.clone());
        let joined = participant.propose_here(join, CHANGE_DEADLINE).await;
        joined.map_err(|error| error.to_string())?;
        return Ok(participant.state().cluster);
    }
    let state = participant.state();
    let own = &participant.info;
    let known = state
        .members
        .values()
        .filter(|it| it.info.id != own.id)
        .map(|it| it.info.cluster_address.clone());
    let mut last = "no address to join at is known".to_owned();
    let mut refused = None;
    for address in addresses.iter().cloned().chain(known) {
        let request = JoinRequest {
            cluster: participant.identity.belonging().cluster(),
            id: own.id.clone(),
            raft_id: own.raft_id,
            client_address: own.client_address.clone(),
            cluster_address: own.cluster_address.clone(),
            zone: own.zone.clone(),
            weight: own.weight.into(),
            version: own.version.clone(),
            forwarded: false,
            newest_version: participant.newest_version(),
        };
        let peers = &participant.peers;
        let joined = peers.call(&address, JOIN_DEADLINE, |mut member| async move {
            member.join(request).await
        });
        match joined.await {
            Ok(response) => return Ok(response.cluster),
            Err(status) => {
                last = format!("{address}: {}", reason(&status));
                if is_refusal(&status) {
                    participant.is_refused.send_replace(true);
                    refused = Some(last.clone());
                }
            }
        }
    }
    // An address that does not answer hides no refusal.
    Err(refused.unwrap_or(last))
}

/// Whether a cluster answered that this member is none of its members. A member that cannot answer
/// for the cluster says another thing.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::FailedPrecondition | Code::AlreadyExists
    )
}

/// What a status says. Of a connection that failed, its last cause says why.
fn reason(status: &Status) -> String {
    let message = status.message();
    let (mut last, mut cause) = (None, status.source());
    while let Some(error) = cause {
        last = Some(error);
        cause = error.source();
    }
    match last.map(ToString::to_string) {
        Some(why) if !message.contains(&why) => format!("{message}: {why}"),
        _ => message.to_owned(),
    }
}

/// Notes the cluster for good.
async fn belong(participant: &Arc<Participant>, cluster: u64) -> Result<(), String> {
    let holder = Arc::clone(participant);
    let save = move || holder.identity.set_cluster(cluster);
    let saved = fonn_base::pool::run_blocking(&participant.pool, save).await;
    saved
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("transport error")]
    struct Transport(#[source] std::io::Error);

    #[test]
    fn a_connection_that_failed_is_told_with_its_last_cause() {
        let refused = std::io::Error::other("connection refused");
        let status = Status::from_error(Box::new(Transport(refused)));
        assert_eq!(reason(&status), "transport error: connection refused");
        let answered = Status::failed_precondition("another cluster");
        assert_eq!(reason(&answered), "another cluster");
    }

    #[test]
    fn only_the_word_of_a_cluster_is_a_refusal() {
        assert!(is_refusal(&Status::failed_precondition("was removed")));
        assert!(is_refusal(&Status::already_exists("runs at b:2")));
        assert!(!is_refusal(&Status::unavailable("no leader")));
        assert!(!is_refusal(&Status::deadline_exceeded("no answer")));
        assert!(!is_refusal(&Status::invalid_argument("the weight")));
    }
}
