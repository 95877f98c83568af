//! The sending side of a connection: waits for the writes that replies promise, words the failures,
//! and sends.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fonn_proto::request::{LateReply, Reply};
use fonn_proto::{Failure, Out};
use tokio::time::timeout;

use super::ahead::AHEAD_MIN;
use super::company::{Company, let_others_join};
use super::later::Queue;
use super::{Current, Driver, TURN_MAX, stalled};
use crate::memory::UnsentGuard;
use crate::pool::{self, POOLED_LEN};
use crate::service::{Acks as _, Event, Service};

/// Replies are sent when so many bytes have gathered, even if more requests wait.
const SEND_LEN: usize = 256 * 1024;

/// As `SEND_LEN`, at the end of a turn, and while much is unsent on other connections.
pub(super) const CROWDED_SEND_LEN: usize = 16 * 1024;

/// Replies of a pipelined chunk that wait for those of other connections are no longer than this.
/// Longer ones would leave the processor's cache meanwhile.
const GATHERED_LEN_MAX: usize = 4 * 1024;

thread_local! {
    /// The connections of a reactor that are about to send.
    static SENDERS: RefCell<Company> = const { RefCell::new(Company::new()) };
}

/// The presence of a connection among the senders. It ends if the connection is dropped too.
struct Sender;

impl Drop for Sender {
    fn drop(&mut self) {
        // A thread that ends drops its connections at any time.
        let _ = SENDERS.try_with(|senders| senders.borrow_mut().leave());
    }
}

/// How often it is noted when a connection was last used, which is told in seconds.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);

/// A request whose reply is composed but whose writes are not acknowledged.
pub(super) struct Late {
    /// The acknowledgements it waits for.
    pub acks: std::ops::Range<usize>,
    /// Where its reply is in the output; None if a part of it was sent already.
    pub reply: Option<std::ops::Range<u64>>,
    pub words: LateReply,
}

/// Requests whose replies go out together.
pub(super) struct Batch<M> {
    start: Instant,
    pub requests: u64,
    /// Reads answered on the short way and not yet counted.
    pub hits: u64,
    /// The time that they are judged by.
    pub moment: Option<M>,
}

impl<M> Batch<M> {
    /// Complete requests are about to be executed.
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            requests: 0,
            hits: 0,
            moment: None,
        }
    }
}

impl<'c, S: Service> Driver<'c, S> {
    pub(super) fn begin_request(&mut self, queue: &mut Queue<'_, S::Later>) {
        let is_aside = !queue.is_empty();
        self.current = Current {
            acks_before: self.acks.count(),
            reply_start: match is_aside {
                true => queue.aside().position(),
                false => self.out.position(),
            },
            is_aside,
            ..Current::default()
        };
    }

    /// The current request was executed, and its reply is composed unless it waits for answers.
    pub(super) fn end_request(&mut self, reply: &Reply<'_>, queue: &mut Queue<'_, S::Later>) {
        let acks = self.current.acks_before..self.acks.count();
        if self.current.is_late {
            queue.end(acks, &mut self.out, &mut self.late);
        } else if !acks.is_empty() {
            let start = self.current.reply_start;
            let out = self.words(queue);
            let late = Late {
                acks,
                reply: (start >= out.sent()).then(|| start..out.position()),
                words: reply.late(),
            };
            match self.current.is_aside {
                true => queue.push_aside_late(late),
                false => self.late.push(late),
            }
        }
    }

    #[inline]
    pub(super) fn is_time_to_send(&self) -> bool {
        let len = self.out.len();
        // What has gathered at the end of a turn would be held, and counted by nothing, for the
        // turns of all others.
        len >= CROWDED_SEND_LEN
            && (len >= SEND_LEN
                || self.turn >= TURN_MAX
                || self.shared.memory.is_crowded(self.shared))
    }

    /// Sends what was composed in the middle of a request.
    ///
    /// # Errors
    /// Besides those of the socket: a write of the request itself failed. A reply of which a part
    /// was sent cannot be taken back, so the connection has to end.
    pub(super) async fn relieve(&mut self, queue: &mut Queue<'_, S::Later>) -> io::Result<()> {
        if self.acks.count() > 0 {
            self.settle(queue).await?;
            let failures = self.wait_acks().await?;
            let own = self.current.acks_before;
            if failures.iter().any(|(index, _)| *index >= own) {
                return Err(unsayable());
            }
            self.replace_failed(&failures)?;
            self.late.clear();
            self.current.acks_before = 0;
        }
        self.write_out_beside(queue).await
    }

