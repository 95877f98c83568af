//! The cold tier: what outlives every node, kept as objects in a bucket or a directory.
//!
//! This crate knows stores of immutable objects and what is written into them; it does not know
//! what a request, a reactor or a local disk tier is.

pub mod store;

pub use store::{ObjectKey, ObjectStore, StoreError, StoreErrorKind};
