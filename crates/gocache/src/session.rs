//! One run of the go command: its requests, side by side.

#[cfg(test)]
mod tests;

use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fonn_http_client::{Failed, Server, ServerError};
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout_at};

use crate::local::{Kept, Scratch, Store, StoreError, Temp};
use crate::protocol::{self, Answer, Command, KNOWN_COMMANDS, Request, WITHOUT_PUT, base64_of};
use crate::record::Record;
use crate::remote::Remote;

/// Requests of the go command that are carried out at a time.
const REQUESTS_MAX: usize = 64;

/// Outputs that are on their way to the server or wait for it. Further ones are not sent.
const UPLOADS_MAX: usize = 256;

/// After so many refused uploads, if none was taken, the rest is not sent: the token may only read.
/// One refusal tells less, as an entry of a write-once namespace stays as it is.
const REFUSED_UPLOADS_MAX: u64 = 8;

/// The server knows the caller, and does not take what it sent.
const FORBIDDEN: u16 = 403;

/// Uploads at a time.
const UPLOADS_AT_A_TIME: usize = 8;

/// What the helper is told.
#[derive(Clone)]
pub struct Options {
    /// The server; none to use the directory alone.
    pub server: Option<Server>,
    /// The directory of the outputs; none for a temporary one.
    pub dir: Option<PathBuf>,
    /// Bytes that the directory is brought to at the start.
    pub budget: u64,
    /// For how long the end of the build waits for uploads.
    pub upload_wait: Duration,
}

/// What cannot be used. The helper serves without it: an end of the helper ends the build.
#[derive(Debug, thiserror::Error)]
pub enum Warning {
    /// The directory. A temporary one takes its place.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No directory at all can be used, so nothing is found or stored.
    #[error("cannot make a temporary directory: {0}")]
    Scratch(io::Error),
    /// The server. The directory is used alone.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Outputs that were in the directory.
    pub hits_here: u64,
    /// Outputs that the server had.
    pub hits_there: u64,
    /// Outputs that neither had.
    pub misses: u64,
    /// Outputs that the go command stored.
    pub puts: u64,
    /// Outputs that the server took.
    pub uploads: u64,
    /// Requests to the server that failed, and outputs that were not sent because too many waited.
    pub failures: u64,
    /// Why the last read failed, of those that did.
    pub failed_read: Option<Failed>,
    /// Why the last upload failed, of those that did.
    pub failed_upload: Option<Failed>,
    /// Outputs that the server refused to take from this caller.
    pub refused_uploads: u64,
}

impl Summary {
    fn read_failed(&mut self, failed: Failed) {
        self.failures += 1;
        self.failed_read = Some(failed);
    }

    fn upload_failed(&mut self, failed: Failed) {
        self.failures += 1;
        self.failed_upload = Some(failed);
        if failed == Failed::Refused(FORBIDDEN) {
            self.refused_uploads += 1;
        }
    }

    /// Whether further uploads are of no use.
    fn is_read_only(&self) -> bool {
        self.uploads == 0 && self.refused_uploads >= REFUSED_UPLOADS_MAX
    }
}

/// What the thread that reads has taken from the go command.
enum Arrived {
    Request(Request),
    /// A put with its body, or why the body cannot be kept.
    Put {
        id: i64,
        action: Vec<u8>,
        record: Record,
        body: io::Result<Temp>,
    },
    /// The input cannot be read any more.
    Broken(io::Error),
}

struct Session {
    /// None if no directory can be used.
    store: Option<Arc<Store>>,
    remote: Option<Remote>,
    summary: Mutex<Summary>,
    uploads_at_a_time: Semaphore,
}

/// The directory of the outputs. A temporary one is removed when what is returned beside it is
/// dropped.
fn open(options: &Options, warn: &impl Fn(Warning)) -> (Option<Store>, Option<Scratch>) {
    if let Some(dir) = &options.dir {
        match Store::open(dir, options.budget) {
            Ok(store) => return (Some(store), None),
            Err(error) => warn(error.into()),
        }
    }
    let opened = Scratch::new()
        .map_err(Warning::Scratch)
        .and_then(|scratch| Ok((Store::open(scratch.path(), u64::MAX)?, scratch)));
    match opened {
        Ok((store, scratch)) => (Some(store), Some(scratch)),
        Err(warning) => {
            warn(warning);
            (None, None)
        }
    }
}

