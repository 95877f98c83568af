//! `fonn.v1.Users`.
//!
//! A change starts from the users in force here, and is judged beside this member's users file. The
//! members agree on it only if the users have not changed meanwhile. Otherwise it is made anew.

use std::sync::Arc;
use std::time::Duration;

use fonn_auth::{
    Authenticator, DEFAULT_NAMESPACE, HashError, Listed, NamespaceRecord, Records, Role,
    UserRecord, check_user_name,
};
use fonn_base::events::Topic;
use fonn_base::size::ByteCount;
use fonn_proto::grpc::v1;
use fonn_proto::grpc::v1::users_server;
use tonic::{Request, Response, Status, async_trait};

use super::Admin;
use super::caller::Caller;
use fonn_membership::users::{change, records, role};
use fonn_membership::{ChangeError, Cluster};

/// How long an agreement may take: an election and then some.
const CHANGE_DEADLINE: Duration = Duration::from_secs(10);
/// How long this member may be behind what was agreed on.
const FOLLOW_DEADLINE: Duration = Duration::from_secs(2);
/// How often a change is made anew because another change was faster.
const ATTEMPTS: usize = 5;

/// The service.
pub(super) struct UsersService(pub Admin);

/// The requested change, checked as far as it can be without knowing the other users.
struct Wanted {
    name: String,
    /// Its hash, if it gets another one.
    hash: Option<String>,
    role: Option<Role>,
    namespace: Option<String>,
    /// None: as it is; inner none: no base.
    base: Option<Option<String>>,
    /// None: as it is; inner none: no quota.
    quota: Option<Option<ByteCount>>,
}

