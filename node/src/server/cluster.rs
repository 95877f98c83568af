//! Requests about many keys, asked of a member of a cluster by a client: what concerns all members
//! is done by all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_proto::request::ServerOutcome;
use fonn_proto::{Batch, Failure, ServerCommand, placement};
use fonn_server::Client;

use super::{Shared, commands};
use crate::engine::Acks;
use crate::replication::Replication;

/// How long another member may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Between tries while another member goes by a newer map.
const RETRY: Duration = Duration::from_millis(100);

/// Executes a server command. What a router or another member sent is for this member alone, but
/// for a flush without a delay, which a router hands to one member. Statistics, counts and scans
/// are of this member alone.
pub(super) async fn execute(
    shared: &Shared,
    replication: &Arc<Replication>,
    client: Client<'_>,
    command: &ServerCommand<'_>,
    acks: &mut Acks,
) -> ServerOutcome {
    let place = (client.space, client.writer);
    match command {
        ServerCommand::Flush {
            all_databases,
            delay_s: 0,
        } => {
            let engine = &shared.service.engine;
            // Boxed: connections do not pay for it with memory.
            let flushed = Box::pin(replication.flush(engine, client.space, *all_databases)).await;
            match flushed {
                Ok(()) => ServerOutcome::Done,
                Err(failure) => ServerOutcome::Failed(failure),
            }
        }
        // At its time members do it together.
        ServerCommand::Flush { .. } if client.routed_by.is_none() => {
            let deadline = Instant::now() + ANSWER_TIMEOUT;
            loop {
                // First here: a member that joins after that hears it from this member or is among
                // the others.
                let own = commands::execute(shared, client, command, acks).await;
                if own == ServerOutcome::Failed(Failure::Unavailable) {
                    return own;
                }
                let others = replication.others();
                let asked = others
                    .iter()
                    .map(|target| target.ask(place, 0, command, ANSWER_TIMEOUT));
                let answers = futures_util::future::join_all(asked).await;
                let mut outcomes = std::iter::once(own).chain(answers);
                match outcomes.find(|outcome| *outcome != ServerOutcome::Done) {
                    None => return ServerOutcome::Done,
                    // By a newer map there may be others, and a silent member may be gone.
                    Some(ServerOutcome::Failed(Failure::Busy | Failure::Unavailable))
                        if Instant::now() < deadline =>
                    {
                        tokio::time::sleep(RETRY).await;
                    }
                    Some(failed) => return failed,
                }
            }
        }
        ServerCommand::Atomic(batch) => {
            let batch = Batch {
                base: batch.base.or(client.base),
                writer: client.writer,
                ..batch.clone()
            };
            Box::pin(carry_out(shared, replication, client, batch, acks)).await
        }
        _ => commands::execute(shared, client, command, acks).await,
    }
}

/// Carries a batch out here, or has the primary of its slot do it. A member that is not the primary
/// did nothing, so another one is asked once the topology says which.
async fn carry_out(
    shared: &Shared,
    replication: &Arc<Replication>,
    client: Client<'_>,
    batch: Batch<'_>,
    acks: &mut Acks,
) -> ServerOutcome {
    let mut slots: Vec<u16> = batch.keys().map(placement::slot).collect();
    slots.sort_unstable();
    slots.dedup();
    if slots.len() != 1 && !batch.all_absent {
        return ServerOutcome::CrossSlot;
    }
    let engine = &shared.service.engine;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let busy = ServerOutcome::Failed(Failure::Busy);
    let place = (client.space, client.writer);
    let command = ServerCommand::Atomic(batch);
    loop {
        let ServerCommand::Atomic(batch) = &command else {
            return busy;
        };
        let sender = (client.space, client.routed_by);
        let here = replication.execute_batch(engine, sender, (&slots, batch), acks);
        if let Some(outcome) = here.await {
            return outcome;
        }
        if client.routed_by.is_some() {
            return busy;
        }
        let outcome = match slots[..] {
            [slot] => {
                let upstreams = replication.forwarder().upstreams();
                let asked = upstreams.ask_owner(place, slot, &command, ANSWER_TIMEOUT);
                asked.await
            }
            _ if slots.iter().all(|slot| replication.is_primary(*slot)) => busy.clone(),
            // All or nothing works on one member.
            _ => return ServerOutcome::Failed(Failure::Unavailable),
        };
        if outcome != busy || Instant::now() >= deadline {
            return outcome;
        }
        tokio::time::sleep(RETRY).await;
    }
}
