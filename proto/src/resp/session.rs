//! What a connection has chosen: protocol version, database, names; and its transaction.

use super::encode::Protocol;
use super::transaction::Transaction;
use super::wording::{BAD_CLIENT_NAME, ReplyError};
use crate::Redirects;

/// Databases that `SELECT` can choose from, counted from 0.
pub const DATABASE_COUNT: u8 = 16;

/// Longest name of a connection or library, in bytes: they are kept as long as the connection.
const NAME_LEN_MAX: usize = 1024;

/// The state of one connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) database: u8,
    /// Reads do not count as a use (`CLIENT NO-TOUCH`).
    pub(super) no_touch: bool,
    /// Its client finds owners by itself: it has asked for them, or used what only such clients
    /// use.
    pub(super) knows_owners: bool,
    /// Any owner may answer its reads (`READONLY`).
    pub(super) reads_replicas: bool,
    /// The next command is for this member whichever member owns its key (`ASKING`).
    pub(super) is_asking: bool,
    /// What is watched or queued.
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) name: String,
    pub(super) library_name: String,
    pub(super) library_version: String,
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            protocol: Protocol::Resp2,
            database: 0,
            no_touch: false,
            knows_owners: false,
            reads_replicas: false,
            is_asking: false,
            transaction: None,
            name: String::new(),
            library_name: String::new(),
            library_version: String::new(),
        }
    }

    /// `RESET`. What the client told about its library stays, as it does in Redis.
    pub(super) fn reset(&mut self) {
        self.protocol = Protocol::Resp2;
        self.database = 0;
        self.no_touch = false;
        self.knows_owners = false;
        self.reads_replicas = false;
        self.is_asking = false;
        self.transaction = None;
        self.name.clear();
    }

    /// Whether commands are queued instead of being carried out.
    #[inline]
    pub(super) fn is_queueing(&self) -> bool {
        let transaction = self.transaction.as_ref();
        transaction.is_some_and(|transaction| transaction.is_queueing())
    }

    /// Forgets a transaction that is over.
    #[inline]
    pub(super) fn end_transaction(&mut self) {
        if self.transaction.as_ref().is_some_and(|it| it.is_over()) {
            self.transaction = None;
        }
    }

    /// Lets `EXEC` carry out nothing; returns whether that was so before.
    pub(super) fn spoil_transaction(&mut self) -> bool {
        match &mut self.transaction {
            Some(transaction) if transaction.is_queueing() => {
                std::mem::replace(&mut transaction.is_spoiled, true)
            }
            _ => false,
        }
    }

    /// How the client wants to be told of other owners of the key of the next command, and whether
    /// that reads only.
    #[inline]
    pub(super) fn take_redirects(&mut self) -> impl Fn(bool) -> Redirects + use<> {
        let is_asking = std::mem::take(&mut self.is_asking);
        let (knows_owners, reads_replicas) = (self.knows_owners, self.reads_replicas);
        move |is_write| match (knows_owners && !is_asking, reads_replicas && !is_write) {
            (false, _) => Redirects::Never,
            (true, true) => Redirects::ToOwner,
            (true, false) => Redirects::ToPrimary,
        }
    }
}

/// A name that a client gives itself: printable characters without space, or empty for none.
///
/// # Errors
/// With the words of Redis for a name with other characters.
pub(super) fn client_name(name: &[u8]) -> Result<&str, ReplyError> {
    printable(name).ok_or(BAD_CLIENT_NAME)
}

/// As [`client_name`], for the attributes of `CLIENT SETINFO`.
pub(super) fn library_attribute<'a>(
    attribute: &str,
    value: &'a [u8],
) -> Result<&'a str, ReplyError> {
    printable(value).ok_or_else(|| {
        format!("ERR {attribute} cannot contain spaces, newlines or special characters.").into()
    })
}

fn printable(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text).ok()?;
    (text.len() <= NAME_LEN_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())).then_some(text)
}
