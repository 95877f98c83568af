//! The body of a request: bounded in bytes and time, and charged as it arrives.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use fonn_auth::Source;
use http_body::Body;
use http_body_util::BodyExt as _;
use ring::digest::{Context, SHA256};
use tokio::time::{Instant, timeout};

use crate::charged::Charged;
use crate::life::Life;
use crate::store::Store;

/// The first step in which a body is charged, and the longest one.
pub(crate) const STEP_MIN: usize = 64 << 10;
pub(crate) const STEP_MAX: usize = 4 << 20;

/// How often a client is looked at while it sends nothing.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Why a body was not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReceiveError {
    /// It is longer than allowed.
    #[error("the body is longer than {len_max} bytes")]
    TooLong { len_max: usize },
    /// There is no memory for it.
    #[error("there is no memory to receive the value: try again")]
    NoMemory,
    /// The client sends too slowly.
    #[error("the body arrives too slowly")]
    TooSlow,
    /// The client stopped sending.
    #[error("the body is incomplete")]
    Broken,
}

/// The body of a request.
pub(crate) trait RequestBody: Body<Data: Send> + Unpin + Send {}

impl<B: Body<Data: Send> + Unpin + Send> RequestBody for B {}

/// How a body is received.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'r, S> {
    pub(crate) store: &'r S,
    pub(crate) life: &'r Life,
    /// Where it comes from.
    pub(crate) source: Source,
    /// What stands before the body in the value.
    pub(crate) prefix: &'r [u8],
    /// Longest value.
    pub(crate) len_max: usize,
    /// Longest body that may be received in part: 0 if it has to be whole.
    pub(crate) long_len_max: u64,
}

/// A value that was received; its memory is charged until this is dropped.
pub(crate) struct Received<'r, S: Store> {
    pub(crate) value: Bytes,
    /// Of the body without its prefix.
    pub(crate) digest: [u8; 32],
    pub(crate) charged: Charged<'r, S>,
}

/// The beginning of a body that is longer than a value; the rest has not been received.
pub(crate) struct Beginning<'r, S: Store> {
    /// What came first, behind the prefix.
    bytes: Vec<u8>,
    prefix_len: usize,
    /// What came after it.
    last: Bytes,
    /// Of all that came.
    context: Box<Context>,
    charged: Charged<'r, S>,
}

impl<'r, S: Store> Beginning<'r, S> {
    /// Nothing of the body has come.
    pub(crate) fn none(terms: &Terms<'r, S>) -> Self {
        Self {
            bytes: Vec::new(),
            prefix_len: 0,
            last: Bytes::new(),
            context: Box::new(Context::new(&SHA256)),
            charged: Charged::none(terms.store, terms.source),
        }
    }

    /// What came, without the prefix; the digest of it, which goes on; and its memory.
    pub(crate) fn into_parts(self) -> ([Bytes; 2], Context, Charged<'r, S>) {
        let mut bytes = Bytes::from(self.bytes);
        bytes.advance(self.prefix_len.min(bytes.len()));
        ([bytes, self.last], *self.context, self.charged)
    }
}

/// What was received of a body.
pub(crate) enum Receipt<'r, S: Store> {
    /// All of it.
    Whole(Received<'r, S>),
    /// It is longer than a value.
    Long(Beginning<'r, S>),
}

/// What is measured of a client: only the time that the server waits for it counts.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    waited: Duration,
    received: usize,
}

impl Pace {
    /// Whether the client sends as fast as it has to, while it holds memory.
    fn is_kept<S: Store>(&mut self, store: &S) -> bool {
        let tuning = store.tuning();
        let received = self.received as u128 * 1000;
        let is_slow = |rate: u64| received < u128::from(rate) * self.waited.as_millis();
        if self.waited > tuning.contended_window
            && store.is_contended()
            && is_slow(tuning.contended_rate_min)
        {
            return false;
        }
        if self.waited > tuning.rate_window {
            if is_slow(tuning.rate_min) {
                return false;
            }
            *self = Self::default();
        }
        true
    }
}

