//! The cache process: client protocols in front of a RAM tier over a local LSM.

pub mod admin;
pub mod cli;
pub mod cold;
pub mod config;
pub mod engine;
pub mod flush;
pub mod metrics;
pub mod namespaces;
pub mod replication;
pub mod report;
pub mod server;
pub mod stats;
pub mod users;
pub mod writers;
