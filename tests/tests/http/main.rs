//! The HTTP port for build tools, from the outside.

mod access;
mod actions;
mod bazel;
mod beside;
mod ccache_storage;
mod clients;
mod consistent;
mod documented;
mod guarded;
mod keys;
mod large;
mod limits;
mod long;
mod oidc;
mod packed;
mod poisoning;
mod remote;
mod remote_rights;
mod remote_uses;
mod router;
mod start;
mod tokens;
mod tools;
mod turborepo;
mod uses;
mod write_once;