    /// Lets the other connections that the kernel woke compose their replies first, if these are
    /// the short replies to many requests. A client of several connections sleeps when it has
    /// read what there is, and to wake it costs the server more than a small batch of requests.
    pub(super) async fn gather(&self) {
        let is_batch = self.batch.requests >= AHEAD_MIN as u64;
        let is_short = (1..=GATHERED_LEN_MAX).contains(&self.out.len());
        if is_batch && is_short && SENDERS.with_borrow_mut(Company::join) {
            let _sender = Sender;
            let_others_join().await;
        }
    }

    /// Waits for the writes of the batch, then sends its replies. `queue` is what is in flight.
    pub(super) async fn send(&mut self, queue: Option<&mut Queue<'_, S::Later>>) -> io::Result<()> {
        if self.acks.count() > 0 {
            let failures = self.wait_acks().await?;
            self.replace_failed(&failures)?;
        }
        self.late.clear();
        match queue {
            Some(queue) => self.write_out_beside(queue).await?,
            None => self.write_out(0, &mut |_| 0).await?,
        }
        let requests = std::num::NonZeroU64::new(self.batch.requests);
        if let Some(requests) = requests {
            let now = Instant::now();
            let nanos = (now - self.batch.start).as_nanos() as u64 / requests;
            if let Some(latency) = self.shared.latency.get(self.connection.dialect_index()) {
                latency.record(nanos, self.batch.requests);
            }
            if now >= self.touch_at {
                self.connection.touch(now);
                self.touch_at = now + TOUCH_INTERVAL;
            }
            self.batch = Batch::new(now);
        }
        Ok(())
    }

    /// Waits for the writes of the batch. What is composed counts meanwhile, if it is much.
    ///
    /// # Errors
    /// If the connection was cut off meanwhile. It gives back at once what counts no longer.
    async fn wait_acks(&mut self) -> io::Result<Vec<(usize, Failure)>> {
        if self.out.len() < CROWDED_SEND_LEN {
            return Ok(self.acks.wait().await);
        }
        let held = self.hold_unsent(self.out.len() + self.out.capacity());
        let acks = &mut self.acks;
        // Boxed, so that the guard does not make the task of each connection larger.
        Box::pin(async move {
            let mut failures = pin!(acks.wait());
            poll_fn(|cx| {
                if let Poll::Ready(failures) = failures.as_mut().poll(cx) {
                    return Poll::Ready(Ok(failures));
                }
                let aborted = || Err(io::Error::from(io::ErrorKind::ConnectionAborted));
                held.poll_cut_off(cx).map(|()| aborted())
            })
            .await
        })
        .await
    }

    fn replace_failed(&mut self, failures: &[(usize, Failure)]) -> io::Result<()> {
        if failures.is_empty() {
            return Ok(());
        }
        let service = &self.shared.service;
        replace_failed(&mut self.out, &self.late, failures, |failure| {
            service.count(Event::of_promise(failure), 1);
        })
    }

    /// Tells the counters of the reads that were answered on the short way.
    pub(super) fn count_hits(&mut self) {
        let hits = std::mem::take(&mut self.batch.hits);
        if hits > 0 {
            self.shared.service.count_hits(hits);
        }
    }

