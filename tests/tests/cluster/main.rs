//! Several nodes as one cluster.

mod builds;
mod churn;
mod data;
mod encrypted;
mod flush;
mod isolation;
mod load;
mod membership;
mod mixed;
mod overlay;
mod partition;
mod quorum;
mod reads;
mod reflection;
mod relay;
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
