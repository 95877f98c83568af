//! Executing the command of a client, or of another member: here if this member is the primary of
//! the slot, else there.
//!
//! A client's command answers later ([`Later`]) while another member executes it, or while other
//! owners take a write. The requests behind it in the same connection begin meanwhile, as they do
//! through a router.
//!
//! A command that another process sent is never forwarded once more, and a write is not executed by
//! a later epoch than that of its sender. The sender may have given this member up as down,
//! repeated the command at the next owner and acknowledged it. Executed later, it would undo newer
//! writes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use fonn_base::tasks::OnShutdown;
use fonn_forward::{Again, Came, Forwarded, is_repeatable};
use fonn_proto::peer::Entry as PeerEntry;
use fonn_proto::{Command, Failure, Outcome, placement};
use fonn_server::{Execution, Job, Stored};
use futures_util::stream::{self, StreamExt as _};

use super::metrics::Event;
use super::write::NotAcknowledged;
use super::{Replication, is_unchanged, refused, removes};
use crate::engine::{Acks, Engine, Moment, Transfer};

/// Between looks while this member is the primary and may not answer yet.
const RETRY: Duration = Duration::from_millis(5);

/// Keys of one request that the other owners are asked to take at a time.
const AT_ONCE: usize = 16;

/// What a member answers later.
pub enum Later {
    /// A command that another member executes.
    Forwarded(Box<Forwarded>),
    /// A write that this member executed and that the other owners take.
    Spread(Pin<Box<dyn Future<Output = Result<Outcome<'static>, Again>> + Send>>),
}

impl Future for Later {
    type Output = Result<Came, Again>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Forwarded(forwarded) => Pin::new(forwarded).poll(cx),
            Self::Spread(spread) => spread.as_mut().poll(cx).map_ok(Came::Known),
        }
    }
}

impl fonn_server::Later for Later {
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self {
            Self::Forwarded(forwarded) => forwarded.poll_ahead(cx),
            Self::Spread(_) => Pin::new(self).poll(cx),
        }
    }
}

/// A write that was executed here, and that the other owners take.
struct Write {
    unreplicated: Unreplicated,
    /// When its command came.
    begun: Instant,
    /// Whether it may be executed once more.
    is_repeatable: bool,
    outcome: Outcome<'static>,
}

/// A key that was written here by the epoch `since`. Its client may go before the other owners have
/// it, and without them this member alone would show it. So they take it when this is dropped.
struct Unreplicated {
    replication: Arc<Replication>,
    engine: Arc<Engine>,
    space: Space,
    key: Arc<[u8]>,
    /// What was written, if it is at hand; else it is read.
    transfer: Option<Transfer>,
    since: u64,
    is_spread: bool,
}

impl Unreplicated {
    /// As [`Replication::replicate`].
    ///
    /// # Cancel safety
    /// Cancelled, the other owners take it all the same.
    async fn spread(mut self) -> Result<(), NotAcknowledged> {
        let (space, since, key) = (self.space, self.since, Arc::clone(&self.key));
        let replicated = match self.transfer.take() {
            Some(transfer) => {
                let replicated = self
                    .replication
                    .replicate_entry(space, key, transfer, since);
                replicated.await
            }
            None => {
                let replicated = self.replication.replicate(&self.engine, space, key, since);
                replicated.await
            }
        };
        self.is_spread = true;
        replicated
    }
}

impl Drop for Unreplicated {
    fn drop(&mut self) {
        if self.is_spread {
            return;
        }
        let (space, key, since) = (self.space, Arc::clone(&self.key), self.since);
        let (replication, engine) = (Arc::clone(&self.replication), Arc::clone(&self.engine));
        // At the end of the process there is none.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let tasks = replication.group.clone();
        let rest = async move {
            // Whether it fails, no client waits to hear.
            let _ = replication.replicate(&engine, space, key, since).await;
        };
        tasks.spawn_on(&runtime, "replication-rest", OnShutdown::Abort, rest);
    }
}

impl Replication {
    /// Executes a command, here or at the owner of its slot.
    pub async fn execute<'s>(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Execution<'s, Later> {
        let begun = Instant::now();
        let tried = self.try_execute(engine, job, begun, acks, scratch);
        if let Some(execution) = tried.await {
            return execution;
        }
        loop {
            let mut scratch = Vec::new();
            let tried = self.try_execute(engine, job, begun, acks, &mut scratch);
            match tried.await {
                None => {}
                Some(Execution::Done(outcome)) => return Execution::Done(outcome.into_owned()),
                Some(Execution::Later(later)) => return Execution::Later(later),
                Some(Execution::WrongOwner) => return Execution::WrongOwner,
            }
        }
    }

