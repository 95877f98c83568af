//! A change that runs to its end, also after its caller has dropped it.
//!
//! HTTP servers drop the future of a request whose client has gone, and a deadline drops what it
//! waited for. The changes of a store are not made for that, so what is left of one is spawned
//! instead. Their number is bounded by the permit that each holds, their time by the deadlines of
//! the store.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// The operation.
pub(crate) struct Unbroken<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> Unbroken<T> {
    /// An operation that begins when it is awaited.
    pub(crate) fn new(operation: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(operation)))
    }
}

impl<T: Send + 'static> Future for Unbroken<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(operation) = &mut self.0 else {
            // Polled after its end, which no caller does.
            return Poll::Pending;
        };
        let polled = operation.as_mut().poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Unbroken<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.0.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { drop(operation.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_operation_ends_although_its_deadline_is_over() {
        let (tell, told) = oneshot::channel();
        let slow = Unbroken::new(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let _ = tell.send(7);
        });
        let ended = tokio::time::timeout(Duration::from_secs(1), slow).await;
        assert!(ended.is_err());
        assert_eq!(told.await, Ok(7));
    }

    #[tokio::test]
    async fn an_operation_that_ended_gives_its_result() {
        assert_eq!(Unbroken::new(async { 7 }).await, 7);
    }
}
