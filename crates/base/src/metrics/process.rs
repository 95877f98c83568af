//! Metrics of the process itself, under the names that Prometheus client libraries agree on
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>).

use super::Metrics;
use crate::clock::Clock;
use crate::memory;

/// Publishes resident memory, CPU time, open files and the start time, for which the time of this
/// call is taken: make it early.
pub fn register(metrics: &Metrics, clock: &Clock) {
    let started_seconds = clock.wall_ms() as f64 / 1000.0;
    metrics.on_scrape(move |snapshot| {
        if let Some(resident) = memory::resident() {
            snapshot.gauge(
                "process_resident_memory_bytes",
                "Resident memory of the process.",
                &[],
                resident.bytes() as f64,
            );
        }
        if let Some(open) = memory::open_fds() {
            snapshot.gauge(
                "process_open_fds",
                "Open file descriptors.",
                &[],
                open as f64,
            );
        }
        snapshot.counter_f64(
            "process_cpu_seconds_total",
            "CPU time of the process, in user mode and in the kernel.",
            &[],
            memory::cpu_time().as_secs_f64(),
        );
        snapshot.gauge(
            "process_start_time_seconds",
            "Unix time at which the process started.",
            &[],
            started_seconds,
        );
    });
}
