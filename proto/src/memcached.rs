//! The memcached protocols: text, meta and binary.

pub mod binary;
pub mod meta;
pub mod text;

/// What `version` answers: the memcached whose behaviour is followed, then our own version.
///
/// Clients read a number of three parts from its start and act on it. libmemcached, which is below
/// most scripting languages, refuses a server whose first part is 0.
pub const VERSION: &str = concat!("1.6.18-fonn-", env!("CARGO_PKG_VERSION"));
