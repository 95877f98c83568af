//! Connections of a reactor that the kernel woke together, and that let each other get as far as
//! they are before they go on.

use std::future::poll_fn;
use std::task::Poll;

/// Times that a connection goes on at once after one was alone.
const ALONE_SKIPS: usize = 8;

/// Connections that wait at most. Each holds buffers meanwhile that nothing counts.
const PRESENT_MAX: usize = 64;

/// The connections that are at the same place of their work.
#[derive(Debug)]
pub(super) struct Company {
    /// Connections that came since there was none, and those of them that are still there.
    joined: usize,
    present: usize,
    skips: usize,
}

impl Company {
    pub const fn new() -> Self {
        Self {
            joined: 0,
            present: 0,
            skips: 0,
        }
    }

    /// Whether a connection joins, and has to leave. If not, it goes on at once: it is most likely
    /// alone, or too many wait.
    pub fn join(&mut self) -> bool {
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        if self.present == PRESENT_MAX {
            return false;
        }
        self.joined += 1;
        self.present += 1;
        true
    }

    /// Whether several have come.
    pub const fn is_shared(&self) -> bool {
        self.joined > 1
    }

    /// A connection leaves. True for the last one.
    pub fn leave(&mut self) -> bool {
        self.present = self.present.saturating_sub(1);
        if self.present > 0 {
            return false;
        }
        if self.joined == 1 {
            self.skips = ALONE_SKIPS;
        }
        self.joined = 0;
        true
    }
}

/// Lets the tasks run that the kernel woke together with the caller. Unlike the function of `tokio`
/// it does not ask the kernel for others.
pub(super) async fn let_others_join() {
    let mut is_over = false;
    poll_fn(|context| {
        if is_over {
            return Poll::Ready(());
        }
        is_over = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_alone_does_not_wait_for_others_for_a_while() {
        let mut company = Company::new();
        assert!(company.join() && !company.is_shared() && company.leave());
        let skips = std::iter::from_fn(|| (!company.join()).then_some(())).count();
        assert_eq!(skips, ALONE_SKIPS);
    }

    #[test]
    fn connections_together_wait_for_each_other_each_time() {
        let mut company = Company::new();
        for _ in 0..3 {
            assert!(company.join() && company.join() && company.is_shared());
            assert!(!company.leave() && company.leave());
        }
    }

    #[test]
    fn few_wait_however_many_come() {
        let mut company = Company::new();
        let waiting = (0..1000).filter(|_| company.join()).count();
        assert_eq!(waiting, PRESENT_MAX);
        company.leave();
        assert!(company.join() && !company.join());
    }
}
