//! Several nodes as one cluster.

mod builds;
mod data;
mod encrypted;
mod membership;
mod partition;
mod reads;
