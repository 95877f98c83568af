//! The HTTP port for build tools, from the outside.

mod access;
mod guarded;
mod keys;
mod limits;
mod router;
mod start;
mod tools;
