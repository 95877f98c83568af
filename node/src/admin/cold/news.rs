//! Streams of news of a longer piece of work.

use std::future::Future;

use futures_util::stream::{self, StreamExt as _};
use tokio::sync::mpsc;

use super::News;

/// Pending news; the work waits then.
const WAITING_MAX: usize = 16;

/// Where the work tells its news.
pub(in crate::admin) type Teller<T> = mpsc::Sender<T>;

/// The news of `work`, which goes on only while the stream is polled and ends when it is dropped.
pub(in crate::admin) fn news<T, F>(work: impl FnOnce(Teller<T>) -> F) -> News<T>
where
    T: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (teller, told) = mpsc::channel(WAITING_MAX);
    let told = stream::unfold(told, |mut told| async {
        let item = told.recv().await?;
        Some((item, told))
    });
    // It gives nothing itself, but its end is the end of the teller.
    let work = stream::once(work(teller)).filter_map(|()| std::future::ready(None));
    Box::pin(stream::select(told, work))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn everything_told_arrives_in_order_however_much_it_is() {
        let all = news(|teller| async move {
            for number in 0..100 {
                teller.send(number).await.unwrap();
            }
        });
        let all: Vec<i32> = all.collect().await;
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_dropped_stream_ends_the_work() {
        let done = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&done);
        let mut endless = news(|teller| async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = teller.send(()).await;
                tokio::task::yield_now().await;
            }
        });
        endless.next().await;
        drop(endless);
        let before = done.load(Ordering::Relaxed);
        tokio::task::yield_now().await;
        assert_eq!(done.load(Ordering::Relaxed), before);
        assert_eq!(Arc::strong_count(&done), 1);
    }
}