/// Serves the go command until it closes, and waits for the uploads then. What cannot be used is
/// told to `warn` once, and costs hits alone.
///
/// # Errors
/// If the go command breaks the protocol.
pub async fn run(
    options: Options,
    input: impl Read + Send + 'static,
    mut output: impl Write + Send + 'static,
    warn: impl Fn(Warning),
) -> io::Result<Summary> {
    let (store, _scratch) = open(&options, &warn);
    let remote = options.server.map(Remote::new).transpose();
    let remote = remote.map_err(|error| warn(error.into())).ok().flatten();
    let known_commands = match store {
        Some(_) => &KNOWN_COMMANDS[..],
        // The go command takes a failed put for an error of some builds, and sends none to a
        // helper without that command.
        None => &WITHOUT_PUT[..],
    };
    let session = Arc::new(Session {
        store: store.map(Arc::new),
        remote,
        summary: Mutex::default(),
        uploads_at_a_time: Semaphore::new(UPLOADS_AT_A_TIME),
    });
    let (answers, mut to_write) = mpsc::channel::<Vec<u8>>(REQUESTS_MAX);
    let writing = std::thread::spawn(move || {
        while let Some(line) = to_write.blocking_recv() {
            // The go command is gone if that fails, and reading ends as well.
            if output
                .write_all(&line)
                .and_then(|()| output.flush())
                .is_err()
            {
                break;
            }
        }
    });
    let (arrivals, mut arrived) = mpsc::channel(REQUESTS_MAX);
    let reader = Arc::clone(&session);
    // It ends with the input, or when it has read `close`.
    std::thread::spawn(move || read_all(&reader, input, &arrivals));
    let hello = Answer {
        known_commands,
        ..Answer::default()
    };
    let _ = answers.send(hello.line()).await;
    let served = session
        .serve(&mut arrived, &answers, options.upload_wait)
        .await;
    drop(answers);
    let _ = spawn_blocking(move || writing.join()).await;
    served.map(|()| *session.summary.lock())
}

/// Reads requests, and the bodies of puts into files.
fn read_all(session: &Session, input: impl Read, arrivals: &mpsc::Sender<Arrived>) {
    let mut input = BufReader::with_capacity(64 << 10, input);
    loop {
        let arrived = match protocol::read_request(&mut input) {
            Ok(None) => return,
            Err(error) => Arrived::Broken(error),
            Ok(Some(Request {
                id,
                command:
                    Command::Put {
                        action,
                        output,
                        len,
                    },
            })) => match session.read_put(&mut input, len) {
                Ok((body, digest)) => {
                    let since = SystemTime::now().duration_since(UNIX_EPOCH);
                    let stored_at_ns = since.map_or(0, |it| it.as_nanos() as u64);
                    let record = Record {
                        output,
                        len,
                        stored_at_ns,
                        digest,
                    };
                    Arrived::Put {
                        id,
                        action,
                        record,
                        body,
                    }
                }
                Err(error) => Arrived::Broken(error),
            },
            Ok(Some(request)) => Arrived::Request(request),
        };
        let is_last = match &arrived {
            Arrived::Broken(_) => true,
            Arrived::Request(request) => request.command == Command::Close,
            Arrived::Put { .. } => false,
        };
        if arrivals.blocking_send(arrived).is_err() || is_last {
            return;
        }
    }
}

