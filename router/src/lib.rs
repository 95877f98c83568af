//! The stateless front of a cluster: it knows which member owns a key and passes requests on. And
//! `fonnctl`, the admin command.

pub mod ctl;
pub mod topology;

pub use topology::{Member, MemberState, Topology, TopologyError};
