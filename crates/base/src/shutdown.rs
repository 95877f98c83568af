//! Stopping in an orderly way: one token that all tasks watch, and the signals that trigger it.

use std::future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::config::EXIT_FAILURE;

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

    /// A token of this trigger.
    #[must_use]
    pub fn subscribe(&self) -> Shutdown {
        Shutdown(self.0.subscribe())
    }
}

/// Tells whether and until when to stop; cheap to clone, usable from any runtime or thread.
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

    /// Whether the stop is requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }

    /// When everything must have stopped; `None` before the request.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.0.borrow()
    }

    /// The time that is left: `None` before the request, zero past the deadline.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        match self.deadline() {
            Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            None => self.is_requested().then_some(Duration::ZERO),
        }
    }

    /// Waits until the deadline has passed; forever before the request.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn overdue(&self) {
        self.requested().await;
        match self.remaining() {
            Some(left) => tokio::time::sleep(left).await,
            None => future::pending().await,
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

    /// Requests the stop at the first signal and ends the process at the second one, with exit code
    /// 1: an operator that asks twice does not want to wait.
    pub async fn run(mut self, trigger: ShutdownTrigger, grace: Duration) {
        let name = self.recv().await;
        tracing::info!(signal = name, grace_secs = grace.as_secs(), "stopping");
        trigger.request(grace);
        let name = self.recv().await;
        tracing::warn!(signal = name, "second signal, leaving at once");
        std::process::exit(i32::from(EXIT_FAILURE));
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
        assert!(!shutdown.is_requested() && shutdown.deadline().is_none());
        assert_eq!(shutdown.remaining(), None);
        assert!(trigger.request(LONG));
        let deadline = shutdown.deadline().unwrap();
        assert!(!trigger.clone().request(Duration::ZERO));
        assert_eq!(trigger.subscribe().deadline(), Some(deadline));
        assert!(other.is_requested() && other.remaining().unwrap() <= LONG);
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
        trigger.request(Duration::from_millis(5));
        block_on(shutdown.overdue());
        assert_eq!(shutdown.remaining(), Some(Duration::ZERO));
    }

    #[test]
    fn a_lost_trigger_counts_as_a_request() {
        let (trigger, shutdown) = channel();
        drop(trigger);
        assert!(shutdown.is_requested());
        assert_eq!(shutdown.remaining(), Some(Duration::ZERO));
        block_on(shutdown.overdue());
    }

    #[test]
    fn an_endless_grace_is_possible() {
        let (trigger, shutdown) = channel();
        assert!(trigger.request(Duration::MAX));
        assert!(shutdown.remaining().unwrap() > LONG);
    }

    #[test]
    fn hangups_are_delivered() {
        block_on(async {
            let mut reloads = ReloadSignals::install().unwrap();
            kill_process(getpid(), Kill::HUP).unwrap();
            reloads.recv().await;
        });
    }

    /// In a child process, since signals reach a whole process.
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

    #[test]
    fn first_signal_requests_and_second_one_exits() {
        const CHILD: &str = "FONN_RUNTIME_TEST_SIGNALS";
        if std::env::var_os(CHILD).is_some() {
            block_on(async {
                let (trigger, shutdown) = channel();
                let signals = StopSignals::install().unwrap();
                let run = signals.run(trigger, LONG);
                let script = async {
                    kill_process(getpid(), Kill::TERM).unwrap();
                    shutdown.requested().await;
                    assert!(shutdown.remaining().unwrap() > LONG / 2);
                    // Not captured as what `eprintln` writes.
                    std::io::Write::write_all(&mut io::stderr(), b"still here").unwrap();
                    // Those of the first half second belong to the first one.
                    loop {
                        kill_process(getpid(), Kill::INT).unwrap();
                        tokio::time::sleep(SAME_REQUEST / 5).await;
                    }
                };
                tokio::join!(run, script);
            });
        }
        let name = "shutdown::tests::first_signal_requests_and_second_one_exits";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&child.stderr);
        assert!(told.contains("still here"), "{told}");
        // A failed assertion in the child would end it with the test harness's code 101.
        assert_eq!(child.status.code(), Some(i32::from(EXIT_FAILURE)));
    }
}
