//! Tests of the peer protocol.

#![allow(clippy::arithmetic_side_effects)]

mod golden;
mod hello;
mod robust;
mod round_trip;
mod strategies;
