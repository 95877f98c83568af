//! What protects a server: its users and its certificate.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;

use crate::Authenticator;
use crate::tls::Tls;

/// How a server protects itself. By default not at all: for listeners that only the machine itself
/// reaches.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// The users; without them every client may do everything in the namespace `default`.
    pub users: Option<Arc<Authenticator>>,
    /// The certificate; without it no connection is encrypted.
    pub tls: Option<Arc<Tls>>,
    /// Whether the operator trusts the network (`--insecure`): other machines may speak without TLS
    /// though there is a certificate, and read figures without a login though there are users.
    pub is_insecure: bool,
}

impl Security {
    /// The certificate by which members and routers know each other, if there is an authority of
    /// theirs.
    #[must_use]
    pub fn members_tls(&self) -> Option<Arc<Tls>> {
        self.tls.clone().filter(|tls| tls.client().is_some())
    }

    /// What TLS connections begin with, if there is TLS.
    ///
    /// Where users have passwords a client needs no certificate; where they have none, a
    /// certificate of `--tls-client-ca` is the only proof of identity, if that was given.
    #[must_use]
    pub fn server_config(&self) -> Option<Arc<ServerConfig>> {
        let tls = self.tls.as_ref()?;
        let of_members = match self.users {
            Some(_) => None,
            None => tls.members_server(),
        };
        Some(of_members.unwrap_or_else(|| tls.server()))
    }

    /// Whether a client at this address may speak without TLS.
    #[must_use]
    pub fn takes_plaintext_from(&self, address: IpAddr) -> bool {
        self.tls.is_none() || self.trusts(address)
    }

    /// Whether clients at this address are trusted not to eavesdrop: the same machine, or a
    /// network that the operator vouches for.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.is_insecure || address.to_canonical().is_loopback()
    }
}
