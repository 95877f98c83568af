//! Attacks of clients, as they can be made over the network: each gets no more than
//! docs/operations/threat-model.md says.

#![allow(
    clippy::print_stdout,
    reason = "what other clients keep under attack is printed"
)]

mod admin;
mod auth;
mod commands;
mod connections;
mod descriptors;
mod felt;
mod threads;
