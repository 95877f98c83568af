//! Numbers as people read them.

use fonn_base::size::ByteCount;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// `1.5 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    ByteCount::new(bytes).human().to_string()
}

/// A number of things.
pub(super) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A part of a whole, `37 %`; empty if the whole is nothing.
pub(super) fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => String::new(),
        _ => format!("{:.0} %", part as f64 * 100.0 / whole as f64),
    }
}

/// `850 ms`, `12 s`, `5 min`, `3 h`, `9 d`.
pub(super) fn duration(ms: u64) -> String {
    match ms {
        0..SECOND => format!("{ms} ms"),
        SECOND..MINUTE => format!("{} s", ms / SECOND),
        MINUTE..HOUR => format!("{} min", ms / MINUTE),
        HOUR..DAY => format!("{} h", ms / HOUR),
        DAY.. => format!("{} d", ms / DAY),
    }
}

/// An instant seen from now: `5 min ago`, `in 3 h`, `now`.
pub(super) fn relative(at_ms: u64, now_ms: u64) -> String {
    match at_ms.abs_diff(now_ms) {
        0 => "now".to_owned(),
        ms if at_ms < now_ms => format!("{} ago", duration(ms)),
        ms => format!("in {}", duration(ms)),
    }
}

/// Unix time as date and time in UTC, `2023-11-14 22:13:20`.
pub(super) fn instant(at_ms: u64) -> String {
    let second = at_ms / SECOND;
    let (days, of_day) = (second / (DAY / SECOND), second % (DAY / SECOND));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a day that is counted from 1970-01-01. Years are taken to begin in March,
/// so that the day that may be missing is the last of a year.
fn date(days: u64) -> (u64, u64, u64) {
    /// From 0000-03-01 to 1970-01-01.
    const BEFORE: u64 = 719_468;
    /// Of 400, 100 and 4 years that begin in March.
    const ERA: u64 = 146_097;
    const CENTURY: u64 = 36_524;
    const FOUR_YEARS: u64 = 1461;
    let days = days.saturating_add(BEFORE);
    let (era, of_era) = (days / ERA, days % ERA);
    // The last day of an era belongs to its last century, that of four years to the last of them.
    let century = (of_era / CENTURY).min(3);
    let of_century = of_era - century * CENTURY;
    let (fours, of_fours) = (of_century / FOUR_YEARS, of_century % FOUR_YEARS);
    let year = (of_fours / 365).min(3);
    let of_year = of_fours - year * 365;
    // From March on months have 31, 30, 31, 30, 31 days, and again.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let year = 400 * era + 100 * century + 4 * fours + year;
    match month {
        0..10 => (year, month + 3, day),
        _ => (year + 1, month - 9, day),
    }
}

/// `$0.0042`.
pub(super) fn dollars(dollars: f64) -> String {
    match dollars {
        it if it >= 1.0 => format!("${it:.2}"),
        it => format!("${it:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_dates_of_the_calendar() {
        for (second, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_704_067_199, "2023-12-31 23:59:59"),
            (1_709_164_800, "2024-02-29 00:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(instant(second * SECOND), text);
        }
        // Every day of 800 years follows the one before.
        let mut before = date(0);
        for day in 1..292_194 {
            let (year, month, day) = date(day);
            let is_next = match before {
                (y, m, d) if (y, m) == (year, month) => day == d + 1,
                (y, 12, 31) => (year, month, day) == (y + 1, 1, 1),
                (y, m, d) => (year, month, day) == (y, m + 1, 1) && d >= 28,
            };
            assert!(is_next, "{before:?} {:?}", (year, month, day));
            before = (year, month, day);
        }
        // An instant that no clock shows does not panic.
        instant(u64::MAX);
    }
}
