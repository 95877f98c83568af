//! The way of a command to the owner of its key: the map, connections to the members, tries and
//! answers.
//!
//! Routers send all commands this way, nodes those on keys that others own. The caller keeps the
//! map up to date: [`Map::offer`].

mod budget;
mod forward;
mod map;
mod server;
mod stats;
mod topology;
mod upstream;
mod writers;

pub use forward::{Again, Came, Forwarded, Forwarder, envelope, is_repeatable};
pub use map::Map;
pub use stats::{Event, Events};
pub use topology::{Topology, TopologyError};
pub use upstream::{Target, Upstreams};
pub use writers::tell_writers;
