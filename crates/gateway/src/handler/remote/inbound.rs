//! The messages of a call as they come: bounded in bytes and time, and charged to the memory
//! budget.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use fonn_reapi::status::{Code, Refusal};
use fonn_reapi::{Deframer, ReapiError, is_crowded};
use fonn_server::Event;
use prost::Message;
use tokio::time::timeout;

use super::Held;
use crate::charged::Charged;
use crate::metrics::{Figures, LostRead};
use crate::outstanding::Counted;
use crate::receive::{Pace, ReceiveError, RequestBody, STEP_MAX, STEP_MIN, Terms};
use crate::store::Store;

/// Bytes of a call that does not write which are not charged, so that lookups do not wait behind
/// uploads. Connections are bounded, and so are the calls of each.
const LOOKUP_LEN: usize = 4 << 10;

/// A step in which memory is charged is at least such a part of what is charged then.
const STEP_SHARES: usize = 4;

/// What a decoded message may take, in multiples of the message: a digest is text in it.
const DECODED_SHARES: usize = 3;

/// Decodes a message, unless that takes many times its length.
fn decode<M: Message + Default>(message: Bytes) -> Result<M, Refusal> {
    if is_crowded(&message) {
        let line = "the message has more elements than one for 32 of its bytes";
        return Err(Refusal::invalid(line));
    }
    let decoded = M::decode(message);
    decoded.map_err(|error| Refusal::invalid(format!("malformed message: {error}")))
}

/// The messages of a call. Their memory is charged until this is dropped.
pub(super) struct Inbound<'r, S: Store, B> {
    terms: Terms<'r, S>,
    body: B,
    figures: &'r Figures,
    /// How long a call that does not write waits for memory; none of one that writes.
    lookup_deadline: Option<Duration>,
    pace: Pace,
    deframer: Deframer,
    charged: Charged<'r, S>,
    /// What the call holds until its end, and for the moment.
    held: usize,
    kept: usize,
    /// What of the reply is counted as unread.
    counted: Option<Counted<S>>,
}

impl<'r, S: Store, B: RequestBody> Inbound<'r, S, B> {
    pub(super) fn new(
        terms: Terms<'r, S>,
        body: B,
        figures: &'r Figures,
        lookup_deadline: Option<Duration>,
    ) -> Self {
        Self {
            charged: Charged::none(terms.store, terms.source),
            terms,
            body,
            figures,
            lookup_deadline,
            pace: Pace::default(),
            deframer: Deframer::default(),
            held: 0,
            kept: 0,
            counted: None,
        }
    }

    /// The reply has bytes that are counted as unread.
    pub(super) fn count(&mut self, counted: Option<Counted<S>>) {
        self.counted = counted;
    }

    /// What is held until the reply is sent.
    pub(super) fn into_held(self) -> Held<'r, S> {
        (self.charged, self.counted)
    }

    /// The next message; `None` at the end of the body.
    pub(super) async fn message(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            if let Some(message) = self.deframer.pull().map_err(Refusal::invalid)? {
                return Ok(Some(message));
            }
            let Some(mut data) = self.data().await? else {
                return match self.deframer.is_empty() {
                    true => Ok(None),
                    false => Err(Refusal::invalid(ReapiError::Incomplete)),
                };
            };
            while data.has_remaining() {
                let chunk = data.chunk();
                self.deframer.push(chunk);
                let len = chunk.len();
                data.advance(len);
            }
        }
    }

    /// The next bytes of the body, which are charged.
    async fn data(&mut self) -> Result<Option<B::Data>, Refusal> {
        let next = self.terms.next(&mut self.body, &mut self.pace).await;
        let data = next.map_err(|error| self.not_received(error))?;
        if let Some(data) = &data {
            let len = data.remaining();
            self.figures.remote.received(len);
            self.cover(len).await?;
        }
        Ok(data)
    }

    /// The next message, decoded.
    pub(super) async fn decoded<M: Message + Default>(&mut self) -> Result<Option<M>, Refusal> {
        let Some(message) = self.message().await? else {
            return Ok(None);
        };
        decode(message).map(Some)
    }

    /// The only message of the call.
    pub(super) async fn only<M: Message + Default>(&mut self) -> Result<M, Refusal> {
        let missing = || Refusal::invalid("the call has no message");
        let message = self.message().await?.ok_or_else(missing)?;
        self.hold(message.len().saturating_mul(DECODED_SHARES))
            .await?;
        let decoded = decode(message)?;
        match self.message().await? {
            None => Ok(decoded),
            Some(_) => Err(Refusal::invalid("the call has more than one message")),
        }
    }

    /// Charges what the call holds until its end: `bytes` more. Waits a while for them.
    pub(super) async fn hold(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.held = self.held.saturating_add(bytes);
        self.cover(0).await
    }

    /// Charges what the call holds for the moment: `bytes` from now on. Waits a while for them.
    pub(super) async fn keep(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.kept = bytes;
        self.cover(0).await
    }

    async fn cover(&mut self, incoming: usize) -> Result<(), Refusal> {
        let held = self.held + self.kept + self.deframer.len() + incoming;
        let needed = match self.lookup_deadline {
            Some(_) => held.saturating_sub(LOOKUP_LEN),
            None => held,
        };
        let missing = needed.saturating_sub(self.charged.bytes());
        if missing == 0 {
            return Ok(());
        }
        let step_min = match self.lookup_deadline {
            Some(_) => LOOKUP_LEN,
            None => STEP_MIN,
        };
        let more = missing.max((needed / STEP_SHARES).clamp(step_min, STEP_MAX));
        let grow = self.charged.grow(more);
        let is_charged = match self.lookup_deadline {
            Some(deadline) => timeout(deadline, grow).await.unwrap_or(false),
            None => grow.await,
        };
        match is_charged {
            true => Ok(()),
            false => Err(self.not_received(ReceiveError::NoMemory)),
        }
    }

    fn not_received(&self, error: ReceiveError) -> Refusal {
        let (code, event) = match error {
            ReceiveError::NoMemory if self.lookup_deadline.is_some() => {
                self.figures.lost(LostRead::Busy);
                return Refusal::missing();
            }
            ReceiveError::NoMemory => (Code::Unavailable, Some(Event::Busy)),
            ReceiveError::TooSlow => (Code::DeadlineExceeded, Some(Event::Stalled)),
            ReceiveError::TooLong { .. } => (Code::InvalidArgument, Some(Event::TooLarge)),
            ReceiveError::Broken => (Code::InvalidArgument, None),
        };
        if let Some(event) = event {
            self.terms.store.count(event, 1);
        }
        Refusal::new(code, error)
    }
}
