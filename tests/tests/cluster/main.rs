//! Several nodes as one cluster.

mod encrypted;
mod flush;
mod isolation;
mod membership;
mod moves;
mod overlay;
mod pull_requests;
mod purge;
mod quorum;
mod reflection;
mod relay;
mod removed;
mod returns;
mod roles;
mod routers;
mod settings;
mod start;
mod together;
mod tokens;
mod transactions;
mod users;
mod warm;
mod write_once;
