//! Requests of one read whose answers come later: begun one after the other, worded in order.
//!
//! What is answered at once meanwhile is worded aside, and goes behind those that it came after.
//! All of it lives as long as the bytes that the requests were read from.

use std::collections::VecDeque;
use std::ops::Range;
use std::task::{Context, Poll};

use bytes::Bytes;
use fonn_proto::outcome::Stored;
use fonn_proto::request::Reply;
use fonn_proto::{Command, Out, Outcome, Redirects, Space};

use super::replies::Late;
use crate::service::{Answered, Later};

/// Commands in flight on one connection at most. It is a small part of what a router or member may
/// have under way at another one, which has to do for all its clients.
const COMMANDS_MAX: usize = 256;

/// What the answers to commands in flight may come to in bytes, as far as earlier answers tell.
const BYTES_EXPECTED_MAX: usize = 4 * 1024 * 1024;

/// Requests and commands that the queue has room for at once when it gets its first: one that waits
/// alone never comes here, and batches of a few would have it grow again and again.
const QUEUE_ROOM: usize = 16;

/// Length of an answer before there was one.
const LEN_EXPECTED: usize = 64 * 1024;

/// How many commands may be in flight: as many as their answers are expected to be small enough
/// for.
#[derive(Debug)]
pub(super) struct Window {
    len_expected: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            len_expected: LEN_EXPECTED,
        }
    }
}

impl Window {
    /// Commands in flight at most.
    pub fn commands_max(&self) -> usize {
        (BYTES_EXPECTED_MAX / self.len_expected.max(1)).clamp(1, COMMANDS_MAX)
    }

    /// An answer has come: large ones are expected at once, small ones by and by.
    pub fn note(&mut self, outcome: &Outcome<'_>) {
        let len = held_len(outcome);
        self.len_expected = len.max(self.len_expected - self.len_expected / 8);
    }
}

/// What came of a command so far.
pub(super) enum Answer<L: Future> {
    /// An outcome that has to wait for those before it.
    Ready(Outcome<'static>),
    Coming(L),
    Came(L::Output),
}

impl<A: Answered, G, L: Future<Output = Result<A, G>>> Answer<L> {
    /// Bytes of values in it.
    fn held_len(&self) -> usize {
        match self {
            Self::Ready(outcome) => held_len(outcome),
            Self::Came(Ok(answer)) => held_len(&answer.outcome()),
            Self::Coming(_) | Self::Came(Err(_)) => 0,
        }
    }
}

/// Bytes of values in an outcome.
pub(super) fn held_len(outcome: &Outcome<'_>) -> usize {
    match outcome {
        Outcome::Hit(hit) => hit.value.as_slice().len(),
        Outcome::Stored(Stored { previous, .. }) | Outcome::NotStored(previous) => {
            previous.as_ref().map_or(0, Bytes::len)
        }
        _ => 0,
    }
}

/// A command in flight.
pub(super) struct Begun<'c, L: Future> {
    pub space: Space,
    pub command: Command<'c>,
    pub answer: Answer<L>,
    /// The allocation that the command borrows from, if its value is large and may be shared.
    pub source: Option<&'c Bytes>,
    /// Whether its client wants to be told when another member owns the key.
    pub redirects: Redirects,
}

/// A request that waits.
struct Request<'c> {
    reply: Reply<'c>,
    /// Its commands that were begun and are not worded.
    waiting: usize,
    /// Whether all its commands were begun.
    is_begun: bool,
    /// The position in `aside` behind all that goes out before it.
    after: u64,
    /// Bytes of its reply that were worded when it turned out that it has to wait; they are behind
    /// everything else that goes out before it.
    worded: u64,
    /// Where its reply begins in the output, once it is known.
    start: Option<u64>,
    /// The acknowledgements that it waits for besides.
    acks: Range<usize>,
}

/// Requests that wait for answers, in order.
pub(super) struct Queue<'c, L: Future> {
    requests: VecDeque<Request<'c>>,
    /// The commands of all of them.
    commands: VecDeque<Begun<'c, L>>,
    /// What their keys hash to, and whether they may change anything.
    keys: VecDeque<u64>,
    writes: usize,
    /// Bytes of values in the answers that have come.
    held_len: usize,
    aside: Out,
    aside_late: VecDeque<Late>,
}

impl<'c, A: Answered, G, L: Later<Output = Result<A, G>>> Queue<'c, L> {
    pub fn new() -> Self {
        Self {
            requests: VecDeque::new(),
            commands: VecDeque::new(),
            keys: VecDeque::new(),
            writes: 0,
            held_len: 0,
            aside: Out::new(),
            aside_late: VecDeque::new(),
        }
    }

    /// Whether nothing waits: replies go to the output at once.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether nothing ever waited, so that it has no allocation.
    #[inline]
    pub fn is_unused(&self) -> bool {
        self.requests.capacity() == 0
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.commands.len()
    }

    /// Bytes of values in the answers that have come and are not worded.
    pub fn held_len(&self) -> usize {
        self.held_len
    }

