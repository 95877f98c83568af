//! `fonn.v1.Tools`: what build tools get out of the cache, on the admin port of every program.

use std::fmt;
use std::sync::{Arc, OnceLock};

use fonn_auth::{Authenticator, NamesOfWriters};
use fonn_base::metrics::Label as _;
use fonn_proto::grpc::v1::tools_server::{Tools, ToolsServer};
use fonn_proto::grpc::v1::{self, ToolUsesRequest, ToolUsesResponse};
use tonic::{Request, Response, Status, async_trait};

use crate::usage::ToolUse;

/// Where the figures come from.
type Source = Box<dyn Fn() -> Vec<ToolUse> + Send + Sync>;

/// The service. The admin port is there before clients are served: it tells nothing until then.
#[derive(Clone)]
pub struct ToolsReport {
    source: Arc<OnceLock<Source>>,
    users: Option<Arc<Authenticator>>,
}

impl fmt::Debug for ToolsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolsReport").finish_non_exhaustive()
    }
}

impl ToolsReport {
    /// A report that names identities and namespaces as `users` know them.
    #[must_use]
    pub fn new(users: Option<Arc<Authenticator>>) -> Self {
        Self {
            source: Arc::default(),
            users,
        }
    }

    /// Lets it tell these figures. Only the first call counts.
    pub fn open(&self, source: impl Fn() -> Vec<ToolUse> + Send + Sync + 'static) {
        let _ = self.source.set(Box::new(source));
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> ToolsServer<Self> {
        ToolsServer::new(self.clone())
    }

    fn namespace(&self, number: u32) -> String {
        let directory = self.users.as_ref().map(|users| users.directory());
        let namespaces = directory.as_ref().map(|it| it.namespaces());
        let mut known = namespaces.unwrap_or_default().iter();
        match known.find(|it| it.number == number) {
            Some(namespace) => namespace.name.to_string(),
            None if number == 0 => "default".to_owned(),
            None => format!("#{number}"),
        }
    }
}

#[async_trait]
impl Tools for ToolsReport {
    async fn uses(
        &self,
        _: Request<ToolUsesRequest>,
    ) -> Result<Response<ToolUsesResponse>, Status> {
        let rows = self.source.get().map(|tell| tell()).unwrap_or_default();
        let names = NamesOfWriters::new(self.users.as_deref());
        let uses = rows.into_iter().map(|row| v1::ToolUse {
            tool: row.tool.as_str().to_owned(),
            namespace: self.namespace(row.namespace),
            identity: names.name(row.writer),
            hits: row.what.hits,
            misses: row.what.misses,
            served_bytes: row.what.served_bytes,
            stored_bytes: row.what.stored_bytes,
        });
        let mut uses: Vec<_> = uses.collect();
        uses.sort_by_cached_key(|it| [&it.namespace, &it.identity, &it.tool].map(String::clone));
        Ok(Response::new(ToolUsesResponse { uses }))
    }
}
