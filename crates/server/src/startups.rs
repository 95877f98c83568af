//! Connections in their start-up: the TLS handshake is not over, or the client has to log in and
//! has not.
//!
//! A start-up costs memory for a client that is not known. Start-ups are bounded by source address
//! and in total, and each has a deadline (see [`Tuning::startup_max`](super::Tuning::startup_max)).
//! Beyond a bound the oldest start-up gives way to the newest. An honest client is done within
//! milliseconds, so it gets in although another client keeps all places taken.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::Source;
use fonn_auth::encrypted::Stage;
use parking_lot::Mutex;

use super::Shared;
use super::registry::{Connection, StartupState};
use super::service::{Event, Service};

/// Start-ups of all sources.
const ALL_MAX: usize = 2048;

/// Start-ups of one source.
const BY_SOURCE_MAX: usize = 512;

/// How often a start-up is looked at that is past its deadline while the server keeps its client
/// waiting.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The start-ups under way, by the number of their connection: the first one is the oldest.
#[derive(Debug, Default)]
pub(super) struct Startups(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sources: BTreeMap<u64, Source>,
    by_source: HashMap<Source, BTreeSet<u64>>,
}

impl Table {
    fn remove(&mut self, id: u64) {
        let Some(source) = self.sources.remove(&id) else {
            return;
        };
        if let Some(ids) = self.by_source.get_mut(&source) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }
}

impl Startups {
    /// Counts the start-up of connection `id`. Returns the connection that has to give way, if
    /// there are too many.
    fn begin(&self, id: u64, source: Source) -> Option<u64> {
        let mut table = self.0.lock();
        table.sources.insert(id, source);
        let ids = table.by_source.entry(source).or_default();
        ids.insert(id);
        let oldest = if ids.len() > BY_SOURCE_MAX {
            ids.first().copied()
        } else if table.sources.len() > ALL_MAX {
            table.sources.first_key_value().map(|(id, _)| *id)
        } else {
            None
        };
        if let Some(oldest) = oldest {
            table.remove(oldest);
        }
        oldest
    }

    /// Whether the start-up of connection `id` is counted.
    pub fn counts(&self, id: u64) -> bool {
        self.0.lock().sources.contains_key(&id)
    }

    /// Counts the start-up of connection `id` no longer.
    pub fn end(&self, id: u64) {
        self.0.lock().remove(id);
    }
}

impl<S: Service> Shared<S> {
    /// Begins the start-up of a connection, if it has one. True if it has a deadline.
    pub(super) fn begin_startup(&self, connection: &Connection) -> bool {
        let stage = connection.socket.stage();
        let has_users = self.security.users.is_some();
        if !has_users && stage == Stage::Ready {
            return false;
        }
        connection.set_startup(StartupState::UnderWay);
        // One that may speak without TLS and need not log in is not counted: it may be idle for as
        // long as it likes.
        if has_users || stage == Stage::Handshake {
            self.count_startup(connection);
        }
        true
    }

    /// Counts the start-up of a connection that could have spoken without TLS, and has begun a
    /// handshake.
    pub(super) fn count_handshake(&self, connection: &Connection) {
        let is_handshake = connection.socket.stage() == Stage::Handshake;
        if is_handshake && !self.startups.counts(connection.id) {
            self.count_startup(connection);
        }
    }

    /// Counts a start-up, and ends the oldest one if that is one too many.
    pub(super) fn count_startup(&self, connection: &Connection) {
        let Some(oldest) = self.startups.begin(connection.id, connection.source) else {
            return;
        };
        if let Some(oldest) = self.registry.get(oldest) {
            self.service.count(Event::Rejected, 1);
            oldest.socket.abort();
        }
    }

    /// Ends a start-up that is past its deadline. Returns when to look again, if it is not to be
    /// ended yet.
    fn expire_startup(&self, connection: &Arc<Connection>) -> Option<Duration> {
        let stage = connection.socket.stage();
        match connection.startup() {
            StartupState::Over => return None,
            StartupState::Held => return Some(CHECK_INTERVAL),
            StartupState::UnderWay => {}
        }
        if stage != Stage::Handshake && self.security.users.is_none() {
            self.startups.end(connection.id);
            return (stage == Stage::Undecided).then_some(self.tuning.startup_max);
        }
        self.service.count(Event::Stalled, 1);
        tracing::debug!(
            id = connection.id,
            peer = connection.peer,
            "cut off: no TLS handshake and login in time"
        );
        connection.socket.abort();
        None
    }
}

/// The deadlines of the start-ups of one reactor.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeSet<(Instant, u64)>);

impl Deadlines {
    /// Adds a deadline of connection `id`.
    pub fn add(&mut self, at: Instant, id: u64) {
        self.0.insert((at, id));
    }

    /// Waits for the first deadline; never returns without one.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn due(&self) {
        match self.0.first() {
            Some((at, _)) => tokio::time::sleep_until((*at).into()).await,
            None => std::future::pending().await,
        }
    }

    /// Ends the start-ups whose deadline is past.
    pub fn expire<S: Service>(&mut self, shared: &Shared<S>) {
        let now = Instant::now();
        while let Some(&(at, id)) = self.0.first()
            && at <= now
        {
            self.0.pop_first();
            let again = shared
                .registry
                .get(id)
                .and_then(|connection| shared.expire_startup(&connection));
            if let Some(delay) = again {
                self.add(now + delay, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(last: u8) -> Source {
        Source::of(Some(IpAddr::from([192, 0, 2, last])))
    }

    #[test]
    fn the_oldest_start_up_of_a_source_gives_way_to_the_newest() {
        let startups = Startups::default();
        assert_eq!(startups.begin(1, source(1)), None);
        for id in 2..2 + BY_SOURCE_MAX as u64 {
            assert_eq!(startups.begin(id, source(2)), None);
        }
        assert_eq!(startups.begin(1000, source(2)), Some(2));
        assert!(startups.counts(3) && !startups.counts(2));
        startups.end(3);
        assert_eq!(startups.begin(1001, source(2)), None);
        assert_eq!(startups.begin(1002, source(2)), Some(4));
    }

    #[test]
    fn the_oldest_start_up_of_all_gives_way_when_many_sources_have_some() {
        let startups = Startups::default();
        for id in 1..=ALL_MAX as u64 {
            assert_eq!(startups.begin(id, source((id % 200) as u8)), None);
        }
        assert_eq!(startups.begin(9000, source(250)), Some(1));
        startups.end(9000);
        startups.end(9000);
        assert_eq!(startups.begin(9001, source(250)), None);
    }
}
