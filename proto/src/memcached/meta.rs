//! The memcached meta protocol: `mg ms md ma me mn`.
//!
//! The lines come from the same stream as those of the [`text`](super::text) dialect, whose parser
//! calls [`parse_line`] for them. Rules are those of memcached's `doc/protocol.txt` ("Meta
//! Commands"); error lines and what quiet mode leaves out are those of memcached 1.6.18, compared
//! reply by reply. `E`, `x`, and `s` and `N` of `ms` came with later versions of 1.6 and are here
//! too.
//!
//! | command | codes | left out with `q` | flags that act | flags that return |
//! |---|---|---|---|---|
//! | `mg` | `VA` `HD` `EN` | `EN` | `b E N q R T u v` | `c f h k l O s t`, then `Z X W` |
//! | `ms` | `HD` `NS` `EX` `NF` | `HD` | `b C E F I M N q T` | `c k O s` |
//! | `md` | `HD` `EX` `NF` | `HD` | `b C E I q T x` | `k O` |
//! | `ma` | `VA` `HD` `NS` `EX` `NF` | `VA` `HD` | `b C D E J M N q T v` | `c k O t` |
//! | `me` | `ME` `EN` | none | `b` | none |
//! | `mn` | `MN` | none | none | none |
//!
//! As in memcached every command accepts every flag and ignores those that mean nothing to it,
//! among them `P` and `L`, which are for proxies. Returned flags are in the order of the request.

#![deny(clippy::indexing_slicing)]

mod base64;
mod command;
mod flags;
mod reply;

#[cfg(test)]
mod tests;

pub use reply::Reply;

pub(super) use base64::KeyBuffer;
pub(super) use command::parse_line;
