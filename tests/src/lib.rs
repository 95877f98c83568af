//! Fixtures for tests against real processes, and the load generator.
//!
//! Nothing in here knows how the node works inside: it starts processes, speaks the client
//! protocols to them with clients of its own, and judges the answers. The programs
//! `fonn-load` and `fonn-compare` and the suites in `tests/` are thin users of these modules.

pub mod bucket;
pub mod certificates;
pub mod checker;
pub mod client;
pub mod cluster;
pub mod compare;
pub mod component;
pub mod ctl;
pub mod delay;
pub mod history;
pub mod issuer;
pub mod links;
pub mod load;
pub mod node;
pub mod peers;
pub mod process;
pub mod program;
pub mod project;
pub mod promised;
pub mod reflection;
pub mod release;
pub mod rng;
pub mod router;
pub mod sccache;
pub mod secured;
pub mod spilled;
pub mod traffic;
pub mod usage;
pub mod values;
