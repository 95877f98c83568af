//! What node and router would otherwise copy: the socket server, configuration, telemetry, metrics,
//! the admin HTTP server, tasks, shutdown, clocks.
//!
//! It moves requests and knows no tier. Nothing here decides policy; every limit and period arrives
//! as an option.

pub mod allocator;
pub mod backoff;
pub mod clock;
pub mod config;
pub mod duration;
pub mod events;
pub mod glob;
pub mod hlc;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod peer;
pub mod pool;
pub mod program;
pub mod random;
pub mod release;
pub mod route;
pub mod serve;
pub mod shutdown;
pub mod size;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod users;

mod text;
