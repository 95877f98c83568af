//! CAS tokens under names that both servers share: row `cas`.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Result;

use crate::wire::Wire;

/// The tokens of one server, by key and in their order.
///
/// Tokens are kept apart by key, because a token of one key may by accident equal a token of
/// another key on one of the servers.
#[derive(Default)]
pub struct Tokens {
    told: HashMap<String, Vec<u64>>,
}

impl Tokens {
    /// The name of a token that the server told for `key`. The same token has the same name on both
    /// servers.
    pub fn name(&mut self, key: &str, token: u64) -> String {
        if token == 0 {
            return "0".to_owned();
        }
        let told = self.told.entry(key.to_owned()).or_default();
        let known = told.iter().position(|it| *it == token);
        let number = known.unwrap_or_else(|| {
            told.push(token);
            told.len() - 1
        });
        format!("#{number}")
    }

    /// The newest token of `key`, or a token that no entry has.
    pub fn last(&self, key: &str) -> u64 {
        let told = self.told.get(key);
        told.and_then(|it| it.last()).copied().unwrap_or(UNUSED)
    }

    /// The oldest token of `key`, or a token that no entry has.
    pub fn first(&self, key: &str) -> u64 {
        let told = self.told.get(key);
        told.and_then(|it| it.first()).copied().unwrap_or(UNUSED)
    }
}

/// The token of [`PRIME`], which no key of a sequence has. It is lower than all tokens of
/// sequences.
pub const UNUSED: u64 = 1;

/// Takes the lowest token of a memcached that has just been started.
pub const PRIME: &str = "set differential-prime 0 0 1\r\nx";

/// A connection of the text protocol, to a server that was sent [`PRIME`].
pub fn primed(addr: SocketAddr) -> Result<Wire> {
    let mut wire = Wire::connect_text(addr)?;
    wire.send(format!("{PRIME}\r\nmn\r\n").as_bytes())?;
    wire.until_no_op()?;
    Ok(wire)
}
