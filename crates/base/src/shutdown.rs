//! Stopping in an orderly way: one token that all tasks watch, and the signals that trigger it.

use std::future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Makes a token that is not requested yet, and what requests it.
#[must_use]
pub fn channel() -> (ShutdownTrigger, Shutdown) {
    let (tx, rx) = watch::channel(None);
    (ShutdownTrigger(Arc::new(tx)), Shutdown(rx))
}

/// Requests the stop; cheap to clone. When the last clone is dropped the stop counts as requested,
/// with no time left, since no task could request it any more.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger(Arc<watch::Sender<Option<Instant>>>);

impl ShutdownTrigger {
    /// Requests the stop, to be complete within `grace`. Returns whether this was the first
    /// request; a later one changes nothing.
    pub fn request(&self, grace: Duration) -> bool {
        let now = Instant::now();
        // A grace beyond what the clock can express is cut to a day.
        let deadline = now
            .checked_add(grace)
            .unwrap_or(now + Duration::from_secs(86_400));
        self.0.send_if_modified(|state| {
            let first = state.is_none();
            state.get_or_insert(deadline);
            first
        })
    }
}

/// Tells when to stop, and by when; cheap to clone, usable from any runtime or thread.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Option<Instant>>);

impl Shutdown {
    /// Waits until the stop is requested.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn requested(&self) {
        // An error means that no trigger is left, which counts as a request.
        let _ = self.0.clone().wait_for(Option::is_some).await;
    }

    /// Waits until the deadline has passed; forever before the request.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn overdue(&self) {
        self.requested().await;
        // Without a trigger that is left there is neither a deadline nor time.
        let deadline = *self.0.borrow();
        if let Some(deadline) = deadline {
            tokio::time::sleep(deadline.saturating_duration_since(Instant::now())).await;
        }
    }
}

/// Signals so soon after a request to stop belong to it.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// SIGTERM and SIGINT, caught from the moment this is made.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    /// When the last request came.
    requested: Option<Instant>,
}

impl StopSignals {
    /// Begins to catch the signals. Must be called inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            requested: None,
        })
    }

    /// Waits for the next request to stop and names its signal. Signals that come within half a
    /// second of it belong to it: `timeout` and terminals signal a process and its group.
    ///
    /// # Cancel safety
    /// Cancelling it loses no signal.
    pub async fn recv(&mut self) -> &'static str {
        loop {
            let name = tokio::select! {
                _ = self.terminate.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
            };
            if begins_request(&mut self.requested, Instant::now()) {
                return name;
            }
        }
    }
}

/// Whether a signal of this moment is a request, and does not belong to the one before.
fn begins_request(requested: &mut Option<Instant>, now: Instant) -> bool {
    let is_one = requested.is_none_or(|before| now - before >= SAME_REQUEST);
    if is_one {
        *requested = Some(now);
    }
    is_one
}

/// SIGHUP, the request to read the configuration again, caught from the moment this is made.
#[derive(Debug)]
pub struct ReloadSignals(Signal);

impl ReloadSignals {
    /// Begins to catch SIGHUP. Must be called inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// When the handler cannot be installed.
    pub fn install() -> io::Result<Self> {
        signal(SignalKind::hangup()).map(Self)
    }

    /// Waits for the next SIGHUP; several that came meanwhile count as one.
    ///
    /// # Cancel safety
    /// Cancelling it loses no signal.
    pub async fn recv(&mut self) {
        if self.0.recv().await.is_none() {
            future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal as Kill, getpid, kill_process};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn every_token_sees_the_first_request_and_its_deadline() {
        let (trigger, shutdown) = channel();
        let other = shutdown.clone();
        assert!(trigger.request(LONG));
        let deadline = *shutdown.0.borrow();
        assert!(deadline.is_some());
        assert!(!trigger.clone().request(Duration::ZERO));
        assert_eq!(*other.0.borrow(), deadline);
        block_on(other.requested());
    }

    #[test]
    fn waiting_tokens_wake_in_other_runtimes() {
        let (trigger, shutdown) = channel();
        let waiter = std::thread::spawn(move || block_on(shutdown.requested()));
        trigger.request(LONG);
        waiter.join().unwrap();
    }

    #[test]
    fn overdue_comes_after_the_grace() {
        let (trigger, shutdown) = channel();
        let (begun, grace) = (Instant::now(), Duration::from_millis(5));
        trigger.request(grace);
        block_on(shutdown.overdue());
        assert!(begun.elapsed() >= grace);
    }

    #[test]
    fn a_lost_trigger_counts_as_a_request() {
        let (trigger, shutdown) = channel();
        drop(trigger);
        block_on(shutdown.requested());
        block_on(shutdown.overdue());
    }

    #[test]
    fn an_endless_grace_is_possible() {
        let (trigger, shutdown) = channel();
        assert!(trigger.request(Duration::MAX));
        assert!(shutdown.0.borrow().unwrap() > Instant::now() + LONG);
    }

    #[test]
    fn hangups_are_delivered() {
        block_on(async {
            let mut reloads = ReloadSignals::install().unwrap();
            kill_process(getpid(), Kill::HUP).unwrap();
            reloads.recv().await;
        });
    }

    #[test]
    fn signals_within_half_a_second_of_a_request_belong_to_it() {
        let (mut requested, begin) = (None, Instant::now());
        let mut is_one = |ms| begins_request(&mut requested, begin + Duration::from_millis(ms));
        let told = [0, 1, 300, 499, 500, 501, 999, 1_000, 5_000].map(&mut is_one);
        assert_eq!(
            told,
            [true, false, false, false, true, false, false, true, true]
        );
    }
}
