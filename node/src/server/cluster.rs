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

/// Executes a server command. What a router or another member sent is for this member alone.
/// Statistics, counts and scans are of this member alone.
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
        } if !client.is_routed => {
            let engine = &shared.service.engine;
            // Boxed: connections do not pay for it with memory.
            let flushed = Box::pin(replication.flush(engine, client.space, *all_databases)).await;
            match flushed {
                Ok(()) => ServerOutcome::Done,
                Err(failure) => ServerOutcome::Failed(failure),
            }
        }
        // At its time members do it together.
        ServerCommand::Flush { .. } if !client.is_routed => {
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
        ServerCommand::StoreAllIfNone(pairs) => {
            let mut slots: Vec<u16> = pairs.iter().map(|(key, _)| placement::slot(key)).collect();
            slots.sort_unstable();
            slots.dedup();
            let Some((since, base)) = replication.epoch_and_base() else {
                return ServerOutcome::Failed(Failure::Busy);
            };
            if slots.iter().all(|slot| replication.serves(*slot, true)) {
                for (key, _) in pairs {
                    let hidden = replication.hide_key(&shared.service.engine, client.space, key);
                    if let Err(failure) = hidden.await {
                        return ServerOutcome::Failed(failure);
                    }
                }
                acks.admit(base);
                return store_all(shared, replication, client, command, since, acks).await;
            }
            // All or nothing works on one member.
            let unavailable = ServerOutcome::Failed(Failure::Unavailable);
            let [slot] = slots.as_slice() else {
                return unavailable;
            };
            if client.is_routed {
                return ServerOutcome::Failed(Failure::Busy);
            }
            let upstreams = replication.forwarder().upstreams();
            let asked = upstreams.ask_owner(place, *slot, command, ANSWER_TIMEOUT);
            asked.await
        }
        _ => commands::execute(shared, client, command, acks).await,
    }
}

/// Stores several keys of which this member is the primary by the epoch `since`, and has the other
/// owners take them.
async fn store_all(
    shared: &Shared,
    replication: &Arc<Replication>,
    client: Client<'_>,
    command: &ServerCommand<'_>,
    since: u64,
    acks: &mut Acks,
) -> ServerOutcome {
    let ServerCommand::StoreAllIfNone(pairs) = command else {
        return ServerOutcome::Failed(Failure::Unavailable);
    };
    let outcome = commands::execute(shared, client, command, acks).await;
    if outcome != ServerOutcome::Integer(1) {
        return outcome;
    }
    let keys = pairs.iter().map(|(key, _)| (client.space, *key));
    let replicated = replication.replicate_all(&shared.service.engine, keys, since);
    match replicated.await {
        Ok(()) => outcome,
        Err(reason) => ServerOutcome::Failed(reason.into()),
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
    let Some(slot) = batch.slot() else {
        return ServerOutcome::CrossSlot;
    };
    let engine = &shared.service.engine;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let busy = ServerOutcome::Failed(Failure::Busy);
    let command = ServerCommand::Atomic(batch);
    loop {
        let ServerCommand::Atomic(batch) = &command else {
            return busy;
        };
        let here = replication.execute_batch(engine, client.space, (slot, batch), acks);
        if let Some(outcome) = here.await {
            return outcome;
        }
        if client.is_routed {
            return busy;
        }
        let (upstreams, place) = (
            replication.forwarder().upstreams(),
            (client.space, client.writer),
        );
        let asked = upstreams.ask_owner(place, slot, &command, ANSWER_TIMEOUT);
        let outcome = asked.await;
        if outcome != busy || Instant::now() >= deadline {
            return outcome;
        }
        tokio::time::sleep(RETRY).await;
    }
}
