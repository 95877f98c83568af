//! The proof of the replication core. It drives the core that ships, not a model of it.
//!
//! - `simulation.rs` runs seeds of a cluster with faults, and `judge.rs` judges each read.
//! - `exploration.rs` visits all states of small clusters with few faults (`small.rs`).
//! - `steps.rs` has single steps of one core, and `topology.rs` single changes of a topology.
//! - `mutations.rs` switches rules off one by one, and expects that the proof notices.
//!
//! `FONN_REPLICATION_SEEDS` sets how many seeds run, and `FONN_REPLICATION_SEED` replays one.

#![allow(clippy::print_stdout, reason = "counts, and what failed, are printed")]

mod bucket;
mod clients;
mod clock;
mod cluster;
mod exploration;
mod faults;
mod flush;
mod judge;
mod mutations;
mod raft;
mod random;
mod regions;
mod setup;
mod simulation;
mod small;
mod steps;
mod store;
mod topology;
mod world;
