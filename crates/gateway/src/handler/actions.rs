//! The cache service of GitHub Actions: calls, uploads and downloads.
//!
//! A restore looks among the entries of the client's own namespace first, then among those of its
//! base. So a pull request with an overlay sees what the main branch stored, and never the other
//! way round.

mod download;
mod upload;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use fonn_proto::command::ACTIONS_LISTS;
use fonn_proto::{Failure, WriterId};
use fonn_reapi::Instance;
use fonn_server::Scope;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode};
use tokio::time::timeout;

use super::long::Long;
use super::{Call, Front};
use crate::actions::{
    EntryId, Find, INDEX_TRIES_MAX, Index, Publish, Reserve, entry_id, hex, parameter,
};
use crate::answer::Answer;
use crate::metrics::LostRead;
use crate::receive::RequestBody;
use crate::route::{Dialect, Operation, Route};
use crate::store::{Form, PutMode, PutOutcome, Store};
use crate::tool::Tool;
use crate::usage::Use;

/// Longest body of a call.
const CALL_LEN_MAX: usize = 64 << 10;

/// Entries of one prefix that are looked at: those whose chunks are gone are no match.
const CANDIDATES_MAX: usize = 8;

/// The parameter with the login of the client. Clients hide the value of this name in their logs.
const LOGIN: &str = "sig";

/// Where an entry was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Own,
    Base,
}

impl Layer {
    /// The keyspace of this layer alone.
    fn of(self, scope: Scope) -> Option<Scope> {
        match self {
            Self::Own => Some(Scope {
                base: None,
                ..scope
            }),
            Self::Base => scope.base.map(|base| Scope {
                space: base.space,
                base: None,
                overlay: None,
                writer: scope.writer,
            }),
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Base => "base",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Own, Self::Base]
            .into_iter()
            .find(|it| it.label() == text)
    }
}

/// The login that the query of an upload or download has, as a header. The clients of archives send
/// none of their own.
pub(super) fn login_of(query: Option<&str>) -> Option<HeaderMap> {
    let text = parameter(query?, LOGIN)?;
    let login = URL_SAFE_NO_PAD.decode(text).ok()?;
    let mut value = HeaderValue::from_bytes(&login).ok()?;
    value.set_sensitive(true);
    Some(HeaderMap::from_iter([(AUTHORIZATION, value)]))
}

/// The beginning of the URL of an archive: the host by which the client calls, and its login.
fn url_of<B>(request: &Request<B>, call: Call<'_>, id: &EntryId) -> Option<String> {
    let scheme = match call.peer.is_encrypted {
        true => "https",
        false => "http",
    };
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(HOST)?.to_str().ok()?,
    };
    let host: hyper::http::uri::Authority = host.parse().ok()?;
    let login = request.headers().get(AUTHORIZATION);
    let login = login.map_or_else(String::new, |it| URL_SAFE_NO_PAD.encode(it.as_bytes()));
    Some(format!(
        "{scheme}://{host}/actions/cache/{}?{LOGIN}={login}",
        hex(id)
    ))
}

fn entry_key(id: &EntryId) -> Bytes {
    format!("actions/entry/{}", hex(id)).into()
}

/// The key of an archive that is not published. It has the writer: no other identity puts an
/// archive in the place of the one that this identity publishes.
fn upload_key(id: &EntryId, writer: WriterId) -> Bytes {
    format!("actions/upload/{}/{}", hex(id), writer.number()).into()
}

fn index_key(version: &str) -> Bytes {
    // The id of a version alone: no entry has an empty key.
    [ACTIONS_LISTS, hex(&entry_id("", version)).as_bytes()]
        .concat()
        .into()
}

fn malformed() -> Answer {
    let line = "malformed call; expected JSON with a key and a version of at most 2048 bytes";
    Answer::line(StatusCode::BAD_REQUEST, line)
}

fn answered(document: &serde_json::Value) -> Answer {
    Answer::json(StatusCode::OK, document.to_string())
}

impl<S: Store> Front<S> {
    /// The answer to a request of this dialect, and whether the body of the request was read.
    pub(super) async fn actions<B: RequestBody>(
        &self,
        request: Request<B>,
        route: &Route,
        scope: Scope,
        call: Call<'_>,
    ) -> (Answer, bool) {
        match route.operation {
            Operation::Write => self.upload(request, route, scope, call).await,
            Operation::Read | Operation::Probe => {
                let answer = self.download(&request, route, scope, call).await;
                if answer.status.is_success() && route.operation == Operation::Read {
                    let len = answer.told_len.unwrap_or(answer.body.len());
                    self.count_use(route.tool, &scope, Use::served(len));
                }
                (answer, false)
            }
            operation => {
                let (head, body) = request.into_parts();
                let body = match self.document_of(body, call, CALL_LEN_MAX).await {
                    Ok(body) => body,
                    Err(refused) => return (refused, false),
                };
                let request = Request::from_parts(head, ());
                let answer = match operation {
                    Operation::ReserveEntry => self.reserve(&request, &body, scope, call).await,
                    Operation::PublishEntry => self.publish(&body, scope).await,
                    _ => self.find(&request, &body, scope, call).await,
                };
                (answer, true)
            }
        }
    }

