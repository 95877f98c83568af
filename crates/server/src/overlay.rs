//! Commands of clients whose namespace has many overlays (ADR 0025).
//!
//! Here a client's keys become stored keys, and stored keys become the client's again. What
//! executes commands sees stored keys alone; what words replies sees those of the client alone.
//!
//! Invariant: no command of such a client reaches the service on a key without the prefix of its
//! overlay.

use bytes::Bytes;
use fonn_base::random::SplitMix64;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Command, Failure, Get, Outcome, Overlay, ServerCommand, Space, placement};

use super::Shared;
use super::scope::Scope;
use super::service::{Client, Execution, Job, Service, carry_out};

/// As [`Service::answer_hit`], for a key of an overlay.
pub(super) fn answer_hit<S: Service>(
    service: &S,
    overlay: Overlay,
    (space, get): (Space, &Get<'_>),
    moment: S::Moment,
    scratch: &mut Vec<u8>,
    word: impl FnOnce(&Outcome<'_>),
) -> bool {
    let key = overlay.key(get.key);
    let get = Get {
        key: &key,
        ..get.clone()
    };
    service.answer_hit(space, &get, moment, scratch, word)
}

/// As [`Service::execute`], for a key of an overlay.
pub(super) async fn execute<'s, S: Service>(
    service: &S,
    overlay: Overlay,
    job: &Job<'_>,
    acks: &mut S::Acks,
    scratch: &'s mut Vec<u8>,
) -> Execution<'s, S::Later> {
    let key = overlay.key(job.command.key());
    let command = job.command.on(&key);
    let job = Job {
        command: &command,
        ..*job
    };
    service.execute(&job, acks, scratch).await
}

/// As [`Service::again`], for a key of an overlay.
pub(super) async fn again<S: Service>(
    service: &S,
    overlay: Overlay,
    job: &Job<'_>,
    again: S::Again,
) -> S::Answer {
    let key = overlay.key(job.command.key());
    let command = job.command.on(&key);
    let job = Job {
        command: &command,
        ..*job
    };
    service.again(&job, again).await
}

/// Has a service execute a command that came on no connection, and waits until its outcome is
/// final. `source` is the allocation of its value, if that is large and may be shared.
pub async fn carry_out_in<S: Service>(
    service: &S,
    scope: Scope,
    command: &Command<'_>,
    source: Option<&Bytes>,
) -> Outcome<'static> {
    let job = Job {
        source,
        base: scope.base,
        writer: scope.writer,
        ..Job::own(scope.space, command)
    };
    let Some(overlay) = scope.overlay else {
        return carry_out(service, &job).await;
    };
    let key = overlay.key(command.key());
    let command = command.on(&key);
    let job = Job {
        command: &command,
        ..job
    };
    carry_out(service, &job).await
}

/// Answers reads that came on no connection and can be answered on the spot: what `word` makes of
/// each hit, in the order of `reads`.
pub fn hits_in<'g, S: Service, T>(
    service: &S,
    scope: Scope,
    reads: impl Iterator<Item = Get<'g>>,
    word: impl Fn(&Outcome<'_>) -> Option<T>,
) -> Vec<Option<T>> {
    let (moment, mut scratch, mut hits) = (service.moment(), Vec::new(), 0);
    let mut answer = |get: Get<'_>| {
        let mut told = None;
        let word = |outcome: &Outcome<'_>| told = word(outcome);
        let at = (scope.space, &get);
        let is_hit = match scope.overlay {
            Some(overlay) => answer_hit(service, overlay, at, moment, &mut scratch, word),
            None => service.answer_hit(scope.space, &get, moment, &mut scratch, word),
        };
        hits += u64::from(is_hit);
        told
    };
    let told = reads.map(&mut answer).collect();
    service.count_hits(hits);
    told
}