    /// One try of [`Self::execute`] for a command that came at `begun`. `None` if another epoch
    /// came or the lease ended, and the command has to be executed again.
    async fn try_execute<'s>(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        job: &Job<'_>,
        begun: Instant,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Option<Execution<'s, Later>> {
        let slot = placement::slot(job.command.key());
        let deadline = begun + self.owners_wait;
        let since = match self.admit(engine, job, slot, deadline, acks).await {
            Ok(since) => since,
            Err(execution) => return Some(execution),
        };
        // Drawn before, so that what another client stores meanwhile is newer.
        // Another member may have the key, also if it is away or owns the slot no more.
        let absent_at =
            (removes(job.command) && !self.is_alone()).then(|| engine.versions().next());
        let outcome = crate::server::execute_here(engine, job, acks, scratch).await;
        if outcome == Outcome::Failed(Failure::Busy) && engine.is_late(acks) {
            return None;
        }
        match absent_at {
            Some(version) if matches!(outcome, Outcome::NotFound | Outcome::Miss) => {
                if engine.is_late(acks) {
                    return None;
                }
                let gone = PeerEntry::tombstone(job.space.0, job.command.key(), version);
                let kept = Box::pin(engine.put_of_peer(&gone, acks)).await;
                if let Err(error) = kept {
                    let failure = super::failure(error);
                    return Some(Execution::Done(Outcome::Failed(failure)));
                }
            }
            _ if job.command.is_write() && !is_unchanged(&outcome) => {}
            _ if self.serves_job(slot, job) => return Some(Execution::Done(outcome)),
            // What was read since the lease ended may be stale.
            _ => return None,
        }
        if self.rights.completes(slot) && self.epoch() == since && self.holds_lease() {
            return Some(Execution::Done(outcome));
        }
        let write = Write {
            unreplicated: self.unreplicated(engine, (job.space, job.command.key()), since),
            begun,
            is_repeatable: is_repeatable(job.command),
            outcome: outcome.into_owned(),
        };
        let mut complete = Box::pin(Arc::clone(self).complete(write));
        if job.routed_by.is_some() {
            return complete.await.ok().map(Execution::Done);
        }
        // The other owners are asked now, and not when the answer's turn has come.
        let polled = complete
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(completed) => completed.ok().map(Execution::Done),
            Poll::Pending => Some(Execution::Later(Later::Spread(complete))),
        }
    }

    /// Executes a store that another process sent, if that needs nothing but RAM and the queues.
    /// `word` gets the outcome unless it comes later. Then an error says that the store was
    /// executed by an epoch that is over.
    pub fn store_at_once(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        job: &Job<'_>,
        moment: Moment,
        acks: &mut Acks,
        word: impl FnOnce(&Outcome<'_>),
    ) -> Stored<Later> {
        let Command::Store(store) = job.command else {
            return Stored::No;
        };
        let slot = placement::slot(store.key);
        let admitted = self.epoch_and_base();
        let admitted = admitted.filter(|(since, _)| job.routed_by.is_some_and(|it| it >= *since));
        let Some((since, base)) = admitted else {
            return Stored::No;
        };
        if !self.serves(slot, true) || self.rights.floor(slot).is_some() {
            return Stored::No;
        }
        acks.admit(base);
        let plain = (!self.rights.completes(slot)).then(|| engine.request_value(job));
        let stored = engine.store_at_once(job, moment, acks, plain.as_ref());
        let Some((meta, outcome)) = stored else {
            return Stored::No;
        };
        if self.rights.completes(slot) && self.epoch() == since && self.holds_lease() {
            word(&outcome);
            return Stored::Yes;
        }
        let mut unreplicated = self.unreplicated(engine, (job.space, store.key), since);
        unreplicated.transfer = plain.map(|value| Transfer::plain(meta, value));
        let write = Write {
            unreplicated,
            begun: Instant::now(),
            is_repeatable: true,
            outcome,
        };
        Stored::Later(Later::Spread(Box::pin(Arc::clone(self).complete(write))))
    }

    /// Waits until this member may execute a command, and returns the epoch by which it may.
    ///
    /// # Errors
    /// The execution elsewhere, or the refusal.
    async fn admit(
        &self,
        engine: &Engine,
        job: &Job<'_>,
        slot: u16,
        deadline: Instant,
        acks: &mut Acks,
    ) -> Result<u64, Execution<'static, Later>> {
        loop {
            if let Some((since, base)) = self.epoch_and_base() {
                if job.command.is_write() && job.routed_by.is_some_and(|epoch| epoch < since) {
                    return Err(Execution::WrongOwner);
                }
                if self.serves_job(slot, job) {
                    let hidden = self.hide_below_floor(engine, job).await;
                    hidden.map_err(Execution::Done)?;
                    if since == self.epoch() && self.holds_lease() {
                        acks.admit(base);
                        return Ok(since);
                    }
                } else if job.routed_by.is_some() {
                    return Err(Execution::WrongOwner);
                } else if !self.is_primary(slot) {
                    self.count(Event::Forwarded);
                    let forwarded = Box::new(self.forwarder.begin(job));
                    return Err(Execution::Later(Later::Forwarded(forwarded)));
                }
            }
            if Instant::now() >= deadline {
                return Err(Execution::Done(refused(job.command)));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Has the other owners take a write.
    ///
    /// # Errors
    /// If another member may have led the slot since it was executed, and it may be executed again.
    ///
    /// # Cancel safety
    /// Cancelled, the other owners take it all the same.
    async fn complete(self: Arc<Self>, write: Write) -> Result<Outcome<'static>, Again> {
        let since = write.unreplicated.since;
        match write.unreplicated.spread().await {
            Ok(()) => Ok(write.outcome),
            Err(NotAcknowledged::Interrupted)
                if write.is_repeatable && write.begun.elapsed() < self.owners_wait =>
            {
                self.count(Event::Repeated);
                Err(Again::interrupted(write.begun, since, self.epoch()))
            }
            Err(reason) => Ok(Outcome::Failed(reason.into())),
        }
    }

    /// A key that was written here by the epoch `since`.
    fn unreplicated(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        (space, key): (Space, &[u8]),
        since: u64,
    ) -> Unreplicated {
        Unreplicated {
            replication: Arc::clone(self),
            engine: Arc::clone(engine),
            space,
            key: key.into(),
            transfer: None,
            since,
            is_spread: false,
        }
    }

    /// Replicates all keys that one request wrote by the epoch `since`: 16 of them at a time.
    ///
    /// # Errors
    /// If one of them is not acknowledged. The others are taken all the same.
    ///
    /// # Cancel safety
    /// Cancelled, the other owners take them all the same.
    pub(crate) async fn replicate_all<'k>(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        keys: impl IntoIterator<Item = (Space, &'k [u8])>,
        since: u64,
    ) -> Result<(), NotAcknowledged> {
        let unreplicated = |key| self.unreplicated(engine, key, since);
        // All of them exist before the first is waited for.
        let writes: Vec<_> = keys.into_iter().map(unreplicated).collect();
        let spread = stream::iter(writes).map(Unreplicated::spread);
        let results = spread.buffer_unordered(AT_ONCE).collect::<Vec<_>>();
        results.await.into_iter().collect()
    }

    /// Hides what is below the floor of a slot before a command meets it.
    ///
    /// # Errors
    /// The answer, if it cannot be read.
    pub(super) async fn hide_below_floor(
        &self,
        engine: &Engine,
        job: &Job<'_>,
    ) -> Result<(), Outcome<'static>> {
        let key = job.command.key();
        let base = job.base.map(|base| (base.space, base.key(key)));
        for (space, key) in std::iter::once((job.space, key)).chain(base) {
            let hidden = self.hide_key(engine, space, key).await;
            hidden.map_err(|failure| match job.command.is_write() {
                true => Outcome::Failed(failure),
                false => Outcome::Miss,
            })?;
        }
        Ok(())
    }

    /// Hides what this member has of a key below the floor of its slot, if there is one.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub(crate) async fn hide_key(
        &self,
        engine: &Engine,
        space: Space,
        key: &[u8],
    ) -> Result<(), Failure> {
        match self.rights.floor(placement::slot(key)) {
            Some(floor) => engine.hide_copy(space, key, floor).await,
            None => Ok(()),
        }
    }

    /// Finds an answer for a client's command that was begun and came to nothing.
    pub async fn execute_again(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        job: &Job<'_>,
        mut again: Again,
    ) -> Came {
        let deadline = Instant::now() + self.forwarder.timeout();
        loop {
            match self.forwarder.again(job, again).await {
                Came::Here => {}
                came => return came,
            }
            // Meanwhile this member has become the primary.
            let (mut acks, mut scratch) = (Acks::default(), Vec::new());
            let execution = self.execute(engine, job, &mut acks, &mut scratch).await;
            let outcome = match execution {
                Execution::Done(outcome) => outcome.into_owned(),
                Execution::Later(later) => match later.await {
                    Ok(Came::Known(outcome)) => outcome,
                    Ok(came) => return came,
                    Err(next) if Instant::now() < deadline => {
                        again = next;
                        continue;
                    }
                    Err(_) => return Came::Known(refused(job.command)),
                },
                Execution::WrongOwner => refused(job.command),
            };
            return Came::Known(match acks.wait().await.first() {
                None => outcome,
                Some((_, failure)) => Outcome::Failed(*failure),
            });
        }
    }
}
