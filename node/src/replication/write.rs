//! Writes that other members need before they are acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fonn_base::boxed::BoxFuture;
use fonn_base::entry::Space;
use fonn_base::tasks::OnShutdown;
use fonn_forward::envelope;
use fonn_proto::peer::{self, Request};
use fonn_proto::{Failure, Outcome, placement};
use fonn_replication::{
    Attempt, Body, Command as CoreCommand, Epoch, Event as CoreEvent, MemberId, Message, Record,
    Reply, Slot, Version,
};
use fonn_rpc::CallError;
use futures_util::future::join_all;
use tokio::sync::oneshot;

use super::metrics::Event;
use super::{Entry, PENDING_MAX, Replication, Task, Written};
use crate::engine::{Acks, Engine, Transfer};

/// What is sent to a member and not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sending {
    /// A write to a member.
    Write(MemberId, Epoch, Slot, Version),
    Status(u8),
    Page(Attempt),
}

impl Sending {
    const fn write(to: MemberId, epoch: Epoch, record: &Record<Entry>) -> Self {
        Self::Write(to, epoch, record.slot, record.version)
    }
}

/// A message under way: until it is answered, or this is dropped.
#[derive(Debug)]
struct UnderWay<'a> {
    replication: &'a Replication,
    sending: Sending,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.replication.sending.lock().remove(&self.sending);
    }
}

/// Why a write is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAcknowledged {
    /// The epoch is another one since its execution, and another member may have led the slot. What
    /// may be executed twice is executed again.
    Interrupted,
    /// It could not be kept, or an owner did not take it in time.
    Failed(Failure),
}

impl From<Failure> for NotAcknowledged {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<NotAcknowledged> for Failure {
    fn from(reason: NotAcknowledged) -> Self {
        match reason {
            NotAcknowledged::Interrupted => Self::Unavailable,
            NotAcknowledged::Failed(failure) => failure,
        }
    }
}

impl Replication {
    /// Has the other owners and the learners of a slot take what there is of a key now, and returns
    /// when the write is acknowledged. `since` is the epoch by which it was executed.
    ///
    /// # Errors
    /// If it is not acknowledged: it may show later.
    ///
    /// # Cancel safety
    /// Cancelling it loses the answer.
    pub(crate) async fn replicate(
        &self,
        engine: &Engine,
        space: Space,
        key: Arc<[u8]>,
        since: u64,
    ) -> Result<(), NotAcknowledged> {
        let slot = placement::slot(&key);
        if self.rights.completes(slot) && self.epoch() == since && self.holds_lease() {
            return Ok(());
        }
        let transfer = match engine.fetch_for_peer(space, &key).await? {
            Some(transfer) => transfer,
            None => self.forget(engine, space, &key, since).await?,
        };
        self.replicate_entry(space, key, transfer, since).await
    }

    /// Notes that nothing is known of a key any more: what was written was evicted at once. The
    /// other owners forget the key too.
    async fn forget(
        &self,
        engine: &Engine,
        space: Space,
        key: &[u8],
        since: u64,
    ) -> Result<Transfer, NotAcknowledged> {
        let mut acks = Acks::default();
        let version = engine.versions().next();
        // By a later epoch another member may lead the slot. A version of that epoch would hide
        // what it writes.
        if self.epoch() != since {
            return Err(NotAcknowledged::Interrupted);
        }
        let gone = peer::Entry::tombstone(space.0, key, version);
        let kept = engine.put_of_peer(&gone, &mut acks).await;
        kept.map_err(super::failure)?;
        if !acks.wait().await.is_empty() {
            return Err(Failure::Unavailable.into());
        }
        let newest = engine.fetch_for_peer(space, key).await?;
        Ok(newest.unwrap_or_else(|| Transfer::received(&gone)))
    }

