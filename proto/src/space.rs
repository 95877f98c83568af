//! Keyspaces: which keys can meet.

/// A keyspace: the namespace of a user and the database that the client selected in it. Keys of
/// different spaces never meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Space(pub u32);

impl Space {
    /// Databases in a namespace (Redis's default number of them).
    pub const DATABASES: u32 = 16;

    /// The highest number of a namespace.
    pub const NAMESPACE_MAX: u32 = u32::MAX / Self::DATABASES;

    /// Database `database` of namespace `namespace`.
    ///
    /// # Panics
    /// If the database is not below [`Space::DATABASES`], or the namespace above
    /// [`Space::NAMESPACE_MAX`].
    #[must_use]
    pub fn new(namespace: u32, database: u8) -> Self {
        assert!(
            u32::from(database) < Self::DATABASES && namespace <= Self::NAMESPACE_MAX,
            "space out of range"
        );
        Self(namespace * Self::DATABASES + u32::from(database))
    }

    /// All databases of a namespace.
    pub fn of_namespace(namespace: u32) -> impl Iterator<Item = Self> {
        (0..Self::DATABASES).map(move |database| Self::new(namespace, database as u8))
    }

    /// The database in its namespace.
    #[must_use]
    pub fn database(self) -> u32 {
        self.0 % Self::DATABASES
    }

    /// The namespace it belongs to.
    #[must_use]
    pub fn namespace(self) -> u32 {
        self.0 / Self::DATABASES
    }
}
