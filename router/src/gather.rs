//! Commands about the whole store: asked of all members, and made one answer.

use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_proto::request::{ServerOutcome, StatsKind};
use fonn_proto::{Batch, Failure, ServerCommand, Space, WriterId};
use fonn_server::{Client, KEYS_PAGE, KeyGatherer, all_immutable};
use futures_util::future::join_all;

use crate::report;
use crate::service::{Router, Shared};

/// Between tries of what has to be with all members, while one of them goes by a newer map.
const RETRY: Duration = Duration::from_millis(100);

/// A cursor of `SCAN` is that of a member, with the member's position in the map above these bits.
const POSITION_SHIFT: u32 = 48;

/// Executes a command about the whole store.
pub async fn execute(
    server: &Shared,
    client: Client<'_>,
    command: &ServerCommand<'_>,
) -> ServerOutcome {
    let router = &server.service;
    match command {
        ServerCommand::Flush { .. } => flush(router, client.space, command).await,
        ServerCommand::Stats(StatsKind::Reset) => {
            all_done(&ask_all(router, client.space, command).await)
        }
        ServerCommand::Stats(StatsKind::General | StatsKind::Namespace) => {
            let answers = ask_all(router, client.space, &general(client)).await;
            ServerOutcome::Pairs(report::general(server, client, answers.into_iter()))
        }
        ServerCommand::Stats(StatsKind::Items) if client.is_confined => {
            let answers = ask_all(router, client.space, &general(client)).await;
            ServerOutcome::Pairs(report::items_of_namespace(answers.into_iter()))
        }
        ServerCommand::Stats(StatsKind::Items) => {
            let answers = ask_all(router, client.space, command).await;
            ServerOutcome::Pairs(report::sum(answers.into_iter()))
        }
        ServerCommand::Stats(StatsKind::Settings) => ServerOutcome::Pairs(server.settings.pairs()),
        ServerCommand::Stats(StatsKind::Connections) => {
            ServerOutcome::Pairs(report::connections(server))
        }
        ServerCommand::Stats(StatsKind::Empty) => ServerOutcome::Pairs(Vec::new()),
        ServerCommand::Info(sections) => {
            let answers = ask_all(router, client.space, &general(client)).await;
            // Every member has to count them.
            let keys = match report::wants_section(sections, "Keyspace") {
                true => count(router, client.space).await.unwrap_or(0),
                false => 0,
            };
            let stats = report::sum(answers.into_iter());
            ServerOutcome::Text(report::info(server, sections, &stats, client, keys))
        }
        ServerCommand::ConfigGet(patterns) => {
            ServerOutcome::Pairs(report::config(server, patterns))
        }
        ServerCommand::ConfigSet(pairs) => {
            let known = |name: &[u8]| !report::config(server, &[name]).is_empty();
            all_immutable(pairs, known)
        }
        ServerCommand::Time => {
            let now_us = Clock::system().wall_ms().saturating_mul(1000);
            ServerOutcome::Integer(i64::try_from(now_us).unwrap_or(i64::MAX))
        }
        ServerCommand::Keys(pattern) => keys(router, client.space, pattern).await,
        ServerCommand::Atomic(batch) => {
            let batch = Batch {
                base: client.base,
                writer: client.writer,
                ..batch.clone()
            };
            carry_out(router, client.space, batch).await
        }
        ServerCommand::Count => match count(router, client.space).await {
            Ok(keys) => ServerOutcome::Integer(keys),
            Err(failure) => ServerOutcome::Failed(failure),
        },
        ServerCommand::Scan {
            cursor,
            pattern,
            count,
        } => scan(router, client.space, *cursor, *pattern, *count).await,
        ServerCommand::RandomKey => random_key(router, client.space).await,
        ServerCommand::ClientInfo => ServerOutcome::Text(report::connection_line(client)),
        ServerCommand::Auth { .. } => ServerOutcome::AuthNotConfigured,
        ServerCommand::ClusterView => ServerOutcome::Cluster(router.address().view(client.local)),
        ServerCommand::CountInSlot(slot) => {
            ask_owner(router, (client.space, WriterId::NONE), *slot, command).await
        }
    }
}