    /// As [`Self::replicate`], for an entry in hand.
    pub(super) async fn replicate_entry(
        &self,
        space: Space,
        key: Arc<[u8]>,
        transfer: Transfer,
        since: u64,
    ) -> Result<(), NotAcknowledged> {
        let slot = placement::slot(&key);
        let written = Arc::new(Written {
            space,
            key,
            transfer,
        });
        let record = Record {
            slot: Slot(slot),
            version: Version(written.transfer.meta.version),
            epoch: Epoch(since),
            entry: written,
        };
        let request = self.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, mut answered) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= PENDING_MAX {
                return Err(Failure::Busy.into());
            }
            waiting.insert(request, answer);
        }
        let commands = self.decide(CoreEvent::Write { request, record });
        let too_long = self.send_writes(commands, since).await;
        let reply = match answered.try_recv() {
            Ok(reply) => Ok(reply),
            Err(_) if too_long => {
                self.waiting.lock().remove(&request);
                return Err(Failure::TooLarge.into());
            }
            // The core repeats what was not answered, and refuses it in time.
            Err(_) => match tokio::time::timeout(2 * self.owners_wait, answered).await {
                Ok(reply) => reply,
                Err(_) => {
                    self.waiting.lock().remove(&request);
                    Ok(Reply::Refused)
                }
            },
        };
        if matches!(reply, Ok(Reply::Written)) {
            return Ok(());
        }
        self.count(Event::NotReplicated);
        match self.epoch() == since {
            true => Err(Failure::Unavailable.into()),
            false => Err(NotAcknowledged::Interrupted),
        }
    }

    /// Sends the writes among the commands at once, and leaves the rest to the task of
    /// [`follow`](super::follow). True if a member takes no request that is so long.
    async fn send_writes(&self, commands: Vec<CoreCommand<Entry>>, since: u64) -> bool {
        // What has to be stored first is stored by the task, before it sends anything.
        if commands
            .iter()
            .any(|it| matches!(it, CoreCommand::Persist(_)))
        {
            self.tasks.put(Task::Commands(commands));
            return false;
        }
        let mut writes = Vec::new();
        let mut rest = Vec::new();
        for command in commands {
            match command {
                CoreCommand::Send(
                    to,
                    Message {
                        epoch,
                        body: Body::Write(record),
                        ..
                    },
                ) => writes.push((to, epoch, record)),
                command => rest.push(command),
            }
        }
        if !rest.is_empty() {
            self.tasks.put(Task::Commands(rest));
        }
        // By a later epoch than that of its execution, a member may have it already.
        let again = |epoch: &Epoch| epoch.0 != since;
        // Most writes have one target, and need no list of futures.
        if let [(to, epoch, record)] = writes.as_slice() {
            return self.send_write(*to, *epoch, record, again(epoch)).await;
        }
        let sent = writes
            .iter()
            .map(|(to, epoch, record)| self.send_write(*to, *epoch, record, again(epoch)));
        join_all(sent).await.contains(&true)
    }

    /// Notes that a message is under way; `None` if it is already.
    fn begin(&self, sending: Sending) -> Option<UnderWay<'_>> {
        if !self.sending.lock().insert(sending) {
            return None;
        }
        Some(UnderWay {
            replication: self,
            sending,
        })
    }

    /// Sends a write to a member, and tells the core what it answered. Does nothing while the write
    /// is under way already. `again` says that the member may have it by an earlier epoch. True if
    /// the member takes no request that is so long.
    pub(super) async fn send_write(
        &self,
        to: MemberId,
        epoch: Epoch,
        record: &Record<Entry>,
        again: bool,
    ) -> bool {
        let Some(target) = self.member(to) else {
            return false;
        };
        let Some(under_way) = self.begin(Sending::write(to, epoch, record)) else {
            return false;
        };
        let Written {
            space,
            key,
            transfer,
        } = &*record.entry;
        let entry = transfer.entry(*space, key, usize::MAX);
        let request = Request::Put { entry, again };
        let envelope = envelope(record.slot.0, *space, epoch.0);
        let call = target
            .client
            .call(&request, envelope, None, self.owners_wait);
        let answer = call.await;
        // What the core repeats because of the answer is sent.
        drop(under_way);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return error == CallError::TooLong,
        };
        let told = Epoch(answer.head().envelope.epoch);
        let body = match answer.reply() {
            // It took the write before it applied any later epoch.
            Ok(peer::Reply::Applied | peer::Reply::NotNewer) if told == epoch => {
                self.count(Event::Replicated);
                Body::Ack {
                    slot: record.slot,
                    version: record.version,
                }
            }
            Ok(peer::Reply::Outcome(Outcome::Failed(Failure::TooLarge))) => return true,
            _ => Body::Status,
        };
        self.handle(CoreEvent::Message(Message {
            from: to,
            epoch: told,
            body,
        }));
        false
    }

    /// Sends a message of the core in a task of its own, and passes on what comes of it. Does
    /// nothing while the message is under way already: the core repeats what is not answered.
    pub(super) fn send(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        to: MemberId,
        Message { epoch, body, .. }: Message<Entry>,
    ) {
        let (this, engine) = (Arc::clone(self), Arc::clone(engine));
        let (sending, sent): (Sending, BoxFuture<'static, ()>) = match body {
            Body::Write(record) => (
                Sending::write(to, epoch, &record),
                Box::pin(async move {
                    this.send_write(to, epoch, &record, true).await;
                }),
            ),
            Body::Status => {
                let sending = Sending::Status(to.0);
                let sent = async move {
                    if let Some(_under_way) = this.begin(sending) {
                        this.ask_epoch(to, epoch).await;
                    }
                };
                (sending, Box::pin(sent))
            }
            Body::PageRequest(request) => {
                let sending = Sending::Page(request.attempt);
                let sent = async move {
                    if let Some(_under_way) = this.begin(sending) {
                        this.ask_page(&engine, to, epoch, request).await;
                    }
                };
                (sending, Box::pin(sent))
            }
            // These answer requests, and are sent as replies ([`serve`](super::serve)).
            Body::Ack { .. } | Body::Page(_) | Body::Incomplete { .. } => return,
        };
        // It is looked at once more when it is sent; this look saves a task.
        if self.sending.lock().contains(&sending) {
            return;
        }
        self.group
            .spawn("replication-send", OnShutdown::Abort, sent);
    }

    /// Asks a member which epoch it has applied.
    async fn ask_epoch(&self, to: MemberId, epoch: Epoch) {
        let Some(target) = self.member(to) else {
            return;
        };
        let envelope = envelope(0, Space::default(), epoch.0);
        let call = target
            .client
            .call(&Request::Ping, envelope, None, self.owners_wait);
        let Ok(answer) = call.await else { return };
        self.handle(CoreEvent::Message(Message {
            from: to,
            epoch: Epoch(answer.head().envelope.epoch),
            body: Body::Status,
        }));
    }
}