    /// Counts bytes that are held for the client until it has read more.
    pub(super) fn hold_unsent(&self, bytes: usize) -> UnsentGuard<'c, S> {
        let (shared, connection) = (self.shared, self.connection);
        shared.memory.hold_unsent(shared, connection, bytes)
    }

    /// Sends what is composed. While the client does not read, the answers of `queue` are taken as
    /// they come, and counted for this connection.
    pub(super) async fn write_out_beside(
        &mut self,
        queue: &mut Queue<'_, S::Later>,
    ) -> io::Result<()> {
        let held = queue.held_len();
        self.write_out(held, &mut |cx| queue.take_answers(cx)).await
    }

    /// Sends what is composed. While the client does not read, `take_answers` takes what comes
    /// meanwhile and returns its length, which is counted; `held` bytes have come before.
    pub(super) async fn write_out(
        &mut self,
        mut held: usize,
        take_answers: &mut (dyn FnMut(&mut Context<'_>) -> usize + Send),
    ) -> io::Result<()> {
        self.count_hits();
        if self.out.is_empty() {
            return Ok(());
        }
        let mut unsent = None;
        // The allocation stays whole until its last byte is sent, and so does that of the requests.
        let allocated = self.out.capacity() + POOLED_LEN;
        // Of another allocation the capacity is not the length, once a part was sent or shared.
        let mut is_ordinary = self.out.single().is_some() && self.out.capacity() <= 2 * POOLED_LEN;
        loop {
            match self.connection.socket.try_write(&self.out) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero)),
                Ok(count) => {
                    self.shared.service.count(Event::BytesWritten, count as u64);
                    self.out.advance(count);
                    if self.out.is_empty() {
                        if !is_ordinary {
                            // One that grew is not held, and counted by nothing, until the next
                            // bytes are sent.
                            pool::reclaim(&mut self.out, &mut self.scratch);
                            pool::lend(&mut self.out, &mut self.scratch);
                        }
                        return Ok(());
                    }
                    is_ordinary = false;
                    // What is left counts anew, behind all connections that made no progress
                    // meanwhile.
                    unsent = None;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.turn = 0;
                    if self.scratch.capacity() > POOLED_LEN {
                        self.scratch = Vec::new();
                    }
                    let bytes = self.out.len() + allocated + held;
                    let unsent = unsent.get_or_insert_with(|| self.hold_unsent(bytes));
                    let writable = self.connection.socket.writable();
                    let mut writable = pin!(timeout(self.shared.tuning.stall_max, writable));
                    let is_writable = poll_fn(|cx| {
                        let taken = take_answers(cx);
                        if taken > 0 {
                            held += taken;
                            unsent.grow(taken);
                        }
                        writable.as_mut().poll(cx)
                    });
                    match is_writable.await {
                        Ok(result) => result?,
                        Err(_) => return Err(stalled("the client does not read its replies")),
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Puts the dialect's error in place of the reply of every request of which a write failed, and
/// tells `count` of each.
///
/// # Errors
/// If a part of such a reply was sent already: the connection has to end.
fn replace_failed(
    out: &mut Out,
    late: &[Late],
    failures: &[(usize, Failure)],
    count: impl Fn(Failure),
) -> io::Result<()> {
    // From the last one on, so that the positions of those before stay right.
    for late in late.iter().rev() {
        let Some((_, failure)) = failures.iter().find(|(index, _)| late.acks.contains(index))
        else {
            continue;
        };
        count(*failure);
        let Some(reply) = &late.reply else {
            return Err(unsayable());
        };
        let mut words = Out::new();
        late.words.failure(*failure, &mut words);
        out.replace(reply.start, reply.end, &words.to_vec());
    }
    Ok(())
}

fn unsayable() -> io::Error {
    io::Error::other("a write failed after a part of its reply was sent")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(acks: std::ops::Range<usize>, reply: Option<std::ops::Range<u64>>) -> Late {
        let words = LateReply::Resp;
        Late { acks, reply, words }
    }

    fn error() -> Vec<u8> {
        let mut out = Out::new();
        LateReply::Resp.failure(Failure::Unavailable, &mut out);
        out.to_vec()
    }

    #[test]
    fn the_reply_of_a_failed_write_is_replaced_and_no_other() {
        let mut out = Out::new();
        out.put(b"sent");
        out.advance(4);
        out.put(b"+A\r\n+B\r\n+C\r\n");
        let all = [
            late(0..1, Some(4..8)),
            late(1..3, Some(8..12)),
            late(3..4, Some(12..16)),
        ];
        let counted = std::cell::Cell::new(0);
        let failures = [(3, Failure::Unavailable), (2, Failure::Unavailable)];
        replace_failed(&mut out, &all, &failures, |_| {
            counted.set(counted.get() + 1)
        })
        .unwrap();
        assert_eq!(out.to_vec(), [&b"+A\r\n"[..], &error(), &error()].concat());
        assert_eq!(counted.get(), 2);
    }

    #[test]
    fn a_reply_that_was_sent_in_part_ends_the_connection_if_its_write_failed() {
        let mut out = Out::new();
        out.put(b"rest");
        let all = [late(0..2, None)];
        assert!(replace_failed(&mut out, &all, &[(5, Failure::Busy)], |_| {}).is_ok());
        assert!(replace_failed(&mut out, &all, &[(1, Failure::Busy)], |_| {}).is_err());
        assert_eq!(out.to_vec(), b"rest");
    }
}
