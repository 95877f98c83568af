//! The stateless front of a cluster: it knows which member owns a key and passes requests on.

pub mod address;
pub mod admin;
mod check;
pub mod cli;
pub mod config;
pub mod follow;
mod gather;
pub mod metrics;
mod report;
pub mod service;
mod users;

#[cfg(test)]
mod tests;