impl UsersService {
    fn users(&self) -> Result<&Arc<Authenticator>, Status> {
        self.0.0.users.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this node has no users: start all nodes and routers with --users-file FILE, with an admin in it",
            )
        })
    }

    /// The cluster, if its members may agree on users.
    fn cluster(&self) -> Result<&Cluster, Status> {
        let cluster = self.0.node()?.cluster.as_ref();
        let cluster = cluster.ok_or_else(|| {
            Status::failed_precondition(
                "this node is in no cluster whose members could agree on it: change its --users-file and send SIGHUP",
            )
        })?;
        match cluster.tls() {
            Some(_) => Ok(cluster),
            None => Err(Status::failed_precondition(
                "members know each other by no certificate, so that anybody could be one: start all of them with \
                 --tls-client-ca FILE, or change the --users-file of each",
            )),
        }
    }

    /// Has members agree on what `make` makes of the users as they are. Answers when it is in force
    /// here, or after a while.
    async fn agree(
        &self,
        make: impl Fn(&mut Records) -> Result<(), Status>,
    ) -> Result<u64, Status> {
        let (users, cluster) = (self.users()?, self.cluster()?);
        let mut states = cluster.state();
        for _ in 0..ATTEMPTS {
            let state = Arc::clone(&states.borrow_and_update());
            let (now, _) = records(&state);
            let mut then = now.clone();
            make(&mut then)?;
            prune(&mut then);
            let judged = users.judge(&now, &then);
            judged.map_err(Status::failed_precondition)?;
            let Some(change) = change(&now, &then) else {
                return Ok(now.revision);
            };
            match cluster.propose(change, CHANGE_DEADLINE).await {
                Ok(_) => return Ok(self.in_force(now.revision + 1).await),
                Err(ChangeError::Stale(_)) => {
                    let newer = states.wait_for(|it| it.users_revision > now.revision);
                    // If it does not come this member is cut off: the next attempt fails by that.
                    let _ = tokio::time::timeout(FOLLOW_DEADLINE, newer).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Status::aborted(
            "others change users all the time: try again",
        ))
    }

    /// Waits until that revision is in force here, or for a while; which one is.
    async fn in_force(&self, revision: u64) -> u64 {
        let Ok(users) = self.users() else {
            return revision;
        };
        let mut revisions = users.revisions();
        let follow = revisions.wait_for(|it| *it >= revision);
        match tokio::time::timeout(FOLLOW_DEADLINE, follow).await {
            Ok(Ok(known)) => *known,
            _ => revision,
        }
    }

    /// Reports a change and its author.
    fn tell(&self, message: &str, caller: &Caller) {
        tracing::info!("{message} by {caller}");
        let message = format!("{message} by {caller}");
        self.0.0.events.info(Topic::Settings, message);
    }
}

/// Forgets what was said of namespaces without any of these users.
fn prune(records: &mut Records) {
    let users = &records.users;
    records
        .namespaces
        .retain(|name, it| !it.is_empty() && users.values().any(|user| user.namespace == *name));
}

impl Wanted {
    async fn of(request: v1::PutUserRequest, users: &Authenticator) -> Result<Self, Status> {
        let role = match v1::Role::try_from(request.role) {
            Ok(v1::Role::Unspecified) => None,
            Ok(v1::Role::Read) => Some(Role::Read),
            Ok(v1::Role::ReadWrite) => Some(Role::ReadWrite),
            Ok(v1::Role::Admin) => Some(Role::Admin),
            Err(_) => {
                let why = format!("there is no role {}; this node may be older", request.role);
                return Err(Status::invalid_argument(why));
            }
        };
        check_user_name(&request.name).map_err(Status::invalid_argument)?;
        let hash = match request.password {
            None => None,
            Some(password) => Some(users.hash(&password).await.map_err(|error| match error {
                HashError::Length => Status::invalid_argument(error.to_string()),
                HashError::Busy | HashError::Random => {
                    Status::resource_exhausted(error.to_string())
                }
            })?),
        };
        let said = |text: String| (!text.is_empty()).then_some(text);
        Ok(Self {
            name: request.name,
            hash,
            role,
            namespace: said(request.namespace),
            base: request.base.map(said),
            quota: request
                .quota_bytes
                .map(|bytes| (bytes > 0).then_some(ByteCount::new(bytes))),
        })
    }

    /// Makes the users as this says.
    fn make(&self, records: &mut Records, users: &Authenticator) -> Result<(), Status> {
        let name = &self.name;
        let missing = |what: &str| {
            Status::invalid_argument(format!(
                "there is no user `{name}` yet: a new one needs a {what}"
            ))
        };
        let file = users.file();
        if file.identities().iter().any(|it| *it.user == **name) {
            return Err(of_file(name));
        }
        let known = records.users.get(name);
        let hash = self.hash.clone().or(known.map(|it| it.hash.clone()));
        let role = self.role.or(known.map(|it| it.role));
        let namespace = self.namespace.clone();
        let namespace = namespace.or(known.map(|it| it.namespace.clone()));
        let user = UserRecord {
            hash: hash.ok_or_else(|| missing("password"))?,
            role: role.ok_or_else(|| missing("role"))?,
            namespace: namespace.unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
        };
        let said = records.namespaces.get(&user.namespace);
        let mut said: NamespaceRecord = said.cloned().unwrap_or_default();
        if let Some(of_file) = file.namespace(&user.namespace) {
            let namespace = &user.namespace;
            let decides = |what: &str| {
                Status::failed_precondition(format!(
                    "the users file says what the {what} of namespace `{namespace}` is: change it there, on every node and router"
                ))
            };
            if self.base.is_some() {
                return Err(decides("base"));
            }
            if self.quota.is_some() && of_file.quota.is_some() {
                return Err(decides("quota"));
            }
        }
        if let Some(base) = &self.base {
            said.base.clone_from(base);
        }
        if let Some(quota) = self.quota {
            said.quota = quota;
        }
        records.namespaces.insert(user.namespace.clone(), said);
        records.users.insert(name.clone(), user);
        Ok(())
    }
}

fn of_file(name: &str) -> Status {
    Status::failed_precondition(format!(
        "the user `{name}` is in the users file, which wins: change it there, on every node and router"
    ))
}

fn message(listed: Listed) -> v1::User {
    let source = match listed.is_of_file {
        true => v1::UserSource::File,
        false => v1::UserSource::Cluster,
    };
    v1::User {
        name: listed.name,
        role: role(listed.role).into(),
        namespace: listed.namespace.name.to_string(),
        base: listed.base.map_or_else(String::new, |it| it.to_string()),
        quota_bytes: listed.namespace.quota.map(ByteCount::bytes),
        source: source.into(),
        ignored: listed.ignored.unwrap_or_default(),
    }
}

#[async_trait]
impl users_server::Users for UsersService {
    async fn list(
        &self,
        _: Request<v1::ListUsersRequest>,
    ) -> Result<Response<v1::ListUsersResponse>, Status> {
        let users = self.users()?.list().into_iter().map(message).collect();
        Ok(Response::new(v1::ListUsersResponse { users }))
    }

    async fn put(
        &self,
        request: Request<v1::PutUserRequest>,
    ) -> Result<Response<v1::UserChangeResponse>, Status> {
        let caller = Caller::of(&self.0, &request)?;
        let users = self.users()?;
        self.cluster()?;
        let wanted = Wanted::of(request.into_inner(), users).await?;
        let revision = self.agree(|records| wanted.make(records, users)).await?;
        let name = &wanted.name;
        self.tell(&format!("the user `{name}` was put"), &caller);
        let mut listed = users.list().into_iter();
        let message = match listed.rfind(|it| it.name == *name) {
            Some(it) => format!("`{name}` has the role {} in {}", it.role, it.namespace.name),
            None => format!("`{name}` was agreed on; this member does not know it yet"),
        };
        Ok(Response::new(v1::UserChangeResponse { revision, message }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveUserRequest>,
    ) -> Result<Response<v1::UserChangeResponse>, Status> {
        let caller = Caller::of(&self.0, &request)?;
        let users = self.users()?;
        self.cluster()?;
        let name = request.into_inner().name;
        let remove = |records: &mut Records| match records.users.remove(&name) {
            Some(_) => Ok(()),
            None if users.file().identities().iter().any(|it| *it.user == *name) => {
                Err(of_file(&name))
            }
            None => Err(Status::not_found(format!(
                "there is no user `{}` that members agreed on",
                name.escape_debug()
            ))),
        };
        let revision = self.agree(remove).await?;
        self.tell(&format!("the user `{name}` was removed"), &caller);
        let message = format!("`{name}` is gone, and its connections end");
        Ok(Response::new(v1::UserChangeResponse { revision, message }))
    }
}
