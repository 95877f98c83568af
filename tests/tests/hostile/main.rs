//! Attacks: strangers can do nothing, and tenants cannot hurt each other.

mod auth;
mod commands;
