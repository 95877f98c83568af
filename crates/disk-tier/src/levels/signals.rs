//! What is scarce: the processor, or the device.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
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
    waited: Duration,
}

impl Cpu {
    /// Begins to look.
    #[must_use]
    pub fn new() -> Self {
        Self {
            cpus: std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f32),
            looked_at: Instant::now(),
            used: memory::cpu_time(),
            waited: run_delay_of_all_threads(),
        }
    }

    /// Since it was asked last: the share of the processors that was used, or the share of time in
    /// which a thread of this process waited for one, whichever is more.
    pub fn busy(&mut self) -> f32 {
        let elapsed = self.looked_at.elapsed().as_secs_f32().max(0.001);
        let used = memory::cpu_time();
        let waited = run_delay_of_all_threads();
        let own = used.saturating_sub(self.used).as_secs_f32() / elapsed / self.cpus;
        let waiting = waited.saturating_sub(self.waited).as_secs_f32() / elapsed;
        self.looked_at = Instant::now();
        self.used = used;
        self.waited = waited;
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

/// How long the threads of this process have waited for a processor, all together. Those that have
/// ended do not count, so it may go down.
fn run_delay_of_all_threads() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let delay = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some(parse_times(&text)?.run_delay)
    };
    threads.flatten().filter_map(delay).sum()
}

/// What the kernel counts of a thread, for any thread to ask.
#[derive(Debug)]
pub struct ThreadTimes(File);

/// How long a thread has used and waited for a processor since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Time on a processor.
    pub used: Duration,
    /// Time in which it could run, and did not.
    pub run_delay: Duration,
}

impl ThreadTimes {
    /// Those of the caller. None where the kernel does not count them.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        let times = Self(File::open("/proc/thread-self/schedstat").ok()?);
        times.total().map(|_| times)
    }

    /// All of it. None once the thread has ended.
    #[must_use]
    pub fn total(&self) -> Option<CpuTimes> {
        let mut text = [0; 64];
        let len = self.0.read_at(&mut text, 0).ok()?;
        parse_times(std::str::from_utf8(text.get(..len)?).ok()?)
    }
}

/// Nanoseconds on a processor, nanoseconds that it waited for one, and turns (Linux,
/// `scheduler/sched-stats.rst`).
fn parse_times(text: &str) -> Option<CpuTimes> {
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let mut next = || Some(Duration::from_nanos(numbers.next()?.ok()?));
    Some(CpuTimes {
        used: next()?,
        run_delay: next()?,
    })
}

/// Totals of what was written to a device, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Writing {
    /// Bytes written.
    pub bytes: u64,
    /// Time that the writer was off the processor in calls that write.
    pub stalled: Duration,
    /// Time that it waited for a processor, there or elsewhere: the device is not to blame.
    pub run_delay: Duration,
    /// Time that syncs took. They wait for the same device, perhaps at the same time.
    pub synced: Duration,
}

/// How busy a device is that is written to.
#[derive(Debug, Default)]
pub struct Device {
    before: Writing,
    /// Bytes a second that it took when it was all that writers waited for.
    ceiling: f32,
}

impl Device {
    /// Takes in the totals, `elapsed` after those before. The share of time in which the device was
    /// waited for, or the rate against the most that it has taken while it was waited for,
    /// whichever is more.
    pub fn busy(&mut self, now: Writing, elapsed: Duration) -> f32 {
        let before = std::mem::replace(&mut self.before, now);
        let elapsed = elapsed.as_secs_f32().max(0.001);
        let rate = now.bytes.saturating_sub(before.bytes) as f32 / elapsed;
        let stalled = now.stalled.saturating_sub(before.stalled);
        let run_delay = now.run_delay.saturating_sub(before.run_delay);
        let synced = now.synced.saturating_sub(before.synced);
        let waited = stalled.saturating_sub(run_delay).max(synced);
        let share = (waited.as_secs_f32() / elapsed).min(1.0);
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
        let mut now = Writing {
            bytes: 50_000_000,
            ..Writing::default()
        };
        assert_eq!(device.busy(now, second), 0.0);
        // 100 MB in a second, of which 900 ms were waited.
        now.bytes += 100_000_000;
        now.stalled += Duration::from_millis(900);
        assert_eq!(device.busy(now, second), 1.0);
        // Half of it without waiting for it.
        now.bytes += 50_000_000;
        assert_eq!(device.busy(now, second), 0.5);
        assert_eq!(device.busy(now, second), 0.0);
    }

    #[test]
    fn a_device_is_not_busy_while_its_writer_waits_for_a_processor() {
        let second = Duration::from_secs(1);
        let mut device = Device::default();
        let mut now = Writing {
            bytes: 50_000_000,
            stalled: Duration::from_millis(800),
            run_delay: Duration::from_millis(900),
            synced: Duration::ZERO,
        };
        assert_eq!(device.busy(now, second), 0.0);
        // What was too much in the second before does not count here.
        now.stalled += Duration::from_millis(600);
        now.run_delay += Duration::from_millis(350);
        assert_eq!(device.busy(now, second), 0.25);
        now.synced += Duration::from_millis(500);
        assert_eq!(device.busy(now, second), 0.5);
    }

    #[test]
    fn the_times_of_a_thread_are_read() {
        let times = parse_times("10 1339836 1\n").unwrap();
        assert_eq!(times.used, Duration::from_nanos(10));
        assert_eq!(times.run_delay, Duration::from_nanos(1_339_836));
        assert_eq!(parse_times(""), None);
        assert_eq!(parse_times("10 x 1"), None);
        // Another thread than the one that it is of asks, while that lives and after.
        let (times, told) = std::sync::mpsc::sync_channel(1);
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let thread = std::thread::spawn(move || {
            times.send(ThreadTimes::of_this_thread()).unwrap();
            let _ = ended.recv();
        });
        let times = told.recv().unwrap().unwrap();
        let total = times.total().unwrap();
        assert!(total.used > Duration::ZERO);
        assert!(run_delay_of_all_threads() >= total.run_delay);
        drop(end);
        thread.join().unwrap();
        assert_eq!(times.total(), None);
    }
}
