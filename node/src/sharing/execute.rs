//! Executing the command of a client, or of another member: here if this member is the primary of
//! the slot, else there.
//!
//! A client's command answers later ([`Later`]) while another member executes it, or while other
//! owners take a write. The requests behind it in the same connection begin meanwhile, as they do
//! through a router.
//!
//! A command that another process sent is never forwarded once more. Its sender may have given this
//! member up as down, repeated the command at the next owner and acknowledged it. Forwarded later,
//! it would undo newer writes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fonn_base::entry::Space;
use fonn_forward::{Again, Came, Forwarded};
use fonn_proto::peer::Entry;
use fonn_proto::{Outcome, placement};
use fonn_server::{Execution, Job};

use super::metrics::Event;
use super::{PRIMARY, RETRY, SHARED, Sharing, Unconfirmed, WRITE_WAITS};
use super::{is_unchanged, refused, removes};
use crate::engine::{Acks, Engine};

/// What a member answers later.
pub enum Later {
    /// A command that another member executes.
    Forwarded(Box<Forwarded>),
    /// A write that this member executed and that the other owners take.
    Spread(Pin<Box<dyn Future<Output = Outcome<'static>> + Send>>),
}

impl Future for Later {
    type Output = Result<Came, Again>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Forwarded(forwarded) => Pin::new(forwarded).poll(cx),
            Self::Spread(spread) => spread.as_mut().poll(cx).map(|it| Ok(Came::Known(it))),
        }
    }
}

/// A write that was executed here, and what the other owners are given of it.
struct Write {
    space: Space,
    key: Box<[u8]>,
    /// The epoch of the topology by which it was executed.
    since: u64,
    outcome: Outcome<'static>,
}

impl Sharing {
    /// Executes a command, here or at the owner of its slot.
    pub async fn execute<'s>(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Execution<'s, Later> {
        let slot = placement::slot(job.command.key());
        let is_write = job.command.is_write();
        let waits = if is_write { WRITE_WAITS } else { 1 };
        let deadline = Instant::now() + waits * self.owners_wait;
        let since = loop {
            let since = self.epoch();
            let flags = self.flags(slot);
            let is_here = match job.is_routed {
                true => self.serves(slot, is_write),
                false => flags & PRIMARY != 0 && self.is_sound(),
            };
            if is_here {
                if let Err(outcome) = self.prepare(engine, job, flags, acks).await {
                    return Execution::Done(outcome);
                }
                // Another member may own the slot after a long wait, also one by a topology that is
                // about to be applied: what is executed then has a newer version than what that
                // member acknowledged meanwhile.
                if since == self.epoch() && self.is_sound() {
                    break since;
                }
            } else if job.is_routed {
                return Execution::WrongOwner;
            } else if flags & PRIMARY == 0 {
                self.events.count(Event::Forwarded);
                let forwarded = Box::new(self.forwarder.begin(job));
                return Execution::Later(Later::Forwarded(forwarded));
            }
            if Instant::now() >= deadline {
                return Execution::Done(refused(job.command, Unconfirmed::Silent));
            }
            tokio::time::sleep(RETRY / 4).await;
        };
        // Drawn before, so that what another client stores meanwhile is newer.
        let absent_at = (removes(job.command) && self.flags(slot) & SHARED != 0)
            .then(|| engine.versions().next());
        let outcome = crate::server::execute_here(engine, job, acks, scratch).await;
        if !self.is_sound()
            && let Err(why) = Box::pin(self.stood(slot, since, deadline)).await
        {
            return Execution::Done(refused(job.command, why));
        }
        let key = job.command.key();
        match absent_at {
            Some(version) if matches!(outcome, Outcome::NotFound | Outcome::Miss) => {
                let gone = Entry::tombstone(job.space.0, key, version);
                let kept = Box::pin(engine.put_of_peer(&gone, acks)).await;
                if let Err(error) = kept {
                    return Execution::Done(Outcome::Failed(super::failure(error)));
                }
            }
            _ if is_write && !is_unchanged(&outcome) => {}
            _ => return Execution::Done(outcome),
        }
        if self.flags(slot) & (PRIMARY | SHARED) == PRIMARY {
            return Execution::Done(match self.check_unbroken(since) {
                Ok(()) => outcome,
                Err(failure) => Outcome::Failed(failure),
            });
        }
        let write = Write {
            space: job.space,
            key: key.into(),
            since,
            outcome: outcome.into_owned(),
        };
        let mut spread = Box::pin(Arc::clone(self).complete(Arc::clone(engine), write));
        if job.is_routed {
            return Execution::Done(spread.await);
        }
        // The other owners are asked now, and not when the answer's turn has come.
        match spread
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(outcome) => Execution::Done(outcome),
            Poll::Pending => Execution::Later(Later::Spread(spread)),
        }
    }

    /// Gives a write to the other owners.
    ///
    /// # Cancel safety
    /// If the future is dropped because the client has gone, the owners are brought together later.
    async fn complete(self: Arc<Self>, engine: Arc<Engine>, write: Write) -> Outcome<'static> {
        let mut unspread = Unspread {
            sharing: &self,
            write: &write,
            is_over: false,
        };
        let spread = self.spread(&engine, write.space, &write.key, write.since);
        let spread = spread.await;
        unspread.is_over = true;
        drop(unspread);
        match spread {
            Ok(()) => write.outcome,
            Err(failure) => Outcome::Failed(failure),
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
                Execution::Later(Later::Spread(spread)) => spread.await,
                Execution::Later(Later::Forwarded(forwarded)) => match forwarded.await {
                    Ok(came) => return came,
                    Err(next) if Instant::now() < deadline => {
                        again = next;
                        continue;
                    }
                    Err(_) => return Came::Known(refused(job.command, Unconfirmed::Silent)),
                },
                Execution::WrongOwner => refused(job.command, Unconfirmed::Silent),
            };
            return Came::Known(match acks.wait().await.first() {
                None => outcome,
                Some((_, failure)) => Outcome::Failed(*failure),
            });
        }
    }
}

/// A write that other owners may lack.
struct Unspread<'a> {
    sharing: &'a Sharing,
    write: &'a Write,
    is_over: bool,
}

impl Drop for Unspread<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let Write { space, key, .. } = self.write;
            self.sharing.note_disagreement(*space, key);
        }
    }
}
