//! How often a writer is asked for news.

use std::time::Duration;

/// The longest wait: whoever wrote nothing for an hour may do so again.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The wait after a writer had nothing new, if its last news are `idle` old: the longer it was silent
/// the less often it is asked, so that the many writers of past runs cost next to nothing.
pub(super) fn wait(idle: Duration, interval: Duration) -> Duration {
    (idle / 10).clamp(interval, WAIT_MAX.max(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silent_are_asked_less_often_and_within_bounds() {
        let secs = Duration::from_secs;
        assert_eq!(wait(secs(0), secs(10)), secs(10));
        assert_eq!(wait(secs(600), secs(10)), secs(60));
        assert_eq!(wait(secs(86_400), secs(10)), secs(300));
        assert_eq!(wait(secs(86_400), secs(900)), secs(900));
    }
}
