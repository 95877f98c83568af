//! What all crates agree on: the facts of entries, acknowledgements of the disk, wakes between
//! reactors and threads, and what every program would otherwise write itself: configuration in
//! layers, metrics, logs, tasks, shutdown, clocks, sizes.
//!
//! It knows no tier, no socket and no user. Nothing here decides policy: every limit and period
//! arrives as an option.

pub mod ack;
pub mod allocator;
pub mod backoff;
pub mod boxed;
pub mod breaker;
pub mod causes;
pub mod clock;
pub mod config;
pub mod device;
pub mod duration;
pub mod entry;
pub mod events;
pub mod file;
pub mod glob;
pub mod hlc;
pub mod listen;
pub mod memory;
pub mod metrics;
pub mod niceness;
pub mod pool;
pub mod prefetch;
pub mod random;
pub mod reactor;
pub mod release;
pub mod shutdown;
pub mod size;
pub mod tasks;
pub mod telemetry;

mod text;
