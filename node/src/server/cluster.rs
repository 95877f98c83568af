//! Requests about many keys, asked of a member of a cluster by a client: what concerns all members
//! is done by all.

use std::time::{Duration, Instant};

use fonn_forward::{Target, envelope};
use fonn_proto::peer::{Reply, Request};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Batch, Failure, ServerCommand, Space, WriterId, placement};
use fonn_server::Client;

use super::{Shared, commands};
use crate::engine::Acks;
use crate::sharing::Sharing;

/// How long another member may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Between tries while another member goes by a newer map.
const RETRY: Duration = Duration::from_millis(100);

/// Executes a server command. What a router or another member sent is for this member alone.
/// Statistics, counts and scans are of this member alone.
pub(super) async fn execute(
    shared: &Shared,
    sharing: &Sharing,
    client: Client<'_>,
    command: &ServerCommand<'_>,
    acks: &mut Acks,
) -> ServerOutcome {
    match command {
        ServerCommand::Flush {
            all_databases,
            delay_s: 0,
        } if !client.is_routed => {
            let engine = &shared.service.engine;
            // Boxed: connections do not pay for it with memory.
            let flushed = Box::pin(sharing.flush(engine, client.space, *all_databases)).await;
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
                let others = sharing.others();
                let asked = others
                    .iter()
                    .map(|target| ask(target, (client.space, client.writer), 0, command));
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
            Box::pin(carry_out(shared, sharing, client, batch, acks)).await
        }
        ServerCommand::StoreAllIfNone(pairs) => {
            let mut slots: Vec<u16> = pairs.iter().map(|(key, _)| placement::slot(key)).collect();
            slots.sort_unstable();
            slots.dedup();
            let since = sharing.epoch();
            let is_here = || slots.iter().all(|slot| sharing.is_settled_primary(*slot));
            if is_here() {
                for slot in &slots {
                    if let Err(failure) = sharing.check_standing(*slot).await {
                        return ServerOutcome::Failed(failure);
                    }
                }
                // Another one may own them after a long wait.
                if !is_here() || sharing.epoch() != since {
                    return ServerOutcome::Failed(Failure::Busy);
                }
                return store_all(shared, sharing, client, command, (&slots, since), acks).await;
            }
            // All or nothing works on one member.
            let unavailable = ServerOutcome::Failed(Failure::Unavailable);
            let [slot] = slots.as_slice() else {
                return unavailable;
            };
            match sharing.forwarder().upstreams().owner(*slot, 0) {
                Some(target) if !client.is_routed => {
                    ask(&target, (client.space, client.writer), *slot, command).await
                }
                _ => ServerOutcome::Failed(Failure::Busy),
            }
        }
        _ => commands::execute(shared, client, command, acks).await,
    }
}

/// Stores several keys whose slots, all `slots`, are here by the map of epoch `since`, and gives
/// them to the other owners.
async fn store_all(
    shared: &Shared,
    sharing: &Sharing,
    client: Client<'_>,
    command: &ServerCommand<'_>,
    (slots, since): (&[u16], u64),
    acks: &mut Acks,
) -> ServerOutcome {
    let ServerCommand::StoreAllIfNone(pairs) = command else {
        return ServerOutcome::Failed(Failure::Unavailable);
    };
    let outcome = commands::execute(shared, client, command, acks).await;
    // From here on the pairs are here, and others may lack them: nothing may be awaited before
    // this.
    let mut unspread = Unspread {
        sharing,
        space: client.space,
        pairs,
        is_spread: outcome != ServerOutcome::Integer(1),
    };
    // Others may own them since, if this process stood still.
    if let Err(failure) = sharing.all_stood(slots, since).await {
        return ServerOutcome::Failed(failure);
    }
    if matches!(outcome, ServerOutcome::Failed(_)) {
        return outcome;
    }
    let engine = &shared.service.engine;
    let keys = pairs.iter().map(|(key, _)| *key);
    match sharing.spread_all(engine, client.space, keys, since).await {
        Ok(()) => {
            unspread.is_spread = true;
            outcome
        }
        Err(failure) => ServerOutcome::Failed(failure),
    }
}

/// Pairs that were stored here and that other owners may lack. If the command ends before they have
/// them, because its client has gone or an owner does not answer, the owners are brought together
/// later.
struct Unspread<'a> {
    sharing: &'a Sharing,
    space: Space,
    pairs: &'a [(&'a [u8], &'a [u8])],
    is_spread: bool,
}

impl Drop for Unspread<'_> {
    fn drop(&mut self) {
        if !self.is_spread {
            for (key, _) in self.pairs {
                self.sharing.note_disagreement(self.space, key);
            }
        }
    }
}

/// Carries a batch out here, or has the primary of its slot do it. A member that is not the primary
/// did nothing, so another one is asked once the topology says which.
async fn carry_out(
    shared: &Shared,
    sharing: &Sharing,
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
        let here = sharing.execute_batch(engine, client.space, (slot, batch), acks);
        if let Some(outcome) = here.await {
            return outcome;
        }
        if client.is_routed {
            return busy;
        }
        let outcome = match sharing.forwarder().upstreams().owner(slot, 0) {
            Some(target) => ask(&target, (client.space, client.writer), slot, &command).await,
            None => busy.clone(),
        };
        if outcome != busy || Instant::now() >= deadline {
            return outcome;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn ask(
    target: &Target,
    (space, writer): (Space, WriterId),
    slot: u16,
    command: &ServerCommand<'_>,
) -> ServerOutcome {
    let request = Request::Server(command.clone());
    let envelope = envelope(slot, space, target.epoch).of(writer);
    let call = target.client.call(&request, envelope, None, ANSWER_TIMEOUT);
    match call.await.as_ref().map(|answer| answer.reply()) {
        Ok(Ok(Reply::Server(outcome))) => outcome,
        Ok(Ok(Reply::WrongOwner)) => ServerOutcome::Failed(Failure::Busy),
        _ => ServerOutcome::Failed(Failure::Unavailable),
    }
}
