//! Bodies of responses.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, Stream, StreamExt as _};
use http_body::{Body, Frame, SizeHint};
use hyper::HeaderMap;

use crate::answer::{Parts, Piece};
use crate::life::Active;
use crate::outstanding::{Counted, Reader};
use crate::store::Store;

/// Bytes that are handed to the connection at a time: what is progress of a slow reader.
const FRAME_LEN: usize = 256 << 10;

/// The body of a response: bytes that are shared with the store, and are sent from where they are.
#[derive(Debug)]
pub(crate) struct Payload<S: Store> {
    rest: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Whether the length is told: not of a body that has trailers.
    has_len: bool,
    counted: Option<Arc<Counted<S>>>,
    /// What follows `rest`.
    stream: Option<Parts>,
    _active: Option<Active>,
}

/// Bytes, and what lasts until the connection has sent the last of them.
struct Guarded<B, G> {
    bytes: B,
    _guard: G,
}

impl<B: AsRef<[u8]>, G> AsRef<[u8]> for Guarded<B, G> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Bytes that keep `guard` until the connection has sent the last of them.
pub(crate) fn guarded<B, G>(bytes: B, guard: G) -> Bytes
where
    B: AsRef<[u8]> + Send + 'static,
    G: Send + 'static,
{
    Bytes::from_owner(Guarded {
        bytes,
        _guard: guard,
    })
}

/// The bytes of a stream in frames. Each that is asked for is progress of `reader`.
pub(crate) fn frames<S: Store>(
    bytes: impl Stream<Item = Bytes> + Send + 'static,
    reader: Arc<Reader<S>>,
) -> BoxStream<'static, Bytes> {
    let frames = bytes.flat_map(|mut bytes| {
        stream::iter(std::iter::from_fn(move || {
            let len = bytes.len().min(FRAME_LEN);
            (len > 0).then(|| bytes.split_to(len))
        }))
    });
    frames.inspect(move |_| reader.progress()).boxed()
}

impl<S: Store> Payload<S> {
    /// `bytes`, as the body of the request `active`.
    pub(crate) fn new(bytes: Bytes, counted: Option<Counted<S>>, active: Active) -> Self {
        Self {
            has_len: true,
            ..Self::of_parts(vec![bytes], None, counted, active)
        }
    }

    /// The pieces of a stream, as the body of the request `active`. What they are made of is
    /// `counted`.
    pub(crate) fn streamed(parts: Parts, counted: Option<Counted<S>>, active: Active) -> Self {
        Self {
            stream: Some(parts),
            counted: counted.map(Arc::new),
            ..Self::of_parts(Vec::new(), None, None, active)
        }
    }

    /// `parts` one after another, and trailers, as the body of the request `active`.
    pub(crate) fn of_parts(
        parts: Vec<Bytes>,
        trailers: Option<HeaderMap>,
        counted: Option<Counted<S>>,
        active: Active,
    ) -> Self {
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        let empty = Self {
            rest: VecDeque::new(),
            trailers,
            has_len: false,
            counted: None,
            stream: None,
            _active: None,
        };
        let Some(counted) = counted.map(Arc::new) else {
            return Self {
                rest: parts.collect(),
                _active: Some(active),
                ..empty
            };
        };
        let active = Arc::new(active);
        let guard = |bytes| guarded(bytes, (Arc::clone(&counted), Arc::clone(&active)));
        Self {
            rest: parts.map(guard).collect(),
            counted: Some(Arc::clone(&counted)),
            ..empty
        }
    }
}

impl<S: Store + Unpin> Body for Payload<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let it = self.get_mut();
        if it.rest.is_empty()
            && let Some(parts) = &mut it.stream
        {
            match ready!(parts.0.poll_next_unpin(cx)) {
                Some(Piece::Bytes(part)) => it.rest.push_back(part),
                Some(Piece::Trailers(trailers)) => {
                    (it.stream, it.trailers) = (None, Some(trailers));
                }
                None => it.stream = None,
            }
        }
        let Some(first) = it.rest.front_mut() else {
            let trailers = it.trailers.take();
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        };
        if let Some(counted) = &it.counted {
            counted.progress();
        }
        let frame = first.split_to(first.len().min(FRAME_LEN));
        if first.is_empty() {
            it.rest.pop_front();
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.trailers.is_none() && self.stream.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.has_len {
            true => SizeHint::with_exact(self.rest.iter().map(|it| it.len() as u64).sum()),
            false => SizeHint::default(),
        }
    }
}
