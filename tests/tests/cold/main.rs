//! The bucket below the node: what outlives it, what it costs, and what happens when it is gone.

mod auto;
mod clock;
mod evict;
mod kills;
mod large;
mod loss;
mod lost_member;
mod operator;
mod outage;
mod purge;
mod requests;
mod sccache;
mod support;
mod under_load;
mod versions;
