//! Crashes at named places, for tests: a task that reaches the place stops for ever, and the test
//! drops it.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Where to stop.
#[derive(Debug, Default)]
pub struct CrashPoints {
    state: Mutex<State>,
    crashed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The place to stop at, and how many times it is passed before.
    armed: Option<(&'static str, u32)>,
    passed: BTreeMap<&'static str, u64>,
    has_crashed: bool,
}

impl CrashPoints {
    /// Stops at `name` after passing it `passes` times.
    pub fn arm(&self, name: &'static str, passes: u32) {
        let mut state = self.state.lock();
        state.armed = Some((name, passes));
        state.has_crashed = false;
    }

    /// Waits for the crash.
    pub async fn crashed(&self) {
        loop {
            let next = self.crashed.notified();
            if self.state.lock().has_crashed {
                return;
            }
            next.await;
        }
    }

    /// Whether there was a crash since it was armed.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.state.lock().has_crashed
    }

    /// The places that were passed, and how often.
    #[must_use]
    pub fn passed(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().passed.clone()
    }

    pub(crate) async fn reached(&self, name: &'static str) {
        {
            let mut guard = self.state.lock();
            let state = &mut *guard;
            *state.passed.entry(name).or_default() += 1;
            match &mut state.armed {
                // After a crash nothing goes on, wherever it is.
                _ if state.has_crashed => {}
                Some((armed, 0)) if *armed == name => state.has_crashed = true,
                Some((armed, passes)) if *armed == name => {
                    *passes -= 1;
                    return;
                }
                _ => return,
            }
        }
        self.crashed.notify_waiters();
        std::future::pending::<()>().await;
    }
}
