//! For how long calls have waited for a device.
//!
//! A device that fails says so; one that stalls says nothing, and the call does not return. A
//! [`DeviceWatch`] tells other threads of such a call. It ends no call and decides nothing.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Bytes in a microsecond that a device writes at least: a long write is no stall.
const BYTES_PER_MICRO_MIN: u64 = 16;

/// The calls that may wait for a device; a few at a time.
#[derive(Debug, Default)]
pub struct DeviceWatch {
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    last_id: u64,
    /// Those under way, each with the time of its begin, later by what its bytes may take.
    under_way: Vec<(u64, Instant)>,
}

impl DeviceWatch {
    /// Notes that a call begins which writes so many bytes. It ends when what this returns is
    /// dropped.
    pub fn begin(&self, len_bytes: u64) -> DeviceCall<'_> {
        let allowed = Duration::from_micros(len_bytes / BYTES_PER_MICRO_MIN);
        let since = Instant::now() + allowed;
        let mut calls = self.calls.lock();
        calls.last_id += 1;
        let id = calls.last_id;
        calls.under_way.push((id, since));
        DeviceCall { watch: self, id }
    }

    /// Whether a call under way has waited for as long as `limit`.
    #[must_use]
    pub fn has_waited(&self, limit: Duration) -> bool {
        let now = Instant::now();
        let calls = self.calls.lock();
        let mut waits = calls.under_way.iter();
        waits.any(|(_, since)| now.saturating_duration_since(*since) >= limit)
    }
}

/// A call under way.
#[derive(Debug)]
#[must_use = "the call ends when it is dropped"]
pub struct DeviceCall<'a> {
    watch: &'a DeviceWatch,
    id: u64,
}

impl Drop for DeviceCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.watch.calls.lock();
        calls.under_way.retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_from_its_begin_to_its_end_and_a_long_one_is_allowed_more() {
        let (at_once, long) = (Duration::ZERO, Duration::from_secs(3600));
        let watch = DeviceWatch::default();
        assert!(!watch.has_waited(at_once));
        let (first, second) = (watch.begin(0), watch.begin(0));
        assert!(watch.has_waited(at_once) && !watch.has_waited(long));
        drop(first);
        assert!(watch.has_waited(at_once));
        drop(second);
        assert!(!watch.has_waited(at_once));
        let call = watch.begin(BYTES_PER_MICRO_MIN * 3_600_000_000);
        assert!(!watch.has_waited(Duration::from_nanos(1)));
        drop(call);
    }
}
