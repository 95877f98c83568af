//! Cluster membership.

mod journal;
mod log_store;
pub mod map;
pub mod member;
mod snapshot;
pub mod state;
mod state_machine;
#[cfg(test)]
mod storage_tests;
mod types;
