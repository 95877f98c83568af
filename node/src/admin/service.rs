//! `fonn.v1.Admin`.

use std::sync::Arc;

use fonn_auth::NamesOfWriters;
use fonn_base::entry::{Meta, Space};
use fonn_base::events::Topic;
use fonn_proto::grpc::v1::admin_server;
use fonn_proto::grpc::v1::{
    CountWrittenRequest, DeleteKeyRequest, DeleteKeyResponse, FlushRequest, FlushResponse, KeyCopy,
    KeyRequest, KeyResponse, ListNamespacesRequest, ListNamespacesResponse, PurgeRequest,
    PurgeResponse, SetCodecRequest, SetCodecResponse, StatusRequest, StatusResponse, Tier,
    WarmRequest,
};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Command, Delete, Failure, Outcome, ServerCommand, WriterId, placement};
use fonn_server::{Client, Service as _, carry_out};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, async_trait};

use super::caller::Caller;
use super::cold::ColdCopy;
use super::warm::{self, Wanted};
use super::{Admin, codecs, namespaces, purge, status};
use crate::engine::{Acks, Engine, Job, Located};
use fonn_membership::Cluster;

/// Longest key of any protocol.
const KEY_LEN_MAX: usize = 32 << 10;

/// The service.
pub(super) struct AdminService {
    admin: Admin,
}

impl AdminService {
    pub(super) fn new(admin: Admin) -> Self {
        Self { admin }
    }
}

/// A database of a namespace.
fn space(namespace: u32, database: u32) -> Result<Space, Status> {
    match u8::try_from(database) {
        Ok(database) if u32::from(database) < Space::DATABASES => {
            Ok(Space::new(namespace, database))
        }
        _ => Err(Status::invalid_argument(format!(
            "there is no database {database}; they are 0 to {}",
            Space::DATABASES - 1
        ))),
    }
}

fn check_key(key: &[u8]) -> Result<(), Status> {
    match key.len() {
        1..=KEY_LEN_MAX => Ok(()),
        len => Err(Status::invalid_argument(format!(
            "a key of {len} bytes cannot be; keys have 1 to {KEY_LEN_MAX}"
        ))),
    }
}

/// The names of the owners of a key, by rank.
fn owners(cluster: &Cluster, key: &[u8]) -> Vec<String> {
    let map = cluster.map().borrow().clone();
    let owners = map.owners(placement::slot(key));
    owners.map(|member| member.id.clone()).collect()
}

fn copy(tier: Tier, located: Located, writers: &Writers<'_>) -> KeyCopy {
    let meta = located.meta.as_ref();
    let form = located.form.as_ref();
    KeyCopy {
        tier: tier.into(),
        version: located.version,
        tombstone: located.tombstone,
        codec: form.map_or_else(String::new, |form| form.codec.clone()),
        value_bytes: form.map_or(0, |form| form.value_len as u64),
        stored_bytes: form.map_or(0, |form| form.stored_len as u64),
        flags: located.meta.map_or(0, |meta| meta.flags),
        expires_at_ms: located.meta.map_or(0, |meta| meta.expires_at_ms),
        dirty: located.dirty,
        location: located.place,
        damaged: !located.tombstone && form.is_none(),
        writer: meta.map_or_else(String::new, |meta| writers.names.name(meta.writer)),
        purged: meta.is_some_and(|meta| writers.is_purged(meta)),
    }
}

/// What is known of the writers of entries in a space.
struct Writers<'a> {
    engine: &'a Engine,
    space: Space,
    names: NamesOfWriters<'a>,
}

impl Writers<'_> {
    fn is_purged(&self, meta: &Meta) -> bool {
        self.engine.is_purged(self.space, meta)
    }
}

fn cold_copy(found: ColdCopy, writers: &Writers<'_>) -> KeyCopy {
    let (entry, record) = (found.entry, found.record.as_ref());
    let meta = record.map(|record| Meta {
        writer: WriterId::new(record.facts.writer),
        ..Meta::new(entry.at, record.facts.flags, entry.expires_at_ms)
    });
    let segment = found.segment.map(|name| name.short());
    let segment = segment.as_deref().unwrap_or("none yet");
    KeyCopy {
        tier: Tier::Cold.into(),
        version: entry.at,
        tombstone: entry.tombstone,
        codec: String::new(),
        value_bytes: record.map_or(0, |record| record.value.len() as u64),
        stored_bytes: u64::from(entry.len),
        flags: meta.map_or(0, |meta| meta.flags),
        expires_at_ms: entry.expires_at_ms,
        dirty: false,
        location: format!("segment {segment} at {}", entry.offset),
        damaged: false,
        writer: meta.map_or_else(String::new, |meta| writers.names.name(meta.writer)),
        purged: meta.is_some_and(|meta| writers.is_purged(&meta)),
    }
}

