//! Logins and rights: the part that is the same for every dialect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fonn_auth::{Authenticator, Identity, Refusal, Role, Security};
use fonn_proto::memcached::text;
use fonn_proto::request::{Reply, ServerOutcome, StatsKind};
use fonn_proto::{Base, Body, Command, Failure, Overlay, ServerCommand, Space, WriterId};
use tokio::sync::watch;

use super::scope::Scope;

/// Longest value of the text protocol that is looked at as a login: more than any user and password
/// have.
const TEXT_LOGIN_LEN_MAX: usize = 2048;

/// What one connection may do; everything, where there are no users.
pub(super) struct Guard(Option<Box<Door>>);

/// The connection of a server with users.
struct Door {
    users: Arc<Authenticator>,
    changes: watch::Receiver<u64>,
    identity: Option<Identity>,
    /// The number of that identity.
    writer: WriterId,
    address: Option<IpAddr>,
    /// Whether a password came that is still in the receive buffer.
    took_password: bool,
}

impl Guard {
    /// For a connection from `peer` (`address:port`, or anything else for a local one).
    pub fn new(security: &Security, peer: &str) -> Self {
        Self(security.users.clone().map(|users| {
            Box::new(Door {
                changes: users.changes(),
                users,
                identity: None,
                writer: WriterId::NONE,
                address: peer.parse().ok().map(|peer: SocketAddr| peer.ip()),
                took_password: false,
            })
        }))
    }

    /// Whether the client may send commands on keys: there are no users, or it has logged in.
    pub fn is_admitted(&self) -> bool {
        self.0.as_ref().is_none_or(|door| door.identity.is_some())
    }

    /// Whether every client may do everything.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the user may learn only about its own namespace.
    pub fn is_confined(&self) -> bool {
        let is_admin = |identity: &Identity| identity.role.may_administer();
        !self.is_open() && !self.identity().is_some_and(is_admin)
    }

    #[inline]
    fn identity(&self) -> Option<&Identity> {
        self.0.as_ref()?.identity.as_ref()
    }

    /// Where the keys of database `database` live for the user.
    #[inline]
    pub fn space(&self, database: u8) -> Space {
        match self.identity() {
            None => Space::new(0, database),
            Some(identity) => Space::new(identity.namespace.number, database),
        }
    }

    /// Where keys are read that `space` does not have, if the user's namespace lies over another.
    #[inline]
    pub fn base_of(&self, space: Space) -> Option<Base> {
        Scope::of(self.identity()?, space.database() as u8).base
    }

    /// The overlay of the identity that is logged in, if its namespace has many.
    #[inline]
    pub fn overlay(&self) -> Option<Overlay> {
        self.identity()?.overlay
    }

    /// The identity that is logged in, as entries name their writer.
    #[inline]
    pub fn writer(&self) -> WriterId {
        self.0.as_ref().map_or(WriterId::NONE, |door| door.writer)
    }

    /// Why a request is refused, if it is.
    pub fn refuses(&self, body: &Body<'_>) -> Option<Failure> {
        let door = self.0.as_ref()?;
        let role = door.identity.as_ref().map(|identity| identity.role);
        let refused = permit(role, body).err();
        if refused.is_none() && matches!(body, Body::Server(ServerCommand::Flush { .. })) {
            return door.refuses_flush();
        }
        refused
    }

    /// Leaves out of a request what the client's role does not allow and what it can do without: a
    /// client that may not write gets no recache token, which it could never make good.
    pub fn confine(&self, body: &mut Body<'_>) {
        let Body::Data(commands) = body else {
            return;
        };
        if self.identity().is_some_and(|it| !it.role.may_write()) {
            for command in commands {
                if let Command::Get(get) = command {
                    get.claim = false;
                }
            }
        }
    }

