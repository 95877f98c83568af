//! The bucket below the node: what outlives it, what it costs, and what happens when it is gone.

mod auto;
mod clock;
mod large;
mod operator;
mod purge;
mod requests;
mod sccache;
mod versions;