#[async_trait]
impl admin_server::Admin for AdminService {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let mut status = status::status(&self.admin);
        if let Some(cold) = self.admin.node().ok().and_then(|node| node.cold.as_ref()) {
            status.cold = Some(cold.status().await);
        }
        Ok(Response::new(status))
    }

    async fn key(&self, request: Request<KeyRequest>) -> Result<Response<KeyResponse>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let node = self.admin.node()?;
        let namespace = caller.reads(&request.namespace)?;
        let space = space(namespace, request.database)?;
        check_key(&request.key)?;
        let key = caller.stored_key(namespace, request.key);
        let owners = node.cluster.as_ref().map(|it| owners(it, &key));
        let owners = owners.unwrap_or_default();
        let engine = &node.shared.service.engine;
        let writers = Writers {
            engine,
            space,
            names: NamesOfWriters::new(self.admin.0.users.as_deref()),
        };
        let mut copies = Vec::new();
        if let Some(located) = engine.locate_in_ram(space, &key) {
            copies.push(copy(Tier::Ram, located, &writers));
        }
        let (on_disk, key_on_disk) = (Arc::clone(engine), key.clone());
        let located =
            tokio::task::spawn_blocking(move || on_disk.locate_on_disk(space, &key_on_disk))
                .await
                .map_err(|_| {
                    Status::internal("looking the key up on disk panicked; the log has more")
                })?
                .map_err(|error| Status::unavailable(error.to_string()))?;
        copies.extend(located.map(|located| copy(Tier::Disk, located, &writers)));
        if let Some(cold) = &node.cold {
            let found = cold.find(space, key).await?;
            copies.extend(found.map(|found| cold_copy(found, &writers)));
        }
        Ok(Response::new(KeyResponse {
            copies,
            flushed_below_version: engine.flushed_below(space),
            now_ms: engine.now_ms(),
            owners,
        }))
    }

    async fn delete_key(
        &self,
        request: Request<DeleteKeyRequest>,
    ) -> Result<Response<DeleteKeyResponse>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let node = self.admin.node()?;
        let namespace = caller.changes(&request.namespace)?;
        let space = space(namespace, request.database)?;
        check_key(&request.key)?;
        let key = caller.stored_key(namespace, request.key);
        let command = Command::Delete(Delete::new(&key));
        let job = Job::own(space, &command);
        // As for a client: the owner of the key deletes it, and all others that have copies.
        let existed = match carry_out(&*node.shared.service, &job).await {
            Outcome::Deleted { .. } => true,
            Outcome::NotFound => false,
            Outcome::Failed(Failure::ReadOnly) => {
                return Err(Status::failed_precondition(
                    "the namespace keeps its first values (write_once): an admin may flush it",
                ));
            }
            _ => {
                return Err(Status::unavailable(
                    "the delete is not durable on all owners, and the key may come back; try again",
                ));
            }
        };
        let message = format!("a key was deleted by {caller}");
        self.admin.0.events.info(Topic::Settings, message);
        Ok(Response::new(DeleteKeyResponse { existed }))
    }

    async fn flush(
        &self,
        request: Request<FlushRequest>,
    ) -> Result<Response<FlushResponse>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let node = self.admin.node()?;
        if request.namespace.is_empty() {
            return Err(Status::invalid_argument(
                "a flush must name its namespace; the default one is `default`",
            ));
        }
        let namespace = caller.changes(&request.namespace)?;
        if caller.is_in_overlay() {
            let why = "a flush is of all overlays of the namespace: an admin may flush it";
            return Err(Status::permission_denied(why));
        }
        if !caller.may_flush(namespace) {
            let why =
                "the namespace keeps its first values (write_once): only an admin may flush it";
            return Err(Status::permission_denied(why));
        }
        let client = Client {
            id: 0,
            peer: "admin",
            local: None,
            space: space(namespace, request.database.unwrap_or_default())?,
            routed_by: None,
            is_confined: false,
            base: None,
            writer: WriterId::NONE,
        };
        let command = ServerCommand::Flush {
            all_databases: request.database.is_none(),
            delay_s: 0,
        };
        // As for a client: all members do it.
        let (server, mut acks) = (&node.shared, Acks::default());
        let flushed = server
            .service
            .execute_server(server, client, &command, &mut acks);
        if flushed.await != ServerOutcome::Done {
            return Err(Status::unavailable(
                "not every member that is up could make the flush durable: flush again, or what it hid may come back",
            ));
        }
        let databases = match request.database {
            Some(_) => 1,
            None => Space::of_namespace(namespace).count(),
        };
        tracing::info!(
            namespace = request.namespace,
            databases,
            "flushed by {caller}"
        );
        let what = match request.database {
            Some(database) => format!("database {database} of {}", request.namespace),
            None => format!("namespace {}", request.namespace),
        };
        let message = format!("{what} was flushed by {caller}");
        self.admin.0.events.warning(Topic::Settings, message);
        Ok(Response::new(FlushResponse {
            databases: databases as u32,
        }))
    }

    async fn list_namespaces(
        &self,
        request: Request<ListNamespacesRequest>,
    ) -> Result<Response<ListNamespacesResponse>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let engine = &self.admin.node()?.shared.service.engine;
        let list = namespaces::list(engine, |number| caller.may_read(number));
        Ok(Response::new(list))
    }

    type CountWrittenStream = purge::Responses;

    async fn count_written(
        &self,
        request: Request<CountWrittenRequest>,
    ) -> Result<Response<Self::CountWrittenStream>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let tiers = &self.admin.node()?.shared.service;
        let namespace = request.namespace.as_deref();
        let scope = purge::scope(&caller, &request.writer, namespace, request.since_ms)?;
        Ok(Response::new(purge::count(Arc::clone(tiers), scope)))
    }

    async fn purge(
        &self,
        request: Request<PurgeRequest>,
    ) -> Result<Response<PurgeResponse>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let tiers = &self.admin.node()?.shared.service;
        let namespace = request.namespace.as_deref();
        let scope = purge::scope(&caller, &request.writer, namespace, request.since_ms)?;
        purge::purge(tiers, scope).await?;
        let message = purge::notice(&request.writer, namespace, &caller);
        tracing::info!(since_ms = request.since_ms, "{message}");
        self.admin.0.events.warning(Topic::Settings, message);
        Ok(Response::new(PurgeResponse {}))
    }

    type WarmStream = warm::Responses;

    async fn warm(
        &self,
        request: Request<WarmRequest>,
    ) -> Result<Response<Self::WarmStream>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let tiers = &self.admin.node()?.shared.service;
        let namespace = match &request.namespace {
            Some(name) => Some(caller.reads(name)?),
            None => None,
        };
        let wanted = Wanted::of(&request, namespace);
        let permit = Arc::clone(&self.admin.0.warming).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Status::resource_exhausted("this node is warming already; wait for its end")
        })?;
        let news = warm::warm(Arc::clone(tiers), wanted)?;
        let what = request.namespace.as_deref().unwrap_or("all namespaces");
        let message = format!("warming of {what} was begun by {caller}");
        self.admin.0.events.info(Topic::Settings, message);
        let news = news.map(move |news| {
            // Held until the stream is dropped.
            let _ = &permit;
            news
        });
        Ok(Response::new(Box::pin(news)))
    }

    async fn set_codec(
        &self,
        request: Request<SetCodecRequest>,
    ) -> Result<Response<SetCodecResponse>, Status> {
        let caller = Caller::of(&self.admin, &request)?;
        let request = request.into_inner();
        let tiers = &self.admin.node()?.shared.service;
        let level = &request.level;
        let parsed = codecs::parse(&tiers.engine, level, &request.codec);
        let (codec, previous) = parsed.map_err(Status::invalid_argument)?;
        let live = tiers.live.as_ref();
        let live = live.ok_or_else(|| Status::unavailable("settings do not change here"))?;
        let pairs = vec![("codec".to_owned(), format!("{level}={codec}"))];
        let message = format!("codec of {level} was set to {codec}, before {previous}");
        let changed = live.set(pairs, message).await.map_err(|_| {
            Status::unavailable("other settings are being changed, or the node stops: try again")
        })?;
        changed.map_err(|(_, why)| Status::failed_precondition(why))?;
        tracing::info!(level, %previous, %codec, "codec changed by {caller}");
        Ok(Response::new(SetCodecResponse {
            previous: previous.to_string(),
            codec: codec.to_string(),
        }))
    }
}
