//! Keyspaces: which keys can meet.

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
