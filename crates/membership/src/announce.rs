//! A member tells the others which segments it has brought into the bucket, and hears from them
//! about theirs.
//!
//! Each message has all that there is to tell, so one that is lost costs no more than the time
//! until the next one. The messages are sent by each member to each other one, since only voters
//! ask others whether they are there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tonic::Status;

use fonn_cold_tier::names::NameError;
use fonn_cold_tier::{Announcement, ColdTier};
use fonn_proto::grpc::v1::{AnnounceRequest, AnnouncedWriter};

use super::detector::ANSWER_DEADLINE;
use super::participant::Participant;
use super::types::RaftId;

/// How often a member tells what it told already.
const PERIOD: Duration = Duration::from_secs(2);

/// Tells all other members, whenever there is news and each period.
pub(super) async fn run(participant: Arc<Participant>, tier: ColdTier) {
    let mut own = tier.announcement();
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent: JoinSet<RaftId> = JoinSet::new();
    // Members that are being told, and members that are to be told.
    let (mut waiting, mut due) = (BTreeSet::new(), BTreeSet::new());
    loop {
        // All are cancel-safe: what is not taken is there the next time.
        tokio::select! {
            _ = period.tick() => {
                let state = participant.state();
                tier.retain_members(|id| state.members.values().any(|it| it.info.id == id));
                due = participant.others().into_keys().collect();
            }
            changed = own.changed() => {
                if changed.is_err() {
                    return;
                }
                due = participant.others().into_keys().collect();
            }
            Some(told) = sent.join_next() => match told {
                Ok(raft_id) => {
                    waiting.remove(&raft_id);
                }
                // A message that panicked leaves its name in `waiting`; all are told anew.
                Err(_) => waiting.clear(),
            },
        }
        let others = participant.others();
        // One message at a time to each: it cannot be passed by a later one.
        due.retain(|raft_id| {
            let Some(address) = others.get(raft_id) else {
                return false;
            };
            if !waiting.insert(*raft_id) {
                return true;
            }
            sent.spawn(send(
                Arc::clone(&participant),
                *raft_id,
                address.clone(),
                own.clone(),
            ));
            false
        });
    }
}

async fn send(
    participant: Arc<Participant>,
    raft_id: RaftId,
    address: String,
    own: watch::Receiver<Announcement>,
) -> RaftId {
    let (region, writers) = {
        let own = own.borrow();
        let writers = own.writers.iter().map(|(id, &segments)| AnnouncedWriter {
            id: id.to_string(),
            segments,
        });
        (own.region.to_string(), writers.collect())
    };
    let request = AnnounceRequest {
        ends: Some(participant.identity.belonging().ends(raft_id)),
        region,
        writers,
    };
    let peers = &participant.peers;
    let told = peers.call(&address, ANSWER_DEADLINE, |mut member| async move {
        member.announce(request).await
    });
    if let Err(error) = told.await {
        tracing::debug!(address, %error, "a member cannot be told of segments");
    }
    raft_id
}

impl Participant {
    /// Takes what another member tells. A message of a member that is none any more changes
    /// nothing.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for what is malformed.
    pub(super) fn hear_announcement(&self, request: &AnnounceRequest) -> Result<(), Status> {
        let told = announcement(request)?;
        let from = request.ends.as_ref().map_or(0, |ends| ends.source);
        let state = self.state();
        let member = state.members.values().find(|it| it.info.raft_id == from);
        if let (Some(tier), Some(member)) = (&self.options.segments, member) {
            tier.hear(&member.info.id, &told);
        }
        Ok(())
    }
}

/// What a message says.
fn announcement(request: &AnnounceRequest) -> Result<Announcement, Status> {
    let count = request.writers.len();
    if count > Announcement::WRITERS_MAX {
        let most = Announcement::WRITERS_MAX;
        let why = format!("{count} writers are announced, at most {most} are accepted");
        return Err(Status::invalid_argument(why));
    }
    let malformed = |error: NameError| Status::invalid_argument(error.to_string());
    let writers = request.writers.iter().map(|writer| {
        let id = writer.id.parse().map_err(malformed)?;
        Ok((id, writer.segments))
    });
    Ok(Announcement {
        region: request.region.parse().map_err(malformed)?,
        writers: writers.collect::<Result<_, Status>>()?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use fonn_cold_tier::names::WriterId;

    fn request(region: &str, ids: &[&str]) -> AnnounceRequest {
        let writers = ids.iter().map(|id| AnnouncedWriter {
            id: (*id).to_owned(),
            segments: 7,
        });
        AnnounceRequest {
            ends: None,
            region: region.to_owned(),
            writers: writers.collect(),
        }
    }

    #[test]
    fn a_message_says_what_was_told_and_what_is_malformed_is_refused() {
        let id = WriterId::mint(1, 2);
        let told = announcement(&request("eu", &[id.as_str()])).unwrap();
        assert_eq!(told.region.as_str(), "eu");
        assert_eq!(told.writers, BTreeMap::from([(id, 7)]));
        assert!(
            announcement(&request("eu", &[]))
                .unwrap()
                .writers
                .is_empty()
        );
        let ids: Vec<String> = (0..17)
            .map(|it| WriterId::mint(1, it).to_string())
            .collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert!(announcement(&request("eu", &ids[..16])).is_ok());
        for malformed in [
            request("EU", &[]),
            request("", &[]),
            request("eu", &["../seg"]),
            request("eu", &ids),
        ] {
            let refused = announcement(&malformed).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        }
    }
}
