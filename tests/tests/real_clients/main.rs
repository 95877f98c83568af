//! The clients that people use, as they are installed: compile caches, command line tools,
//! libraries.

mod ccache;
mod cluster;
mod encrypted;
mod libraries;
mod sccache;
mod tools;