impl<'r, S: Store> Terms<'r, S> {
    /// Receives a body. What it announces reserves nothing. Its digest is taken if `with_digest`.
    ///
    /// # Errors
    /// [`ReceiveError`]. If the body is known to be too long, nothing of it is read.
    pub(crate) async fn receive<B: RequestBody>(
        self,
        mut body: B,
        digested: Digested,
    ) -> Result<Received<'r, S>, ReceiveError> {
        let len_max = self.len_max;
        let whole = Self {
            long_len_max: 0,
            ..self
        };
        match whole.receive_from(&mut body, digested).await? {
            Receipt::Whole(received) => Ok(received),
            Receipt::Long(_) => Err(ReceiveError::TooLong { len_max }),
        }
    }

    /// The same for a body that may be longer than a value: what came of it until then.
    ///
    /// # Errors
    /// As [`Terms::receive`].
    pub(crate) async fn receive_from<B: RequestBody>(
        &self,
        body: &mut B,
        digested: Digested,
    ) -> Result<Receipt<'r, S>, ReceiveError> {
        let len_max = self.len_max;
        let too_long = ReceiveError::TooLong { len_max };
        let expected = body.size_hint().exact();
        let is_long = |len: u64| len <= self.long_len_max;
        let may_be_long = expected.map_or(self.long_len_max > 0, is_long);
        let expected = expected.map(|len| usize::try_from(len).unwrap_or(usize::MAX));
        let total = expected.map(|len| len.saturating_add(self.prefix.len()));
        let mut context = Context::new(&SHA256);
        let mut value = Vec::new();
        let mut charged = Charged::none(self.store, self.source);
        let mut pace = Pace::default();
        let beginning = |bytes, last, context, charged| match may_be_long {
            true => Ok(Receipt::Long(Beginning {
                bytes,
                prefix_len: self.prefix.len(),
                last,
                context: Box::new(context),
                charged,
            })),
            false => Err(too_long),
        };
        if total.is_some_and(|total| total > len_max) {
            return beginning(value, Bytes::new(), context, charged);
        }
        while let Some(mut data) = self.next(body, &mut pace).await? {
            let needed = data.remaining();
            let len = value.len().max(self.prefix.len()).saturating_add(needed);
            if len > len_max {
                let last = data.copy_to_bytes(needed);
                if digested == Digested::Yes {
                    context.update(&last);
                }
                return beginning(value, last, context, charged);
            }
            if len > charged.bytes() {
                let step = len.saturating_add(len.clamp(STEP_MIN, STEP_MAX));
                // A body of unknown length grows by halves.
                let goal = match total {
                    Some(total) => step.min(total),
                    None => step.max(len.saturating_add(len / 2)).min(len_max),
                };
                let more = goal.max(len) - charged.bytes();
                if !charged.grow(more).await {
                    return Err(ReceiveError::NoMemory);
                }
                // The kernel provides memory as it is written to, so room for all of it costs
                // nothing yet.
                let capacity = total.unwrap_or(charged.bytes());
                reserve(&mut value, capacity);
            }
            if value.is_empty() {
                value.extend_from_slice(self.prefix);
            }
            while data.has_remaining() {
                let chunk = data.chunk();
                if digested == Digested::Yes {
                    context.update(chunk);
                }
                value.extend_from_slice(chunk);
                let len = chunk.len();
                data.advance(len);
            }
        }
        if value.is_empty() {
            value.extend_from_slice(self.prefix);
        }
        let mut digest = [0; 32];
        if digested == Digested::Yes {
            digest.copy_from_slice(context.finish().as_ref());
        }
        Ok(Receipt::Whole(Received {
            // Gives up what was reserved and not needed.
            value: Bytes::from(value.into_boxed_slice()),
            digest,
            charged,
        }))
    }

    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn next<B: RequestBody>(
        &self,
        body: &mut B,
        pace: &mut Pace,
    ) -> Result<Option<B::Data>, ReceiveError> {
        let begun = Instant::now();
        loop {
            let look = Instant::now();
            // Cancel safe: what has arrived stays in the body.
            let frame = timeout(LOOK_INTERVAL, body.frame()).await;
            pace.waited += look.elapsed();
            match frame {
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(ReceiveError::Broken),
                Ok(Some(Ok(frame))) => {
                    self.life.touch();
                    if let Ok(data) = frame.into_data() {
                        pace.received = pace.received.saturating_add(data.remaining());
                        if !pace.is_kept(self.store) {
                            return Err(ReceiveError::TooSlow);
                        }
                        return Ok(Some(data));
                    }
                }
                Err(_) if !pace.is_kept(self.store) => return Err(ReceiveError::TooSlow),
                Err(_) if begun.elapsed() >= self.store.tuning().stall_max => {
                    return Err(ReceiveError::TooSlow);
                }
                Err(_) => {}
            }
        }
    }
}

/// Makes room for a value of `len` bytes.
pub(crate) fn reserve(value: &mut Vec<u8>, len: usize) {
    if value.capacity() < len {
        value.reserve_exact(len - value.len());
    }
}

/// Whether the digest of a body is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digested {
    /// It is.
    Yes,
    /// It is not.
    No,
}
