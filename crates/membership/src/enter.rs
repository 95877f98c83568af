//! The task by which a member enters its cluster: it forms one, joins one, or tells the one it
//! belongs to that it is back.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use openraft::BasicNode;
use tonic::Status;

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

/// Runs until the member has entered, or stops.
pub(super) async fn run(participant: Arc<Participant>) {
    let mut random = SplitMix64::from_entropy();
    for attempt in 0.. {
        let entered = tokio::select! {
            entered = enter(&participant) => entered,
            () = participant.closed() => return,
        };
        // Once begun it is waited for: it holds the lock of the directory until it ends.
        let belongs = match entered {
            Ok(cluster) => belong(&participant, cluster).await,
            Err(why) => Err(why),
        };
        let Err(why) = belongs else { return };
        let own = &participant.info.id;
        tracing::warn!(node = own, why, "not in the cluster yet; trying again");
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
    if participant
        .leader()
        .is_some_and(|(id, _)| id == participant.raft_id())
    {
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
            Err(status) => last = format!("{address}: {}", reason(&status)),
        }
    }
    Err(last)
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
}
