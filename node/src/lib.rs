//! The cache process: client protocols in front of a RAM tier over a local LSM.

pub mod ack;
pub mod entry;
pub mod lsm;
pub mod ram;
