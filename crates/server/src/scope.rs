//! Where the keys of a client live.

use fonn_auth::Identity;
use fonn_proto::{Base, Overlay, Space, WriterId};

/// Where the keys of a client live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Its own keyspace.
    pub space: Space,
    /// Where reads look that find nothing there.
    pub base: Option<Base>,
    /// Its overlay, in a namespace that has many.
    pub overlay: Option<Overlay>,
    /// The identity, as entries name their writer.
    pub writer: WriterId,
}

impl Scope {
    /// That of an identity in database `database`.
    #[must_use]
    pub fn of(identity: &Identity, database: u8) -> Self {
        let namespace = &identity.namespace;
        let base = namespace.base.map(|base| Space::new(base, database));
        Self {
            space: Space::new(namespace.number, database),
            base: base.map(match identity.overlay {
                None => Base::of,
                Some(_) => Base::of_overlay,
            }),
            overlay: identity.overlay,
            writer: identity.writer(),
        }
    }
}
