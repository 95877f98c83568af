//! What is answered in passing, without a piece of work that owns its request: reads of entries
//! that are at hand, and writes for which nothing has to be waited first.

use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use fonn_proto::peer::{self, Envelope, Head, Refusal, Reply};
use fonn_proto::{Command, Get, Out, Outcome, Space};

use super::Peer;
use super::work::{self, Done, Executed, Work};
use crate::Shared;
use crate::service::{Acks as _, Event, Job, Service, Stored};

/// Entries of another member that were taken in passing, and are answered together.
pub(super) struct Taken<S: Service> {
    pub(super) acks: S::Acks,
    /// The envelope of each reply, and how many acknowledgements there were when it was added.
    replies: Vec<(Envelope, usize)>,
}

impl<S: Service> Default for Taken<S> {
    fn default() -> Self {
        Self {
            acks: S::Acks::default(),
            replies: Vec::new(),
        }
    }
}

impl<S: Service> Taken<S> {
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Notes that an entry was taken, whose acknowledgements were added last.
    pub(super) fn add(&mut self, envelope: Envelope) {
        self.replies.push((envelope, self.acks.count()));
    }

    /// Answers all of them when they are durable.
    pub(super) fn work(mut self, shared: &Arc<Shared<S>>) -> Work<S> {
        let shared = Arc::clone(shared);
        Box::pin(async move {
            let failures = self.acks.wait().await;
            let mut reply = Out::new();
            let mut begin = 0;
            for (envelope, end) in self.replies {
                let own = begin..end;
                let failure = failures.iter().find(|(index, _)| own.contains(index));
                match failure {
                    None => work::encode(&Reply::Applied, envelope, u32::MAX, &mut reply),
                    Some((_, failure)) => {
                        shared.service.count(Event::of_promise(*failure), 1);
                        work::failed(*failure, envelope, &mut reply);
                    }
                }
                begin = end;
            }
            Done::Answered { reply, bytes: 0 }
        })
    }
}

impl<S: Service> Peer<'_, S> {
    /// Answers a read of an entry that is at hand. False if it is not: nothing was done then.
    #[inline]
    pub(super) fn answer_hit(&mut self, head: &Head, get: &Get<'_>) -> bool {
        let Some(lens) = self.lens else { return false };
        let service = &self.shared.service;
        let moment = *self.moment.get_or_insert_with(|| service.moment());
        let envelope = head.envelope.reply(service.epoch());
        let out = &mut self.out;
        let word = |outcome: &Outcome<'_>| {
            if Reply::encode_outcome(outcome, envelope, lens.theirs, out).is_err() {
                let refused = Reply::Refused(Refusal::TooLong);
                work::encode(&refused, envelope, lens.theirs, out);
            }
        };
        let space = Space(head.envelope.space);
        let is_hit = service.answer_hit(space, get, moment, &mut self.scratch, word);
        self.hits += u64::from(is_hit);
        is_hit
    }

    /// Carries out a store for which nothing has to be waited first. False if it takes more than
    /// that: nothing was done then.
    pub(super) fn answer_store(
        &mut self,
        head: &Head,
        command: &Command<'_>,
        (source, body_len): (Option<&Bytes>, usize),
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(lens) = self.lens else { return false };
        if work::is_overdue(head, self.received) {
            return false;
        }
        let service = &self.shared.service;
        let moment = *self.moment.get_or_insert_with(|| service.moment());
        let job = Job {
            source,
            routed_by: Some(head.envelope.epoch),
            writer: head.envelope.writer,
            ..Job::own(Space(head.envelope.space), command)
        };
        let envelope = head.envelope.reply(service.epoch());
        let (mut acks, mut reply) = (S::Acks::default(), Out::new());
        let word = |outcome: &Outcome<'_>| {
            work::encode(
                &Reply::Outcome(outcome.clone()),
                envelope,
                lens.theirs,
                &mut reply,
            );
        };
        match service.store_at_once(&job, moment, &mut acks, word) {
            Stored::No => return false,
            Stored::Yes => {
                self.held.works += 1;
                let executed = Executed::stored(reply, envelope, acks);
                self.finish(Done::Executed(executed), cx);
            }
            Stored::Later(later) => {
                // Until the other members have it, the value is kept for them.
                self.held.works += 1;
                self.held.bytes += body_len;
                let coming = (later, acks);
                let work = work::later(self.shared, coming, body_len, envelope, lens.theirs);
                self.works.push(work);
            }
        }
        true
    }

    /// Takes an entry of another member for which nothing has to be waited first. False if it takes
    /// more than that: nothing was done then.
    pub(super) fn take(&mut self, head: &Head, entry: &peer::Entry<'_>) -> bool {
        let service = &self.shared.service;
        let is_taken = service.take_at_once(entry, &mut self.taken.acks);
        if is_taken {
            // Its sender may have been replaced before it was taken.
            let envelope = head.envelope.reply(service.epoch());
            self.taken.add(envelope);
        }
        is_taken
    }

    /// Answers the entries that were taken in passing when all of them are durable.
    pub(super) fn answer_taken(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        self.held.works += 1;
        let taken = std::mem::take(&mut self.taken);
        self.works.push(taken.work(self.shared));
    }
}
