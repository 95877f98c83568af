//! Bodies of responses.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
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
    counted: Option<Arc<Counted<S>>>,
    _active: Option<Active>,
}

/// The bytes of a body that is counted, until the connection has sent the last of them.
struct Guarded<S: Store> {
    bytes: Bytes,
    _counted: Arc<Counted<S>>,
    _active: Active,
}

impl<S: Store> AsRef<[u8]> for Guarded<S> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<S: Store> Payload<S> {
    /// `bytes`, as the body of the request `active`.
    pub(crate) fn new(bytes: Bytes, counted: Option<Counted<S>>, active: Active) -> Self {
        match counted.map(Arc::new) {
            None => Self {
                rest: bytes,
                counted: None,
                _active: Some(active),
            },
            Some(counted) => Self {
                rest: Bytes::from_owner(Guarded {
                    bytes,
                    _counted: Arc::clone(&counted),
                    _active: active,
                }),
                counted: Some(counted),
                _active: None,
            },
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
        if let Some(counted) = &it.counted {
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