    /// Takes the answers that have come, and has the task woken for the others. Returns how many
    /// bytes of values are in these.
    pub fn take_answers(&mut self, cx: &mut Context<'_>) -> usize {
        let before = self.held_len;
        for begun in &mut self.commands {
            if let Answer::Coming(later) = &mut begun.answer
                && let Poll::Ready(came) = later.poll_ahead(cx)
            {
                begun.answer = Answer::Came(came);
                self.held_len += begun.answer.held_len();
            }
        }
        self.held_len - before
    }

    /// Where requests are worded that are answered at once while others wait.
    #[inline]
    pub fn aside(&mut self) -> &mut Out {
        &mut self.aside
    }

    /// Bytes worded aside.
    pub fn aside_len(&self) -> usize {
        self.aside.len()
    }

    /// A request that was worded aside waits for acknowledgements.
    pub fn push_aside_late(&mut self, late: Late) {
        self.aside_late.push_back(late);
    }

    /// Whether the command is about a key of a command in flight, and one of both may change it. It
    /// would have to be answered as if it came second, which only waiting makes sure of.
    pub fn conflicts(&self, space: Space, command: &Command<'_>) -> bool {
        (self.writes > 0 || changes(command))
            && !self.commands.is_empty()
            && self.keys.contains(&key_hash(space, command))
    }

    /// The current request has to wait. `worded` bytes of its reply are there already.
    pub fn push(&mut self, reply: Reply<'c>, worded: u64) {
        if self.requests.capacity() == 0 {
            self.requests.reserve(QUEUE_ROOM);
            self.commands.reserve(QUEUE_ROOM);
            self.keys.reserve(QUEUE_ROOM);
        }
        self.requests.push_back(Request {
            reply,
            waiting: 0,
            is_begun: false,
            after: self.aside.position(),
            worded,
            start: None,
            acks: 0..0,
        });
    }

    /// A command of the request pushed last was begun.
    pub fn push_command(&mut self, begun: Begun<'c, L>) {
        if let Some(request) = self.requests.back_mut() {
            request.waiting += 1;
            self.writes += usize::from(changes(&begun.command));
            self.held_len += begun.answer.held_len();
            self.keys.push_back(key_hash(begun.space, &begun.command));
            self.commands.push_back(begun);
        }
    }

    /// All commands of the request pushed last were begun; it waits for `acks` too.
    pub fn end(&mut self, acks: Range<usize>, out: &mut Out, late: &mut Vec<Late>) {
        let Some(request) = self.requests.back_mut() else {
            return;
        };
        request.is_begun = true;
        request.acks = acks;
        if request.waiting == 0 {
            // Whatever was before it had to be worded before its commands.
            self.finish_first(out, late);
        }
    }

    /// Takes the command that is worded next.
    pub fn pop_command(&mut self) -> Option<Begun<'c, L>> {
        let begun = self.commands.pop_front()?;
        self.keys.pop_front();
        self.writes -= usize::from(changes(&begun.command));
        self.held_len -= begun.answer.held_len();
        Some(begun)
    }

    /// Words the outcome of the command that was taken last.
    pub fn word(
        &mut self,
        command: &Command<'_>,
        outcome: &Outcome<'_>,
        out: &mut Out,
        late: &mut Vec<Late>,
    ) {
        let Some(request) = self.requests.front_mut() else {
            return;
        };
        request.start.get_or_insert(out.position() - request.worded);
        request.reply.each(command, outcome, out);
        request.waiting -= 1;
        if request.waiting == 0 && request.is_begun {
            self.finish_first(out, late);
        }
    }

    fn finish_first(&mut self, out: &mut Out, late: &mut Vec<Late>) {
        let Some(mut request) = self.requests.pop_front() else {
            return;
        };
        request.reply.finish(out);
        if !request.acks.is_empty() {
            let start = request.start.unwrap_or(out.position());
            late.push(Late {
                acks: request.acks,
                reply: (start >= out.sent()).then(|| start..out.position()),
                words: request.reply.late(),
            });
        }
        // What was worded aside up to the next request that waits.
        let end = self.requests.front().map(|next| next.after);
        let end = end.unwrap_or(self.aside.position());
        let shift = out.position().wrapping_sub(self.aside.sent());
        while let Some(mut next) = self.aside_late.pop_front() {
            match &mut next.reply {
                Some(reply) if reply.start >= end => {
                    self.aside_late.push_front(next);
                    break;
                }
                Some(reply) => {
                    reply.start = reply.start.wrapping_add(shift);
                    reply.end = reply.end.wrapping_add(shift);
                }
                None => {}
            }
            late.push(next);
        }
        let count = usize::try_from(end - self.aside.sent()).unwrap_or(usize::MAX);
        self.aside.move_to(out, count);
    }
}

/// Whether it matters to other commands on the same key when it is executed.
fn changes(command: &Command<'_>) -> bool {
    // A get may hand out the right to recache a stale entry.
    command.is_write() || matches!(command, Command::Get(get) if get.claim)
}

/// The same for the same key. That others have it too makes one wait for the other, no more, so it
/// need not resist clients that choose their keys, which would slow down only themselves.
fn key_hash(space: Space, command: &Command<'_>) -> u64 {
    let key = command.key();
    let mix = |hash: u64, word: u64| {
        (hash ^ word)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(32)
    };
    let (words, rest) = key.as_chunks::<8>();
    let hash = mix(u64::from(space.0), key.len() as u64);
    let hash = words
        .iter()
        .fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    rest.iter()
        .fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}
