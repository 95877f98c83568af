//! Numbers as people read them.

use fonn_runtime::size::ByteCount;

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

/// `$0.0042`.
pub(super) fn dollars(dollars: f64) -> String {
    match dollars {
        it if it >= 1.0 => format!("${it:.2}"),
        it => format!("${it:.4}"),
    }
}
