//! Bodies of responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::life::Active;
use crate::outstanding::Counted;
use crate::store::Store;

/// Bytes that are handed to the connection at a time: what is progress of a slow reader.
const FRAME_LEN: usize = 256 << 10;

/// The body of a response: bytes that are shared with the store, and are sent from where they are.
#[derive(Debug)]
pub(crate) struct Payload<S: Store> {
    rest: Bytes,
    counted: Option<Counted<S>>,
    _active: Active,
}

impl<S: Store> Payload<S> {
    /// `bytes`, as the body of the request `active`.
    pub(crate) const fn new(bytes: Bytes, counted: Option<Counted<S>>, active: Active) -> Self {
        Self {
            rest: bytes,
            counted,
            _active: active,
        }
    }
}

impl<S: Store + Unpin> Body for Payload<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let it = self.get_mut();
        if it.rest.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(counted) = &mut it.counted {
            counted.progress();
        }
        let frame = it.rest.split_to(it.rest.len().min(FRAME_LEN));
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
