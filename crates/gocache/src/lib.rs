//! A helper of the go command (`GOCACHEPROG`, Go 1.24 and later) that keeps its build cache in
//! Fonn.
//!
//! The go command starts the helper and asks it for outputs of actions, over standard input and
//! output. The helper answers from a directory of its own, else from the server, in one round trip
//! for each hit. What the go command stores goes into the directory at once and to the server in
//! the background. A server that is slow, refuses or is away costs hits and never a build. Neither
//! does a directory that cannot be used.

mod local;
mod protocol;
mod record;
mod remote;
mod session;

pub use fonn_http_client::{Failed, Server, ServerError};
pub use local::StoreError;
pub use session::{Options, Summary, Warning, run};
