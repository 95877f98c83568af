//! Where processes run: pinned to processors, so that the scheduler's choice is the same for all
//! that are compared.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process::Daemon;

/// Processors that this process may use.
///
/// # Errors
/// When the kernel does not tell.
pub(super) fn allowed() -> Result<CpuSet> {
    sched_getaffinity(None).context("asking for the processors of this process")
}

/// The first two of them; both the same if there is one only.
pub(super) fn first_two(allowed: &CpuSet) -> [usize; 2] {
    let mut of = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let first = of.next().unwrap_or(0);
    [first, of.next().unwrap_or(first)]
}

/// Lets all threads of a process run there only. Those that they start later follow them.
///
/// # Errors
/// When the process is gone or may not run there.
pub(super) fn place(pid: u32, on: &CpuSet) -> Result<()> {
    let tasks = format!("/proc/{pid}/task");
    for task in fs::read_dir(&tasks).with_context(|| format!("listing {tasks}"))? {
        let name = task?.file_name();
        let tid = name.to_str().and_then(|it| it.parse().ok());
        let tid = tid
            .and_then(Pid::from_raw)
            .context("unknown format of /proc/PID/task")?;
        match sched_setaffinity(Some(tid), on) {
            // Threads end.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).context("moving a thread to a processor"),
        }
    }
    Ok(())
}

/// Only this processor.
pub(super) fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    set.set(cpu);
    set
}

/// Keeps a processor from sleeping, by a process that runs when nothing else does (`SCHED_IDLE`):
/// what a virtual processor takes to wake up is the host's, and more than what is measured.
///
/// # Errors
/// When `chrt` (util-linux) or `sh` cannot be started.
pub(super) fn keep_awake(cpu: usize) -> Result<Daemon> {
    let mut command = Command::new("chrt");
    command.args(["--idle", "0", "sh", "-c", "while :; do :; done"]);
    let daemon = Daemon::spawn("chrt", &mut command)?;
    place(daemon.pid(), &only(cpu))?;
    Ok(daemon)
}
