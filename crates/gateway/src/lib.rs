//! The HTTP front for build tools.
//!
//! It translates the HTTP cache protocols of build tools into the command model and back. Node and
//! router mount it beside their client port, over the same service, so both have one key space: the
//! key of an entry is the path of its URL. It is not a proxy or a file server, and it knows no tier
//! and no topology.
//!
//! Invariants:
//! - Credentials are checked before a request is looked at. A request without valid ones learns
//!   nothing about entries.
//! - A read that fails is a miss (404), within the deadline. An empty 200 is never a miss.
//! - What a client sends is charged to the memory budget as it arrives. A value that is longer than
//!   an entry may be is stored in chunks. One above 10 GiB is refused before it is read.
//! - A value under a content address is stored only after its digest was verified.
//!
//! Entry points: [`Front`] answers requests, [`Gateway`] serves connections, [`Store`] is what both
//! stand on, [`mount`] is how a program gets them.

mod actions;
mod answer;
mod artifact;
mod charged;
mod dav;
mod events;
mod exchange;
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod leftover;
mod life;
mod long;
mod metrics;
pub mod mount;
mod outstanding;
mod packed;
mod payload;
mod range;
mod receive;
mod remote_metrics;
mod report;
mod route;
mod server;
mod service;
mod store;
#[cfg(test)]
mod tests;
mod tool;
mod turns;
mod unbroken;
mod uploads;
mod usage;

pub use self::handler::{Front, Options, Peer};
pub use self::life::Times;
pub use self::report::ToolsReport;
pub use self::route::{Dialect, Operation, Route, RouteError, route};
pub use self::server::{Bound, Gateway, GatewayError};
pub use self::service::Served;
pub use self::store::{Charge, Form, Found, Probed, PutMode, PutOutcome, Store};
pub use self::tool::Tool;
pub use self::usage::{ToolUse, Use};
