//! A reply as its caller gets it.

use bytes::Bytes;
use fonn_proto::peer::{DecodeError, Head, Reply};
use smallvec::SmallVec;

/// Bodies up to this length lie in the slot of their request.
const INLINE_LEN: usize = 224;

/// A reply: a frame of the peer protocol, on its own.
#[derive(Clone, Debug)]
pub struct Answer {
    head: Head,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    /// Copied out of the receive buffer.
    Copied(SmallVec<[u8; INLINE_LEN]>),
    /// An allocation of its own, or a large part of one.
    Shared(Bytes),
}

impl Answer {
    #[inline]
    pub(super) fn copied(head: Head, body: &[u8]) -> Self {
        Self {
            head,
            body: Body::Copied(SmallVec::from_slice(body)),
        }
    }

    pub(super) fn shared(head: Head, body: Bytes) -> Self {
        Self {
            head,
            body: Body::Shared(body),
        }
    }

    /// Its head: the epoch of the member's map is there.
    #[must_use]
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// What it says. Large values are shared with it.
    ///
    /// # Errors
    /// If it is malformed.
    #[inline]
    pub fn reply(&self) -> Result<Reply<'_>, DecodeError> {
        match &self.body {
            Body::Copied(body) => Reply::decode(&self.head, body, None),
            Body::Shared(body) => Reply::decode(&self.head, body, Some(body)),
        }
    }
}