/// Writes to a file and makes the digest. Once the file has failed, the rest is taken and dropped.
struct Tee {
    file: io::Result<(std::fs::File, Temp)>,
    digest: Context,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.digest.update(bytes);
        if let Ok((file, _)) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            self.file = Err(error);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Session {
    fn store(&self) -> io::Result<&Arc<Store>> {
        self.store
            .as_ref()
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Reads the body of a put. The inner result says whether it is in its file.
    fn read_put(
        &self,
        input: &mut impl io::BufRead,
        len: u64,
    ) -> io::Result<(io::Result<Temp>, [u8; 32])> {
        let mut tee = Tee {
            file: self.store().and_then(|store| store.temp()),
            digest: Context::new(&SHA256),
        };
        protocol::read_body(input, len, &mut tee)?;
        let mut digest = [0; 32];
        digest.copy_from_slice(tee.digest.finish().as_ref());
        Ok((tee.file.map(|(_, temp)| temp), digest))
    }

    async fn serve(
        self: &Arc<Self>,
        arrived: &mut mpsc::Receiver<Arrived>,
        answers: &mpsc::Sender<Vec<u8>>,
        upload_wait: Duration,
    ) -> io::Result<()> {
        let (mut requests, mut uploads) = (JoinSet::new(), JoinSet::new());
        while let Some(it) = arrived.recv().await {
            while requests.len() >= REQUESTS_MAX {
                requests.join_next().await;
            }
            while uploads.try_join_next().is_some() {}
            let session = Arc::clone(self);
            let answers = answers.clone();
            match it {
                Arrived::Broken(error) => return Err(error),
                Arrived::Put {
                    id,
                    action,
                    record,
                    body,
                } => {
                    self.summary.lock().puts += 1;
                    let kept = match body {
                        Ok(body) => self.keep(action.clone(), record, body).await,
                        Err(error) => Err(error),
                    };
                    let line = match &kept {
                        Ok(kept) => done(id, kept),
                        Err(error) => refusal(id, &error.to_string()),
                    };
                    let _ = answers.send(line).await;
                    let is_of_use = !self.summary.lock().is_read_only();
                    if let Ok(kept) = kept
                        && self.remote.is_some()
                        && is_of_use
                    {
                        // A wait for room would hold up all requests of the build.
                        if uploads.len() < UPLOADS_MAX {
                            uploads.spawn(async move { session.upload(&action, &kept).await });
                        } else {
                            self.summary.lock().failures += 1;
                        }
                    }
                }
                Arrived::Request(Request { id, command }) => match command {
                    Command::Get { action } => {
                        requests.spawn(async move {
                            let line = match session.get(&action).await {
                                Some(kept) => hit(id, &kept),
                                None => miss(id),
                            };
                            let _ = answers.send(line).await;
                        });
                    }
                    Command::Close => {
                        while requests.join_next().await.is_some() {}
                        let deadline = Instant::now() + upload_wait;
                        while let Ok(Some(_)) = timeout_at(deadline, uploads.join_next()).await {}
                        let answer = Answer {
                            id,
                            ..Answer::default()
                        };
                        let _ = answers.send(answer.line()).await;
                        return Ok(());
                    }
                    Command::Put { .. } | Command::Unknown => {
                        let _ = answers.send(refusal(id, "not understood")).await;
                    }
                },
            }
        }
        Ok(())
    }

    async fn keep(&self, action: Vec<u8>, record: Record, body: Temp) -> io::Result<Kept> {
        let store = Arc::clone(self.store()?);
        spawn_blocking(move || store.keep(&body, &action, record)).await?
    }

    async fn get(&self, action: &[u8]) -> Option<Kept> {
        let name = action.to_vec();
        if let Some(store) = self.store.clone()
            && let Ok(Some(kept)) = spawn_blocking(move || store.find(&name)).await
        {
            self.summary.lock().hits_here += 1;
            return Some(kept);
        }
        let found = self.fetch(action).await;
        let mut summary = self.summary.lock();
        match &found {
            Some(_) => summary.hits_there += 1,
            None => summary.misses += 1,
        }
        found
    }

    async fn fetch(&self, action: &[u8]) -> Option<Kept> {
        let remote = self.remote.as_ref()?;
        let store = Arc::clone(self.store().ok()?);
        // Nothing is asked for that cannot be kept.
        let (file, temp) = spawn_blocking(move || store.temp()).await.ok()?.ok()?;
        match remote.get(action, file.into()).await {
            Ok(found) => self.keep(action.to_vec(), found?, temp).await.ok(),
            Err(failed) => {
                self.summary.lock().read_failed(failed);
                None
            }
        }
    }

    async fn upload(&self, action: &[u8], kept: &Kept) {
        let Some(remote) = &self.remote else {
            return;
        };
        let Ok(_permit) = self.uploads_at_a_time.acquire().await else {
            return;
        };
        if self.summary.lock().is_read_only() {
            return;
        }
        let sent = remote.put(action, &kept.record, &kept.path).await;
        let mut summary = self.summary.lock();
        match sent {
            Ok(()) => summary.uploads += 1,
            Err(failed) => summary.upload_failed(failed),
        }
    }
}

fn hit(id: i64, kept: &Kept) -> Vec<u8> {
    let answer = Answer {
        id,
        output: Some(base64_of(&kept.record.output)),
        size: Some(kept.record.len),
        time: Some(rfc3339(kept.record.stored_at_ns)),
        disk_path: Some(kept.path.to_string_lossy().into_owned()),
        ..Answer::default()
    };
    answer.line()
}

fn done(id: i64, kept: &Kept) -> Vec<u8> {
    let answer = Answer {
        id,
        disk_path: Some(kept.path.to_string_lossy().into_owned()),
        ..Answer::default()
    };
    answer.line()
}

fn miss(id: i64) -> Vec<u8> {
    let answer = Answer {
        id,
        miss: true,
        ..Answer::default()
    };
    answer.line()
}

/// A moment as answers have it: RFC 3339, in UTC.
fn rfc3339(unix_ns: u64) -> String {
    let moment = OffsetDateTime::from_unix_timestamp_nanos(unix_ns.into());
    let text = moment.ok().and_then(|it| it.format(&Rfc3339).ok());
    text.unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

fn refusal(id: i64, err: &str) -> Vec<u8> {
    let answer = Answer {
        id,
        err,
        ..Answer::default()
    };
    answer.line()
}
