//! A failure that the log is told of once while it repeats. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// While a failure lasts, the log is told of it again this often.
const TELL_AGAIN: Duration = Duration::from_secs(300);

/// The failure that the log was told of last.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    told: Option<(String, Instant)>,
}

impl Repeated {
    /// Whether the log is to be told of a failure for this reason: it is another reason than the
    /// last one, or was told [`TELL_AGAIN`] ago.
    pub(super) fn tell(&mut self, why: &str, now: Instant) -> bool {
        let is_fresh = |(last, at): &(String, Instant)| {
            last == why && now.saturating_duration_since(*at) < TELL_AGAIN
        };
        if self.told.as_ref().is_some_and(is_fresh) {
            return false;
        }
        self.told = Some((why.to_owned(), now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_until_its_reason_changes_or_five_minutes_have_passed() {
        let begun = Instant::now();
        let after = |secs| begun + Duration::from_secs(secs);
        let mut repeated = Repeated::default();
        let told = [
            ("denied", 0),
            ("denied", 2),
            ("denied", 4),
            ("unavailable", 6),
            ("unavailable", 8),
            ("denied", 10),
            ("denied", 309),
            ("denied", 310),
        ]
        .map(|(why, secs)| repeated.tell(why, after(secs)));
        assert_eq!(told, [true, false, false, true, false, true, false, true]);
    }
}
