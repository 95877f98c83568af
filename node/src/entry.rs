//! What both tiers agree on about an entry: where its key lives, and the facts beside its value.

use fonn_proto::Version;

/// A keyspace: the namespace of a user and the database that the client selected in it. Keys of
/// different spaces never meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(pub u16);

impl Space {
    /// Databases in a namespace (Redis's default number of them).
    pub const DATABASES: u16 = 16;

    /// Database `database` of namespace `namespace`.
    ///
    /// # Panics
    /// If the database is not below [`Space::DATABASES`] or the namespace not below 4096.
    #[must_use]
    pub fn new(namespace: u16, database: u8) -> Self {
        assert!(
            u16::from(database) < Self::DATABASES && namespace < 4096,
            "space out of range"
        );
        Self(namespace * Self::DATABASES + u16::from(database))
    }

    /// All databases of a namespace.
    pub fn of_namespace(namespace: u16) -> impl Iterator<Item = Self> {
        (0..Self::DATABASES).map(move |database| Self::new(namespace, database as u8))
    }

    /// The database in its namespace.
    #[must_use]
    pub fn database(self) -> u16 {
        self.0 % Self::DATABASES
    }

    /// The namespace it belongs to.
    #[must_use]
    pub fn namespace(self) -> u16 {
        self.0 / Self::DATABASES
    }
}

/// The facts about an entry that every tier keeps beside the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Orders the copies of an entry: the highest wins.
    pub version: Version,
    /// The CAS token where the client chose one (meta `E`); the version is the token otherwise.
    pub cas_override: Option<u64>,
    /// The client's opaque flags.
    pub flags: u32,
    /// Unix time in milliseconds at which the entry expires; 0 means never.
    pub expires_at_ms: u64,
    /// Marked stale by meta `I`: still served, but somebody should recache it.
    pub stale: bool,
    /// A client holds the right to recache (meta `W` was given out).
    pub token_sent: bool,
}

impl Meta {
    /// Facts of a fresh entry.
    #[must_use]
    pub fn new(version: Version, flags: u32, expires_at_ms: u64) -> Self {
        Self {
            version,
            cas_override: None,
            flags,
            expires_at_ms,
            stale: false,
            token_sent: false,
        }
    }

    /// The token that clients see and compare with.
    #[must_use]
    pub fn cas(&self) -> u64 {
        self.cas_override.unwrap_or(self.version)
    }

    /// Whether the entry has expired at `now_ms`.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms != 0 && self.expires_at_ms <= now_ms
    }
}
