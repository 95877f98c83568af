//! The stateless front of a cluster: it knows which member owns a key and passes requests on.

pub mod topology;

pub use topology::{Member, MemberState, Topology, TopologyError};
