//! Numbers as people read them.

use fonn_auth::Expiry;
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

/// Unix time as date and time in UTC, `2023-11-14 22:13:20`; empty if that is after the year 9999.
pub(super) fn instant(at_ms: u64) -> String {
    let moment = Expiry::from_unix_ms(at_ms / SECOND * SECOND);
    let text = moment.map(|it| it.to_string().trim_end_matches('Z').replace('T', " "));
    text.unwrap_or_default()
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
        assert_eq!(instant(999), "1970-01-01 00:00:00");
        assert_eq!(instant(u64::MAX), "");
    }
}
