//! Requests about many keys or about the server itself.

use std::sync::Arc;

use fonn_base::entry::Space;
use fonn_base::glob;
use fonn_proto::request::{ServerOutcome, StatsKind};
use fonn_proto::{ClusterView, ServerCommand};
use fonn_server::Client;

use super::{Shared, keys, live};
use crate::engine::Acks;
use crate::report;

/// What the id of a node in no cluster is made of: the same after every start.
const LONE_NAME: &str = "fonn-node";

/// Executes a server command.
pub(super) async fn execute(
    shared: &Shared,
    client: Client<'_>,
    command: &ServerCommand<'_>,
    acks: &mut Acks,
) -> ServerOutcome {
    let engine = &shared.service.engine;
    let space = client.space;
    match command {
        ServerCommand::Flush {
            all_databases,
            delay_s,
        } => {
            let spaces = match all_databases {
                true => Space::of_namespace(space.namespace()).collect(),
                false => vec![space],
            };
            match engine.flush(&spaces, *delay_s).await {
                Ok(()) => ServerOutcome::Done,
                Err(failure) => ServerOutcome::Failed(failure),
            }
        }
        ServerCommand::Stats(kind) => match kind {
            StatsKind::General if !client.is_confined => {
                ServerOutcome::Pairs(report::general(shared))
            }
            StatsKind::Items if !client.is_confined => ServerOutcome::Pairs(report::items(shared)),
            StatsKind::General | StatsKind::Namespace => {
                ServerOutcome::Pairs(report::of_namespace(shared, space.namespace()))
            }
            StatsKind::Items => {
                ServerOutcome::Pairs(report::items_of_namespace(shared, space.namespace()))
            }
            StatsKind::Settings => ServerOutcome::Pairs(shared.settings.pairs()),
            StatsKind::Connections => ServerOutcome::Pairs(report::connections(shared)),
            StatsKind::Empty => ServerOutcome::Pairs(Vec::new()),
            StatsKind::Reset => {
                engine.stats().reset();
                ServerOutcome::Done
            }
        },
        ServerCommand::Info(sections) => {
            let keyspace = match report::wants_section(sections, "keyspace") {
                true => report::keyspace(shared, space.namespace()).await,
                false => Vec::new(),
            };
            ServerOutcome::Text(report::info(shared, client, sections, &keyspace))
        }
        ServerCommand::ConfigGet(patterns) => {
            ServerOutcome::Pairs(report::config(shared, patterns))
        }
        ServerCommand::ConfigSet(pairs) => live::change(shared, pairs).await,
        ServerCommand::Time => {
            let now_us = engine.now_ms().saturating_mul(1000);
            ServerOutcome::Integer(i64::try_from(now_us).unwrap_or(i64::MAX))
        }
        ServerCommand::Keys(pattern) => keys::all(engine, space, pattern).await,
        ServerCommand::Atomic(batch) => {
            let batch = fonn_proto::Batch {
                base: batch.base.or(client.base),
                writer: client.writer,
                ..batch.clone()
            };
            engine.execute_batch(space, &batch, acks).await
        }
        ServerCommand::Count => match engine.count_entries(space).await {
            Ok(count) => ServerOutcome::Integer(i64::try_from(count).unwrap_or(i64::MAX)),
            Err(failure) => ServerOutcome::Failed(failure),
        },
        ServerCommand::Scan {
            cursor,
            pattern,
            count,
        } => {
            let prefix = pattern.map_or_else(Vec::new, glob::literal_prefix);
            match engine.scan(space, *cursor, *count, &prefix).await {
                None => ServerOutcome::InvalidCursor,
                Some(Err(failure)) => ServerOutcome::Failed(failure),
                Some(Ok((cursor, keys))) => {
                    let keys = match pattern {
                        Some(pattern) => keys::matching(pattern, keys).await,
                        None => keys,
                    };
                    ServerOutcome::Scan { cursor, keys }
                }
            }
        }
        ServerCommand::RandomKey => ServerOutcome::Key(engine.random_key(space).await),
        ServerCommand::ClientInfo => ServerOutcome::Text(report::connection_line(client)),
        ServerCommand::ClusterView => ServerOutcome::Cluster(match &shared.service.views {
            Some(views) => views.current(),
            None => Arc::new(ClusterView::alone(LONE_NAME, client.local)),
        }),
        ServerCommand::CountInSlot(slot) => match engine.count_in_slot(space, *slot).await {
            Ok(count) => ServerOutcome::Integer(i64::try_from(count).unwrap_or(i64::MAX)),
            Err(failure) => ServerOutcome::Failed(failure),
        },
        // Users come with their own file; without one there is nothing to authenticate against.
        ServerCommand::Auth { .. } => ServerOutcome::AuthNotConfigured,
    }
}
