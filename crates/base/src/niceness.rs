//! Threads that let the reactors go first.

/// Has the calling thread, and those that it starts, run after the reactors when processors are
/// scarce. Its nice value becomes `niceness`; a reactor has 0.
pub fn stand_back(niceness: i32) {
    let tid = rustix::thread::gettid();
    // The thread works all the same if that is refused.
    let _ = rustix::process::setpriority_process(Some(tid), niceness);
}
