//! The stateless front of a cluster: it knows which member owns a key and passes requests on. And
//! `fonnctl`, the admin command.

mod check;
pub mod cli;
pub mod config;
pub mod ctl;
pub mod forward;
mod gather;
pub mod map;
pub mod metrics;
mod report;
pub mod service;
pub mod topology;
pub mod upstream;

#[cfg(test)]
mod tests;

pub use topology::{Member, MemberState, Topology, TopologyError};
