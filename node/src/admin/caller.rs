//! The namespace that a call is for, and whether it is the caller's own.

use std::fmt;
use std::sync::Arc;

use fonn_auth::{Directory, Identity};
use tonic::{Request, Status};

use super::{Admin, DEFAULT_NAMESPACE};

/// The caller.
pub(super) enum Caller {
    /// A client without a login, since there are no users.
    Unnamed,
    /// A user, among these.
    User(Identity, Arc<Directory>),
}

impl Caller {
    /// The sender of a request, as the port found out.
    ///
    /// # Errors
    /// UNAUTHENTICATED if it did not, though there are users.
    pub(super) fn of<T>(admin: &Admin, request: &Request<T>) -> Result<Self, Status> {
        let Some(users) = &admin.0.users else {
            return Ok(Self::Unnamed);
        };
        match request.extensions().get::<Identity>() {
            Some(identity) => Ok(Self::User(identity.clone(), users.directory())),
            None => Err(Status::unauthenticated("a login is needed")),
        }
    }

    /// The number of a namespace that the caller may look into: the own one, also if it is not
    /// named, what lies under it, and every one for admins.
    ///
    /// # Errors
    /// NOT_FOUND, or PERMISSION_DENIED if it is another's: whether there is such a one is not told.
    pub(super) fn reads(&self, name: &str) -> Result<u32, Status> {
        self.number(name, |number, _| self.may_read(number))
    }

    /// The stored key of the caller's `key` in a namespace. In its own one, that of its overlay, if
    /// the namespace has many.
    pub(super) fn stored_key(&self, namespace: u32, key: Vec<u8>) -> Vec<u8> {
        match self {
            Self::User(identity, _) if identity.namespace.number == namespace => {
                match identity.overlay {
                    Some(overlay) => overlay.key(&key),
                    None => key,
                }
            }
            _ => key,
        }
    }

    /// Whether the caller may look into a namespace.
    pub(super) fn may_read(&self, number: u32) -> bool {
        match self {
            Self::Unnamed => true,
            Self::User(identity, _) => {
                identity.role.may_administer()
                    || identity.namespace.number == number
                    || identity.namespace.base == Some(number)
            }
        }
    }

    /// The number of a namespace that the caller may change: the own one, and every one for admins.
    ///
    /// # Errors
    /// As [`Caller::reads`].
    pub(super) fn changes(&self, name: &str) -> Result<u32, Status> {
        self.number(name, |number, identity| identity.namespace.number == number)
    }

    /// Whether the caller is in one of many overlays of its namespace: it may remove no entries of
    /// others.
    pub(super) fn is_in_overlay(&self) -> bool {
        matches!(self, Self::User(identity, _) if identity.overlay.is_some())
    }

    /// Whether the caller may remove entries of a namespace at once: of one that keeps its first
    /// values, admins alone may.
    pub(super) fn may_flush(&self, number: u32) -> bool {
        match self {
            Self::Unnamed => true,
            Self::User(identity, directory) => {
                let mut namespaces = directory.namespaces().iter();
                let is_kept = namespaces.any(|it| it.number == number && it.is_write_once);
                !is_kept || identity.role.may_administer()
            }
        }
    }

    fn number(
        &self,
        name: &str,
        is_its_own: impl FnOnce(u32, &Identity) -> bool,
    ) -> Result<u32, Status> {
        let unknown = |known: &[&str]| {
            let known = known.join(", ");
            let why = format!("there is no namespace `{name}`; this node has: {known}");
            Status::not_found(why)
        };
        let (identity, directory) = match self {
            Self::Unnamed => {
                return match name {
                    "" | DEFAULT_NAMESPACE => Ok(0),
                    _ => Err(unknown(&[DEFAULT_NAMESPACE])),
                };
            }
            Self::User(identity, directory) => (identity, directory),
        };
        let is_admin = identity.role.may_administer();
        let namespaces = directory.namespaces();
        let number = match name {
            "" => Some(identity.namespace.number),
            // What was stored before there were users is in it, whether or not a user is.
            DEFAULT_NAMESPACE => Some(0),
            _ => namespaces
                .iter()
                .find(|it| &*it.name == name)
                .map(|it| it.number),
        };
        match number {
            Some(number) if is_admin || is_its_own(number, identity) => Ok(number),
            None if is_admin => {
                let others = namespaces.iter().map(|it| &*it.name);
                let others = others.filter(|it| *it != DEFAULT_NAMESPACE);
                Err(unknown(
                    &[DEFAULT_NAMESPACE]
                        .into_iter()
                        .chain(others)
                        .collect::<Vec<_>>(),
                ))
            }
            _ => Err(Status::permission_denied(format!(
                "the namespace `{name}` is not that of the {identity}, which is `{}`",
                identity.namespace.name
            ))),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed => f.write_str("the admin service"),
            Self::User(identity, _) => write!(f, "the {identity}"),
        }
    }
}
