//! What a client over HTTP/2 still sends of a body whose request was answered.
//!
//! A server may answer before a body has ended, and reset the stream with `NO_ERROR` then (RFC
//! 9113, section 8.1). curl 7.88 forgets an answer that comes together with such a reset, and tells
//! of an error in the framing layer. So the rest of the body is discarded for a while first.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::life::LINGER_LEN_MAX;

/// A body that is dropped slowly if it has not ended.
pub(crate) struct Leftover {
    body: Option<Incoming>,
    linger: Duration,
}

impl Leftover {
    /// For a body whose rest is discarded for so long.
    pub(crate) fn new(body: Incoming, linger: Duration) -> Self {
        Self {
            body: Some(body),
            linger,
        }
    }
}

impl Body for Leftover {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let rest = self.body.take().filter(|rest| !rest.is_end_stream());
        if let Some(rest) = rest
            && !self.linger.is_zero()
            && let Ok(runtime) = Handle::try_current()
        {
            let linger = self.linger;
            // A client has a bounded number of streams, each until this ends.
            runtime.spawn(async move { timeout(linger, discard(rest)).await });
        }
    }
}

/// Reads a body until it ends, the client goes, or there is much of it.
async fn discard(mut rest: Incoming) {
    let mut left = LINGER_LEN_MAX;
    while left > 0
        && let Some(Ok(frame)) = rest.frame().await
    {
        left = left.saturating_sub(frame.data_ref().map_or(1, Bytes::len));
    }
}
