//! What a process has used, from the kernel's accounting.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::Serialize;

/// Processor time and memory of a process at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Usage {
    /// User plus system time of all its threads, living and dead.
    pub cpu: Duration,
    /// Resident set in bytes.
    pub rss_bytes: u64,
}

impl Usage {
    /// What the process has used so far.
    ///
    /// # Errors
    /// When the process is gone, or `/proc` is not readable.
    pub fn of(pid: u32) -> Result<Self> {
        Ok(Self {
            cpu: processor_time(pid)?,
            rss_bytes: rss_bytes(pid)?,
        })
    }
}

/// Name and processor time of each living thread of a process, to the nanosecond: `comm` and the
/// first field of `schedstat` of `/proc/PID/task/TID`. A thread that runs just now is behind by up
/// to a tick.
///
/// # Errors
/// When the process is gone, or the kernel was built without this accounting.
pub fn thread_times(pid: u32) -> Result<Vec<(String, Duration)>> {
    let tasks = format!("/proc/{pid}/task");
    let mut times = Vec::new();
    for task in fs::read_dir(&tasks).with_context(|| format!("listing {tasks}"))? {
        let task = task?.path();
        // Threads end.
        let Ok(name) = fs::read_to_string(task.join("comm")) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(task.join("schedstat")) else {
            continue;
        };
        let ns = stat.split(' ').next().context("schedstat is empty")?;
        times.push((
            name.trim_end().to_owned(),
            Duration::from_nanos(ns.parse()?),
        ));
    }
    anyhow::ensure!(!times.is_empty(), "no accounting of threads in {tasks}");
    Ok(times)
}

/// Processor time of a process to the nanosecond: user plus system time of all its threads, living
/// and dead, by its clock (`clock_getcpuclockid(3)`).
///
/// # Errors
/// When the process is gone.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let gone = || format!("asking for the processor time of process {pid}");
    let id = i32::try_from(pid).with_context(gone)?;
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(id)).with_context(gone)?;
    Ok(clock.now().with_context(gone)?.into())
}

/// Resident set of a process in bytes.
///
/// # Errors
/// When the process is gone or `/proc/PID/statm` is not readable.
pub fn rss_bytes(pid: u32) -> Result<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))
        .with_context(|| format!("reading the memory of process {pid}"))?;
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .context("statm has no resident field")?
        .parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// The part of the resident set that is no file, in bytes: what a process allocated, without the
/// pages of its program that it happened to run. Pages of files are `shared` in `/proc/PID/statm`.
///
/// # Errors
/// As [`rss_bytes`].
pub fn allocated_bytes(pid: u32) -> Result<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm"))
        .with_context(|| format!("reading the memory of process {pid}"))?;
    let mut fields = statm.split(' ').skip(1);
    let mut pages = || -> Result<u64> { Ok(fields.next().context("statm is short")?.parse()?) };
    let (resident, of_files) = (pages()?, pages()?);
    Ok(resident.saturating_sub(of_files) * rustix::param::page_size() as u64)
}

/// The largest resident set that a process ever had, in bytes: `VmHWM` of `/proc/PID/status`.
///
/// # Errors
/// When the process is gone or the file is not readable.
pub fn rss_peak_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("reading the memory of process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no VmHWM")?;
    Ok(kib.trim().parse::<u64>()? * 1024)
}

/// Bytes that the files below `dir` take on the disk (allocated blocks, not lengths).
///
/// Files that vanish while they are counted count as nothing.
///
/// # Errors
/// When `dir` itself cannot be read.
pub fn disk_bytes(dir: &std::path::Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;

    let mut total = 0;
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    for entry in entries.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        total += meta.blocks() * 512;
        if meta.is_dir() {
            total += disk_bytes(&entry.path()).unwrap_or(0);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_time() {
        let before = Usage::of(std::process::id()).unwrap();
        assert!(before.rss_bytes > 100_000);
        let allocated = allocated_bytes(std::process::id()).unwrap();
        assert!(allocated > 10_000 && allocated < rss_bytes(std::process::id()).unwrap());
        assert!(rss_peak_bytes(std::process::id()).unwrap() >= before.rss_bytes);
    }

    #[test]
    fn the_time_of_threads_that_have_ended_counts() {
        let burn = || {
            let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while used().tv_sec == 0 && used().tv_nsec < 30_000_000 {}
        };
        let before = processor_time(std::process::id()).unwrap();
        std::thread::spawn(burn).join().unwrap();
        let used = processor_time(std::process::id()).unwrap() - before;
        assert!(used >= Duration::from_millis(30), "{used:?}");
    }

    #[test]
    fn threads_are_told_apart_by_name() {
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let (begin, begun) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("busy-bee".to_owned());
        let thread = thread.spawn(move || {
            // Until it has run for longer than a tick.
            let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            while used().tv_sec == 0 && used().tv_nsec < 30_000_000 {}
            begin.send(()).unwrap();
            let _ = ended.recv();
        });
        begun.recv().unwrap();
        let times = thread_times(std::process::id()).unwrap();
        let of_bee: Duration = times
            .iter()
            .filter_map(|(name, time)| (name == "busy-bee").then_some(*time))
            .sum();
        assert!(of_bee >= Duration::from_millis(20), "{of_bee:?}");
        drop(end);
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn disk_bytes_count_nested_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("deep")).unwrap();
        fs::write(dir.path().join("deep/file"), vec![1; 100_000]).unwrap();
        assert!(disk_bytes(dir.path()).unwrap() >= 100_000);
    }
}
