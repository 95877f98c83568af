//! Futures at the borders of crates.
//!
//! A function that is `async` is compiled by each crate that awaits it, together with all that it
//! awaits. What a crate offers to others returns a [`BoxFuture`] instead, so it is compiled once,
//! beside its own source. That costs an allocation for each call, so what serves a request out of
//! RAM does without (docs/adr/0045-futures-at-borders.md).

use std::pin::Pin;

/// A future of which a caller knows no more than what comes of it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
