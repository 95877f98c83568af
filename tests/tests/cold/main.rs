//! The bucket below the node: what outlives it, what it costs, and what happens when it is gone.

mod evict;
mod loss;
mod operator;
mod outage;
mod requests;
mod support;
mod versions;
