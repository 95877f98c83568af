//! Bodies of responses, which keep alive what has to live as long as they are being sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::body::Body;

/// A body and something that is dropped with it.
pub(super) struct Guarded<G> {
    body: Body,
    _guard: G,
}

/// Ties `guard` to the body of a response.
pub(super) fn guard<G>(response: hyper::Response<Body>, guard: G) -> hyper::Response<Body>
where
    G: Send + Unpin + 'static,
{
    response.map(|body| {
        Body::new(Guarded {
            body,
            _guard: guard,
        })
    })
}

impl<G: Unpin> http_body::Body for Guarded<G> {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