    /// Waits until the identity that this connection speaks for is gone or has expired, or never.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn revoked(&mut self) {
        let Some(door) = &mut self.0 else {
            return std::future::pending().await;
        };
        loop {
            let identity = door.identity.as_ref();
            let wait = identity.and_then(|it| door.users.expiry_wait(it));
            let expired = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            // Both are cancel safe: a change that is not seen here is seen in the next round.
            tokio::select! {
                changed = door.changes.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                () = expired => {}
            }
            if !door.is_held() {
                return;
            }
        }
    }

    /// Whether the identity that this connection speaks for is gone or has expired.
    #[inline]
    pub fn is_revoked(&mut self) -> bool {
        let Some(door) = &mut self.0 else {
            return false;
        };
        let identity = door.identity.as_ref();
        if identity.is_some_and(|it| door.users.has_expired(it)) {
            return true;
        }
        if !door.changes.has_changed().unwrap_or(false) {
            return false;
        }
        door.changes.mark_unchanged();
        !door.is_held()
    }

    /// The user and password in a request, if it is one to log in that `reply` answers.
    pub fn credentials<'r>(
        &self,
        body: &'r Body<'_>,
        reply: &Reply<'_>,
    ) -> Option<Credentials<'r>> {
        let door = self.0.as_ref()?;
        match body {
            Body::Server(ServerCommand::Auth { user, password }) => {
                Some(Credentials { user, password })
            }
            // The text protocol has no command for it (protocol.txt, "Authentication"). A meta
            // command has no words for its outcome.
            Body::Data(commands) if matches!(reply, Reply::Text(_)) && door.identity.is_none() => {
                let [Command::Store(store)] = commands.as_slice() else {
                    return None;
                };
                if store.value.len() > TEXT_LOGIN_LEN_MAX {
                    return None;
                }
                let (user, password) = text::credentials(store.value)?;
                Some(Credentials { user, password })
            }
            _ => None,
        }
    }

    /// Whether a password came since this was asked last: what was received is to be overwritten
    /// then.
    pub fn took_password(&mut self) -> bool {
        let door = self.0.as_mut();
        door.is_some_and(|door| std::mem::take(&mut door.took_password))
    }

    /// Forgets the login.
    pub fn log_out(&mut self) {
        if let Some(door) = &mut self.0 {
            door.identity = None;
            door.writer = WriterId::NONE;
        }
    }

    /// Logs in, or fails to; an earlier login stays then.
    pub async fn log_in(&mut self, credentials: Credentials<'_>) -> ServerOutcome {
        let Some(door) = &mut self.0 else {
            return ServerOutcome::AuthNotConfigured;
        };
        let Credentials { user, password } = credentials;
        door.took_password = true;
        match door.users.check(user, password, door.address).await {
            Ok(identity) => {
                door.writer = identity.writer();
                door.identity = Some(identity);
                ServerOutcome::Done
            }
            Err(
                Refusal::Wrong
                | Refusal::UnknownToken
                | Refusal::Expired
                | Refusal::ExpiredExchange,
            ) => ServerOutcome::WrongPassword,
            Err(Refusal::Busy) => ServerOutcome::Failed(Failure::Busy),
        }
    }
}

impl Door {
    /// A flush would let other values follow the first ones of a namespace that keeps these: it is
    /// for admins.
    fn refuses_flush(&self) -> Option<Failure> {
        let identity = self.identity.as_ref()?;
        // A flush is of a namespace, so it would be one of all overlays.
        if identity.overlay.is_some() {
            return Some(Failure::ReadOnly);
        }
        let directory = self.users.directory();
        let namespace = directory.namespace(&identity.namespace.name);
        let is_kept = namespace.is_some_and(|it| it.is_write_once);
        (is_kept && !identity.role.may_administer()).then_some(Failure::ReadOnly)
    }

    fn is_held(&self) -> bool {
        self.identity
            .as_ref()
            .is_none_or(|identity| self.users.holds(identity))
    }
}

/// A user name and a password, as they came.
#[derive(Clone, Copy)]
pub(super) struct Credentials<'r> {
    user: &'r [u8],
    password: &'r [u8],
}

impl Credentials<'_> {
    /// The command as which the outcome is worded.
    pub fn command(&self) -> ServerCommand<'_> {
        ServerCommand::Auth {
            user: self.user,
            password: self.password,
        }
    }
}

/// Whether `role` (none: no login) may have `body` executed.
///
/// # Errors
/// What the client is told.
fn permit(role: Option<Role>, body: &Body<'_>) -> Result<(), Failure> {
    let is_allowed = |allowed: bool| match allowed {
        true => Ok(()),
        false => Err(Failure::ReadOnly),
    };
    let Some(role) = role else {
        return match body {
            Body::Data(_) | Body::Server(_) => Err(Failure::AuthRequired),
            // The server keeps nothing for a stranger.
            Body::Queued(_) => Err(Failure::AuthRequired),
            // They tell nothing of what is stored.
            Body::Answer | Body::LogOut | Body::Close | Body::Broken => Ok(()),
        };
    };
    match body {
        Body::Data(commands) | Body::Queued(commands) => {
            is_allowed(role.may_write() || !commands.iter().any(Command::is_write))
        }
        Body::Server(command) => is_allowed(match command {
            ServerCommand::Flush { .. } => role.may_write(),
            ServerCommand::Atomic(batch) => role.may_write() || !batch.is_write(),
            // It visits every key of the namespace.
            ServerCommand::Keys(_) => role.may_administer(),
            // Of the server as a whole, not of the user's namespace.
            ServerCommand::Stats(
                StatsKind::Reset | StatsKind::Connections | StatsKind::Settings,
            )
            | ServerCommand::ConfigGet(_)
            | ServerCommand::ConfigSet(_) => role.may_administer(),
            ServerCommand::Stats(_)
            | ServerCommand::Info(_)
            | ServerCommand::Time
            | ServerCommand::Count
            | ServerCommand::CountInSlot(_)
            | ServerCommand::ClusterView
            | ServerCommand::Scan { .. }
            | ServerCommand::RandomKey
            | ServerCommand::ClientInfo
            | ServerCommand::Auth { .. } => true,
        }),
        Body::Answer | Body::LogOut | Body::Close | Body::Broken => Ok(()),
    }
}

#[cfg(test)]
mod tests;
