//! Sources of attempts to log in, and the networks around them.

use std::net::IpAddr;

/// Where an attempt comes from. One IPv6 customer has a /64, so that is one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A Unix socket or an unknown peer.
    Local,
    /// An IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6([u8; 8]),
}

/// The sources that have the first bits of an address in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Network {
    prefix: Source,
    bits: u8,
}

impl Network {
    /// What the addresses of the network begin with.
    pub(super) fn prefix(self) -> Source {
        self.prefix
    }
}

impl Source {
    /// The source that an address belongs to.
    #[must_use]
    pub fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V4(address)) => Self::V4(address.octets()),
            Some(IpAddr::V6(address)) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Self::V6(prefix)
            }
        }
    }

    /// The networks that the source is in, from the widest to the source alone.
    pub(super) fn networks(self) -> [Network; 3] {
        let prefixes = match self {
            Self::Local => [(self, 0), (self, 1), (self, 2)],
            Self::V4([a, b, c, _]) => [
                (Self::V4([a, b, 0, 0]), 16),
                (Self::V4([a, b, c, 0]), 24),
                (self, 32),
            ],
            Self::V6([a, b, c, d, e, f, ..]) => [
                (Self::V6([a, b, c, d, 0, 0, 0, 0]), 32),
                (Self::V6([a, b, c, d, e, f, 0, 0]), 48),
                (self, 64),
            ],
        };
        prefixes.map(|(prefix, bits)| Network { prefix, bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_ipv6_network_is_one_source() {
        let of = |text: &str| Source::of(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), Source::V4([10, 0, 0, 1]));
    }

    #[test]
    fn sources_have_those_networks_in_common_that_their_addresses_are_in() {
        let common = |first: &str, second: &str| {
            let of = |text: &str| Source::of(Some(text.parse().unwrap())).networks();
            of(first)
                .iter()
                .filter(|it| of(second).contains(it))
                .count()
        };
        assert_eq!(common("10.0.0.0", "10.1.0.0"), 0);
        assert_eq!(common("10.0.0.0", "10.0.1.0"), 1);
        assert_eq!(common("10.0.0.0", "10.0.0.1"), 2);
        assert_eq!(common("2001:db8::", "2001:db9::"), 0);
        assert_eq!(common("2001:db8::", "2001:db8:1::"), 1);
        assert_eq!(common("2001:db8::", "2001:db8:0:1::"), 2);
        assert_eq!(common("a00::", "10.0.0.0"), 0);
    }
}
