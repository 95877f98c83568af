//! The HTTP/1.1 client of Fonn's helpers and of its login.
//!
//! [`Client`] keeps connections to one server of Fonn and calls it with a deadline. [`Connection`]
//! is one connection, for callers with a rule of their own. [`trusting`] makes the TLS
//! configuration of both. The crate follows no redirect, uses no proxy and knows no cookie.
//!
//! Invariants:
//! - Every exchange of [`Client`] ends within the deadline of its [`Server`].
//! - A response whose end was not read never shares its connection with a later request.
//! - After some failures in a row the client pauses, so that a build without a server loses a
//!   second and not one for each request.

mod authorities;
mod client;
mod connection;

pub use self::authorities::{NoAuthority, trusting};
pub use self::client::{Answer, Client, Failed, Server, ServerError};
pub use self::connection::{Body, ConnectError, Connection, empty, whole};
