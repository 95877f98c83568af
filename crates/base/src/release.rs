//! Which version of the software a process says it is.

use fonn_proto::peer;

/// What a process tells others about its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Of the software, like `1.4.2`.
    pub version: String,
    /// The newest version of the peer protocol that it speaks.
    pub peer_version: u16,
}

impl Release {
    /// The release of this build.
    #[must_use]
    pub fn this() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            peer_version: peer::VERSION,
        }
    }
}
