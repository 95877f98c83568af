//! Several nodes as one cluster.

mod builds;
mod data;
mod encrypted;
mod flush;
mod membership;
mod mixed;
mod partition;
mod reads;
mod relay;
mod roles;
mod start;
mod together;
mod users;
mod warm;
