//! What is scarce: the processor, or the device.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use fonn_base::memory;

/// From which share of stalled time on a rate of bytes counts as all that the device can do.
const STALLED_SHARE: f32 = 0.5;

/// How busy the processors are that this process may use.
#[derive(Debug)]
pub struct Cpu {
    cpus: f32,
    looked_at: Instant,
    used: Duration,
    /// The file that tells how long threads had to wait for a processor.
    pressure: Option<PathBuf>,
    waited_us: u64,
}

impl Cpu {
    /// Begins to look.
    #[must_use]
    pub fn new() -> Self {
        let pressure = pressure_files()
            .into_iter()
            .find(|path| waited_us(path).is_some());
        Self {
            cpus: std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f32),
            looked_at: Instant::now(),
            used: memory::cpu_time(),
            waited_us: pressure.as_deref().and_then(waited_us).unwrap_or(0),
            pressure,
        }
    }

    /// Since it was asked last: the share of the processors that was used, or the share of time in
    /// which some thread waited for one, whichever is more.
    pub fn busy(&mut self) -> f32 {
        let elapsed = self.looked_at.elapsed().as_secs_f32().max(0.001);
        let used = memory::cpu_time();
        let waited = self.pressure.as_deref().and_then(waited_us).unwrap_or(0);
        let own = used.saturating_sub(self.used).as_secs_f32() / elapsed / self.cpus;
        let waiting = waited.saturating_sub(self.waited_us) as f32 / 1e6 / elapsed;
        self.looked_at = Instant::now();
        self.used = used;
        self.waited_us = waited;
        own.max(waiting).min(1.0)
    }

    /// How many processors are idle when they are so busy.
    #[must_use]
    pub fn idle(&self, busy: f32) -> usize {
        // Not rounded down: the thread that asks for help is one of the busy ones and has pauses.
        ((1.0 - busy.clamp(0.0, 1.0)) * self.cpus).round() as usize
    }
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

/// The cgroup's own file, else the one of the whole machine (Linux, `accounting/psi.rst`).
fn pressure_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let unified = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    if let Some(path) = unified {
        let root = PathBuf::from("/sys/fs/cgroup");
        files.push(root.join(path).join("cpu.pressure"));
    }
    files.push("/proc/pressure/cpu".into());
    files
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`: microseconds.
fn waited_us(path: &std::path::Path) -> Option<u64> {
    parse_waited(&std::fs::read_to_string(path).ok()?)
}

fn parse_waited(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.rsplit_once("total=")?.1.trim().parse().ok()
}

/// How busy a device is that is written to.
#[derive(Debug, Default)]
pub struct Device {
    bytes: u64,
    stalled: Duration,
    /// Bytes a second that it took when it was all that writers waited for.
    ceiling: f32,
}

impl Device {
    /// Takes in the totals of bytes written and of time that writers waited for the device,
    /// `elapsed` after the totals before. The share of time in which it was waited for, or the rate
    /// against the most that it has taken while it was waited for, whichever is more.
    pub fn busy(&mut self, bytes: u64, stalled: Duration, elapsed: Duration) -> f32 {
        let elapsed = elapsed.as_secs_f32().max(0.001);
        let rate = bytes.saturating_sub(self.bytes) as f32 / elapsed;
        let share = (stalled.saturating_sub(self.stalled).as_secs_f32() / elapsed).min(1.0);
        self.bytes = bytes;
        self.stalled = stalled;
        if share >= STALLED_SHARE {
            // An old ceiling fades: the device may have got slower, or other users.
            self.ceiling = rate.max(self.ceiling * 0.99);
        }
        let against_ceiling = if self.ceiling > 0.0 {
            rate / self.ceiling
        } else {
            0.0
        };
        share.max(against_ceiling).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_files_are_read() {
        let text = "some avg10=1.50 avg60=0.10 avg300=0.00 total=23456\nfull avg10=0 total=7\n";
        assert_eq!(parse_waited(text), Some(23_456));
        assert_eq!(parse_waited("full total=7"), None);
        assert_eq!(parse_waited(""), None);
    }

    #[test]
    fn the_processor_is_busy_after_work_and_shares_are_shares() {
        let mut cpu = Cpu::new();
        let until = thread_time() + Duration::from_millis(50);
        while thread_time() < until {
            std::hint::black_box(0);
        }
        let busy = cpu.busy();
        assert!(busy > 0.0 && busy <= 1.0, "{busy}");
    }

    #[test]
    fn idle_processors_are_what_is_not_busy() {
        let cpu = Cpu {
            cpus: 4.0,
            ..Cpu::new()
        };
        let idle = [0.0, 0.3, 0.55, 0.9, 1.0].map(|busy| cpu.idle(busy));
        assert_eq!(idle, [4, 3, 2, 0, 0]);
    }

    fn thread_time() -> Duration {
        super::super::thread_cpu()
    }

    #[test]
    fn a_device_is_busy_while_it_is_waited_for_and_when_it_does_as_much_again() {
        let second = Duration::from_secs(1);
        let mut device = Device::default();
        assert_eq!(device.busy(50_000_000, Duration::ZERO, second), 0.0);
        // 100 MB in a second, of which 900 ms were waited.
        let waited = Duration::from_millis(900);
        assert_eq!(device.busy(150_000_000, waited, second), 1.0);
        // Half of it without waiting for it.
        assert_eq!(device.busy(200_000_000, waited, second), 0.5);
        assert_eq!(device.busy(200_000_000, waited, second), 0.0);
    }
}