    /// `CreateCacheEntry`: where to upload the archive of a key that has none.
    async fn reserve(
        &self,
        request: &Request<()>,
        body: &[u8],
        scope: Scope,
        call: Call<'_>,
    ) -> Answer {
        let Some(reserve) = Reserve::parse(body) else {
            return malformed();
        };
        let id = entry_id(&reserve.key, &reserve.version);
        let Some(url) = url_of(request, call, &id) else {
            return malformed();
        };
        let own = Layer::Own.of(scope).unwrap_or(scope);
        if self.whole_archive(own, entry_key(&id)).await.is_some() {
            let message = "there is an entry of this key and version, which stays";
            return answered(&serde_json::json!({"ok": false, "message": message}));
        }
        answered(&serde_json::json!({"ok": true, "signed_upload_url": url}))
    }

    /// `FinalizeCacheEntryUpload`: lets the archive be found.
    async fn publish(&self, body: &[u8], scope: Scope) -> Answer {
        let Some(publish) = Publish::parse(body) else {
            return malformed();
        };
        let own = Layer::Own.of(scope).unwrap_or(scope);
        let id = entry_id(&publish.key, &publish.version);
        let uploaded = self.archive(own, upload_key(&id, own.writer)).await;
        let Some(archive) = uploaded.filter(|it| Some(it.manifest.len()) == publish.len()) else {
            let message = "no archive of this length was uploaded";
            return answered(&serde_json::json!({"ok": false, "message": message}));
        };
        let (store, manifest) = (self.store().clone(), archive.manifest.encode().into());
        let put = store.put(
            own,
            entry_key(&id),
            manifest,
            Form::Manifest,
            PutMode::Replace,
        );
        let mut put = self.change(put).await;
        // The namespace keeps first values. An archive that lost a chunk is found by no restore.
        if put == Ok(PutOutcome::Kept) && self.whole_archive(own, entry_key(&id)).await.is_none() {
            put = Err(Failure::ReadOnly);
        }
        if let Err(failure) = put {
            return Answer::write_failed(Dialect::Actions, failure);
        }
        if let Err(failure) = self.add_to_index(own, &publish.version, &publish.key).await {
            return Answer::write_failed(Dialect::Actions, failure);
        }
        let id = i64::from_le_bytes(id.first_chunk().copied().unwrap_or_default()) & i64::MAX;
        answered(&serde_json::json!({"ok": true, "entry_id": id.to_string()}))
    }

    async fn add_to_index(&self, own: Scope, version: &str, key: &str) -> Result<(), Failure> {
        for _ in 0..INDEX_TRIES_MAX {
            let store = self.store().clone();
            let found = self.change(store.get(own, index_key(version))).await?;
            let mode = found.as_ref().map(|it| PutMode::Over(it.version));
            let mode = mode.unwrap_or(PutMode::Keep);
            // An index that is damaged begins again.
            let index = found.and_then(|it| Index::parse(&it.value()?));
            let mut index = index.unwrap_or_default();
            index.add(key);
            let (store, value) = (self.store().clone(), Bytes::from(index.encode()));
            let put = store.put(own, index_key(version), value, Form::Value, mode);
            if self.change(put).await? == PutOutcome::Stored {
                return Ok(());
            }
        }
        Err(Failure::Busy)
    }

    /// `GetCacheEntryDownloadURL`: the key itself, else the newest that begins with it, else the
    /// newest that begins with one of the others in turn; first among the client's own entries,
    /// then among those of its base. It may be many looks, and one that takes too long is a miss.
    async fn find(
        &self,
        request: &Request<()>,
        body: &[u8],
        client: Scope,
        call: Call<'_>,
    ) -> Answer {
        let Some(find) = Find::parse(body) else {
            return malformed();
        };
        let found = self.find_in_layers(client, &find);
        let found = match timeout(self.options().deadline, found).await {
            Ok(found) => found,
            Err(_) => {
                self.figures().lost(LostRead::Deadline);
                None
            }
        };
        let lookup = Use::lookup(found.is_some());
        self.count_use(Some(Tool::Actions), &client, lookup);
        let Some((layer, key)) = found else {
            return answered(&serde_json::json!({"ok": false}));
        };
        let id = entry_id(&key, &find.version);
        let Some(url) = url_of(request, call, &id) else {
            return malformed();
        };
        answered(&serde_json::json!({
            "ok": true,
            "signed_download_url": format!("{url}&layer={}", layer.label()),
            "matched_key": key,
        }))
    }

    /// The key that is found, and where.
    async fn find_in_layers(&self, client: Scope, find: &Find) -> Option<(Layer, String)> {
        for layer in [Layer::Own, Layer::Base] {
            let Some(scope) = layer.of(client) else {
                continue;
            };
            if let Some(key) = self.find_in(scope, find).await {
                return Some((layer, key));
            }
        }
        None
    }

    async fn find_in(&self, scope: Scope, find: &Find) -> Option<String> {
        let has = async |key: &str| {
            let id = entry_id(key, &find.version);
            self.whole_archive(scope, entry_key(&id)).await.is_some()
        };
        if has(&find.key).await {
            return Some(find.key.clone());
        }
        let store = self.store().clone();
        let index = self.look(store.get(scope, index_key(&find.version))).await;
        let index = Index::parse(&index?.value()?)?;
        for prefix in std::iter::once(&find.key).chain(&find.restore_keys) {
            for key in index.matching(prefix).take(CANDIDATES_MAX) {
                if has(key).await {
                    return Some(key.to_owned());
                }
            }
        }
        None
    }

    /// The archive of a key.
    async fn archive(&self, scope: Scope, key: Bytes) -> Option<Long<S>> {
        self.long_of(scope, Instance::default(), key).await
    }

    /// The archive of a key, if all of it is there.
    async fn whole_archive(&self, scope: Scope, key: Bytes) -> Option<Long<S>> {
        self.whole_long(scope, Instance::default(), key).await
    }
}