/// As [`Service::execute_server`], for a client in an overlay: it is told about the keys of this
/// overlay alone. Statistics are those of the namespace.
pub(super) async fn execute_server<S: Service>(
    overlay: Overlay,
    server: &Shared<S>,
    client: Client<'_>,
    command: &ServerCommand<'_>,
    acks: &mut S::Acks,
) -> ServerOutcome {
    let service = &server.service;
    match command {
        ServerCommand::Scan {
            cursor,
            pattern,
            count,
        } => {
            let pattern = stored_pattern(overlay, pattern.unwrap_or(b"*"));
            let command = ServerCommand::Scan {
                cursor: *cursor,
                pattern: Some(&pattern),
                count: *count,
            };
            let scanned = service.execute_server(server, client, &command, acks);
            of_overlay(overlay, scanned.await)
        }
        ServerCommand::Keys(pattern) => {
            let pattern = stored_pattern(overlay, pattern);
            let command = ServerCommand::Keys(&pattern);
            let found = service.execute_server(server, client, &command, acks);
            of_overlay(overlay, found.await)
        }
        ServerCommand::Count => {
            let keys = keys(overlay, server, client, acks).await;
            counted(keys, |_| true)
        }
        ServerCommand::CountInSlot(slot) => {
            let keys = keys(overlay, server, client, acks).await;
            counted(keys, |key| placement::slot(key) == *slot)
        }
        ServerCommand::RandomKey => match keys(overlay, server, client, acks).await {
            Ok(mut keys) if !keys.is_empty() => {
                let at = SplitMix64::from_entropy().below(keys.len() as u64) as usize;
                ServerOutcome::Key(Some(keys.swap_remove(at)))
            }
            Ok(_) => ServerOutcome::Key(None),
            Err(outcome) => outcome,
        },
        ServerCommand::Atomic(batch) => {
            let stored: Vec<_> = batch.keys().map(|key| overlay.key(key)).collect();
            let command = ServerCommand::Atomic(batch.on(&stored));
            let executed = service.execute_server(server, client, &command, acks);
            executed.await
        }
        // It would hide the entries of all overlays. The guard refuses it before.
        ServerCommand::Flush { .. } => ServerOutcome::Failed(Failure::ReadOnly),
        ServerCommand::Stats(_)
        | ServerCommand::Info(_)
        | ServerCommand::ConfigGet(_)
        | ServerCommand::ConfigSet(_)
        | ServerCommand::Time
        | ServerCommand::ClientInfo
        | ServerCommand::Auth { .. }
        | ServerCommand::ClusterView => {
            let executed = service.execute_server(server, client, command, acks);
            executed.await
        }
    }
}

/// The pattern of the stored keys whose client's keys match `pattern`.
fn stored_pattern(overlay: Overlay, pattern: &[u8]) -> Vec<u8> {
    let prefix = overlay.prefix();
    let mut stored = Vec::with_capacity(2 * prefix.len() + pattern.len());
    for byte in prefix {
        // Each byte stands for itself.
        stored.extend_from_slice(&[b'\\', *byte]);
    }
    stored.extend_from_slice(pattern);
    stored
}

/// The outcome with the client's keys of this overlay alone.
fn of_overlay(overlay: Overlay, outcome: ServerOutcome) -> ServerOutcome {
    let ServerOutcome::Scan { cursor, keys } = outcome else {
        return outcome;
    };
    let keys = keys.iter().filter_map(|key| overlay.client_key(key));
    ServerOutcome::Scan {
        cursor,
        keys: keys.map(<[u8]>::to_vec).collect(),
    }
}

/// All keys of an overlay, up to the bounds of `KEYS`.
async fn keys<S: Service>(
    overlay: Overlay,
    server: &Shared<S>,
    client: Client<'_>,
    acks: &mut S::Acks,
) -> Result<Vec<Vec<u8>>, ServerOutcome> {
    let pattern = stored_pattern(overlay, b"*");
    let command = ServerCommand::Keys(&pattern);
    let found = server
        .service
        .execute_server(server, client, &command, acks);
    match of_overlay(overlay, found.await) {
        ServerOutcome::Scan { keys, .. } => Ok(keys),
        outcome => Err(outcome),
    }
}

fn counted(
    keys: Result<Vec<Vec<u8>>, ServerOutcome>,
    is_counted: impl Fn(&[u8]) -> bool,
) -> ServerOutcome {
    match keys {
        Ok(keys) => {
            let count = keys.iter().filter(|key| is_counted(key)).count();
            ServerOutcome::Integer(i64::try_from(count).unwrap_or(i64::MAX))
        }
        Err(outcome) => outcome,
    }
}
