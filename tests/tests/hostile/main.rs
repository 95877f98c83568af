//! Attacks of clients, as they can be made over the network: each gets no more than docs/operations/threat-model.md says.

mod admin;
mod auth;
mod commands;
mod connections;