/// What members are asked for, to tell a client how the cluster does.
fn general(client: Client<'_>) -> ServerCommand<'static> {
    ServerCommand::Stats(match client.is_confined {
        true => StatsKind::Namespace,
        false => StatsKind::General,
    })
}

/// What each serving member says.
async fn ask_all(router: &Router, space: Space, command: &ServerCommand<'_>) -> Vec<ServerOutcome> {
    let members = router.forwarder().upstreams().all();
    let place = (space, WriterId::NONE);
    let timeout = router.forwarder().timeout();
    let asked = members
        .iter()
        .map(|(_, target)| target.ask(place, 0, command, timeout));
    join_all(asked).await
}

/// Asks one member to flush all members. The router asks the next member if the first is busy or
/// does not answer, because the first may have failed a moment ago. A flush with a delay goes to
/// each member, and members carry it out together at its time.
async fn flush(router: &Router, space: Space, command: &ServerCommand<'_>) -> ServerOutcome {
    let deadline = Instant::now() + router.forwarder().timeout();
    let mut tries = 0;
    loop {
        let done = match command {
            ServerCommand::Flush { delay_s: 0, .. } => {
                let left = deadline.saturating_duration_since(Instant::now());
                let members = router.forwarder().upstreams().all();
                match members.iter().cycle().nth(tries) {
                    Some((_, member)) => {
                        let place = (space, WriterId::NONE);
                        member.ask(place, 0, command, left).await
                    }
                    None => ServerOutcome::Failed(Failure::Unavailable),
                }
            }
            _ => all_done(&ask_all(router, space, command).await),
        };
        tries += 1;
        let may_pass = matches!(
            done,
            ServerOutcome::Failed(Failure::Busy | Failure::Unavailable)
        );
        if !may_pass || Instant::now() >= deadline {
            return done;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Done, if all members say so and there are any.
fn all_done(answers: &[ServerOutcome]) -> ServerOutcome {
    let failure = answers.iter().find_map(|answer| match answer {
        ServerOutcome::Done => None,
        ServerOutcome::Failed(failure) => Some(*failure),
        _ => Some(Failure::Unavailable),
    });
    match failure {
        Some(failure) => ServerOutcome::Failed(failure),
        None if answers.is_empty() => ServerOutcome::Failed(Failure::Unavailable),
        None => ServerOutcome::Done,
    }
}

/// Entries of all members; those with replicas count as often as there are copies.
async fn count(router: &Router, space: Space) -> Result<i64, Failure> {
    let answers = ask_all(router, space, &ServerCommand::Count).await;
    let mut sum = 0_i64;
    for answer in answers {
        match answer {
            ServerOutcome::Integer(count) => sum = sum.saturating_add(count),
            ServerOutcome::Failed(failure) => return Err(failure),
            _ => return Err(Failure::Unavailable),
        }
    }
    Ok(sum)
}

/// What the owner of a slot says.
async fn ask_owner(
    router: &Router,
    place: (Space, WriterId),
    slot: u16,
    command: &ServerCommand<'_>,
) -> ServerOutcome {
    let (upstreams, timeout) = (router.forwarder().upstreams(), router.forwarder().timeout());
    upstreams.ask_owner(place, slot, command, timeout).await
}

/// Goes through the members one after the other.
async fn scan(
    router: &Router,
    space: Space,
    cursor: u64,
    pattern: Option<&[u8]>,
    count: usize,
) -> ServerOutcome {
    let from = usize::try_from(cursor >> POSITION_SHIFT).unwrap_or(usize::MAX);
    let members = router.forwarder().upstreams().all();
    let mut rest = members.iter().filter(|(position, _)| *position >= from);
    let Some((position, target)) = rest.next() else {
        return match members.is_empty() {
            true => ServerOutcome::Failed(Failure::Unavailable),
            // Those that were left are gone.
            false => ServerOutcome::Scan {
                cursor: 0,
                keys: Vec::new(),
            },
        };
    };
    let next = rest.next().map_or(0, |(position, _)| at(*position, 0));
    let command = ServerCommand::Scan {
        // If the member of the cursor is gone, the next one is begun.
        cursor: match *position == from {
            true => cursor & ((1 << POSITION_SHIFT) - 1),
            false => 0,
        },
        pattern,
        count,
    };
    let place = (space, WriterId::NONE);
    let asked = target.ask(place, 0, &command, router.forwarder().timeout());
    match asked.await {
        ServerOutcome::Scan { cursor: 0, keys } => ServerOutcome::Scan { cursor: next, keys },
        ServerOutcome::Scan { cursor, keys } if cursor >> POSITION_SHIFT == 0 => {
            ServerOutcome::Scan {
                cursor: at(*position, cursor),
                keys,
            }
        }
        ServerOutcome::Scan { .. } => ServerOutcome::Failed(Failure::Unavailable),
        other => other,
    }
}

/// All keys that match a pattern.
async fn keys(router: &Router, space: Space, pattern: &[u8]) -> ServerOutcome {
    let (mut gathered, mut cursor) = (KeyGatherer::default(), 0);
    loop {
        let page = match scan(router, space, cursor, Some(pattern), KEYS_PAGE).await {
            ServerOutcome::Scan { cursor: next, keys } => {
                cursor = next;
                keys
            }
            ServerOutcome::InvalidCursor => return ServerOutcome::Failed(Failure::Busy),
            other => return other,
        };
        if let Err(failure) = gathered.add(page) {
            return ServerOutcome::Failed(failure);
        }
        if cursor == 0 {
            return gathered.finish();
        }
    }
}

/// Has the owner of a batch's keys carry it out. A member that does not own them did nothing, so
/// another one is asked once the topology says which.
async fn carry_out(router: &Router, space: Space, batch: Batch<'_>) -> ServerOutcome {
    let Some(slot) = batch.slot() else {
        return match batch.all_absent {
            // No member could be asked that is the primary of all.
            true => ServerOutcome::Failed(Failure::Unavailable),
            false => ServerOutcome::CrossSlot,
        };
    };
    let place = (space, batch.writer);
    let command = ServerCommand::Atomic(batch);
    let deadline = Instant::now() + router.forwarder().timeout();
    loop {
        let outcome = ask_owner(router, place, slot, &command).await;
        if outcome != ServerOutcome::Failed(Failure::Busy) || Instant::now() >= deadline {
            return outcome;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The cursor of a member, told to the client.
fn at(position: usize, cursor: u64) -> u64 {
    ((position as u64) << POSITION_SHIFT) | cursor
}

async fn random_key(router: &Router, space: Space) -> ServerOutcome {
    let answers = ask_all(router, space, &ServerCommand::RandomKey).await;
    let silent = ServerOutcome::Failed(Failure::Unavailable);
    let is_answered = answers.iter().any(|answer| *answer != silent);
    let mut keys: Vec<_> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            ServerOutcome::Key(key) => key,
            _ => None,
        })
        .collect();
    if keys.is_empty() {
        return match is_answered {
            true => ServerOutcome::Key(None),
            false => silent,
        };
    }
    let mut random = fonn_base::random::SplitMix64::from_entropy();
    let at = random.below(keys.len() as u64) as usize;
    ServerOutcome::Key(Some(keys.swap_remove(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn done_is_what_all_members_say() {
        let done = ServerOutcome::Done;
        assert_eq!(all_done(&[done.clone(), done.clone()]), ServerOutcome::Done);
        let failed = |failure| ServerOutcome::Failed(failure);
        assert_eq!(all_done(&[]), failed(Failure::Unavailable));
        assert_eq!(
            all_done(&[done.clone(), failed(Failure::Unavailable)]),
            failed(Failure::Unavailable)
        );
        assert_eq!(
            all_done(&[done, failed(Failure::Busy)]),
            failed(Failure::Busy)
        );
    }
}
