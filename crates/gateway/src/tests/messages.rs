//! Long messages, which threads of their own work on.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use fonn_proto::Space;
use futures_util::FutureExt as _;
use parking_lot::Mutex;

use super::fake::Site;

/// A failure takes so long to be told.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_reactor_goes_on_beside_work_on_a_long_message() {
    let site = Site::new();
    let (tell, told) = sync_channel(1);
    let work = move || told.recv_timeout(PATIENCE).ok();
    let work = site.front.aside(Space::default(), 1 << 20, work);
    let other = async { tell.send(7).unwrap() };
    let (done, ()) = tokio::join!(work, other);
    assert_eq!(done, Some(Some(7)));
}

#[tokio::test]
async fn work_on_long_messages_keeps_its_turn_when_its_request_has_gone() {
    let site = Site::new();
    let (begin, begun) = sync_channel(3);
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    for _ in 0..3 {
        let (begin, gate) = (begin.clone(), Arc::clone(&gate));
        let work = site.front.aside(Space::default(), 1 << 20, move || {
            begin.send(()).unwrap();
            drop(gate.lock());
        });
        assert_eq!(work.now_or_never(), None);
    }
    // The third one found no turn.
    for _ in 0..2 {
        assert_eq!(begun.recv_timeout(PATIENCE), Ok(()));
    }
    assert!(begun.try_recv().is_err());
    drop(closed);
    assert_eq!(
        site.front.aside(Space::default(), 1 << 20, || 7).await,
        Some(7)
    );
    assert!(begun.try_recv().is_err());
}
