//! Attacks of strangers and hostile clients, and what other clients notice of them.

mod admin;
mod auth;
mod commands;
