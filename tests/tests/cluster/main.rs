//! Several nodes as one cluster.

mod membership;
