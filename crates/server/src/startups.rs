//! Connections in their start-up: the TLS handshake is not over, or the client has to log in and
//! has not.
//!
//! Start-ups are bounded ([`super::strangers`]), and each has a deadline (see
//! [`Tuning::startup_max`](super::Tuning::startup_max)).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::encrypted::Stage;

use super::Shared;
use super::registry::{Connection, StartupState};
use super::service::{Event, Service};
use super::strangers::StrangersMax;

/// Start-ups of one source, and of all.
pub(super) const STARTUPS_MAX: StrangersMax = StrangersMax {
    of_source: 512,
    of_all: 2048,
};

/// How often a start-up is looked at that is past its deadline while the server keeps its client
/// waiting.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

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
        let begun = self.startups.begin(connection.id, connection.source, ());
        let Some((oldest, ())) = begun else {
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
