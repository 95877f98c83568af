//! A device that takes so many bytes a second, for benchmarks.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What such a device takes at once before any writer waits.
const BURST: Duration = Duration::from_millis(50);

/// Makes writers wait as a device of a given speed would; one without a speed never.
#[derive(Debug)]
pub(crate) struct Throttle {
    bytes_per_sec: Option<u64>,
    /// When it will be done with what it was given.
    free_at: Mutex<Instant>,
}

impl Throttle {
    pub(crate) fn new(bytes_per_sec: Option<u64>) -> Self {
        Self {
            bytes_per_sec,
            free_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits until it would have taken so many bytes.
    pub(crate) fn take(&self, bytes: u64) {
        let wait = self.wait_for(bytes, Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    fn wait_for(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_sec else {
            return Duration::ZERO;
        };
        let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        let mut free_at = self.free_at.lock();
        *free_at = (*free_at).max(now) + takes;
        free_at.saturating_duration_since(now + BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_after_a_burst_and_idle_time_is_not_saved_up() {
        let throttle = Throttle::new(Some(1000));
        let now = Instant::now();
        assert_eq!(throttle.wait_for(50, now), Duration::ZERO);
        assert_eq!(throttle.wait_for(1000, now), Duration::from_secs(1));
        let later = now + Duration::from_secs(60);
        let wait = throttle.wait_for(1050, later);
        assert_eq!(wait, Duration::from_secs(1));
        let free = Throttle::new(None);
        assert_eq!(free.wait_for(u64::MAX, now), Duration::ZERO);
    }
}
