//! Runs of a go command that is played, with a server that keeps values in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Cursor;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use super::*;

/// Keeps what is put, for callers with the token.
#[derive(Default)]
struct Fake {
    values: Mutex<HashMap<String, Bytes>>,
    requests: AtomicUsize,
    /// Whether the token may only read.
    is_read_only: AtomicBool,
    /// Where reads wait for each other.
    meeting: Mutex<Option<Arc<Barrier>>>,
}

const TOKEN: &str = "fonn_token";

impl Fake {
    async fn serve(self: Arc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let fake = Arc::clone(&self);
                let service = service_fn(move |request| Arc::clone(&fake).answer(request));
                let io = TokioIo::new(stream);
                tokio::spawn(http1::Builder::new().serve_connection(io, service));
            }
        });
        addr
    }

    /// Requests so far.
    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// From now on reads are answered when so many are there.
    fn hold_until(&self, count: usize) {
        *self.meeting.lock() = Some(Arc::new(Barrier::new(count)));
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let meeting = self.meeting.lock().clone();
        if *request.method() == Method::GET
            && let Some(meeting) = meeting
        {
            meeting.wait().await;
        }
        let expected = format!("Bearer {TOKEN}");
        let is_known = request
            .headers()
            .get(AUTHORIZATION)
            .is_some_and(|it| *it == *expected);
        let path = request.uri().path().to_owned();
        let (status, body) = match *request.method() {
            _ if !is_known => (StatusCode::UNAUTHORIZED, Bytes::new()),
            Method::PUT if self.is_read_only.load(Ordering::Relaxed) => {
                (StatusCode::FORBIDDEN, Bytes::new())
            }
            Method::PUT => {
                let value = request.into_body().collect().await.unwrap().to_bytes();
                self.values.lock().insert(path, value);
                (StatusCode::CREATED, Bytes::new())
            }
            _ => match self.values.lock().get(&path) {
                Some(value) => (StatusCode::OK, value.clone()),
                None => (StatusCode::NOT_FOUND, Bytes::new()),
            },
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        Ok(response)
    }
}

/// What the helper writes.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn server(addr: &str) -> Server {
    Server {
        addr: addr.to_owned(),
        tls: None,
        token: Some(TOKEN.to_owned()),
        agent: "go",
        prefix: "team/go".to_owned(),
        deadline: Duration::from_secs(60),
    }
}

fn session(store: Option<Store>, server: Server) -> Session {
    Session {
        store: store.map(Arc::new),
        remote: Some(Remote::new(server).unwrap()),
        summary: Mutex::default(),
        uploads_at_a_time: Semaphore::new(1),
    }
}

/// What came of a go command that was played.
struct Played {
    summary: Summary,
    /// By their number.
    answers: HashMap<i64, Value>,
    warnings: Vec<String>,
}

/// Plays a go command that says this.
async fn play_with(dir: Option<PathBuf>, server: Option<Server>, said: &str) -> Played {
    let options = Options {
        server,
        dir,
        budget: 1 << 20,
        upload_wait: Duration::from_secs(60),
    };
    let (answers, warnings) = (Said::default(), Mutex::new(Vec::new()));
    let input = Cursor::new(said.to_owned().into_bytes());
    let warn = |it: Warning| warnings.lock().push(it.to_string());
    let summary = run(options, input, answers.clone(), warn).await.unwrap();
    let text = String::from_utf8(answers.0.lock().clone()).unwrap();
    let answers = text.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).unwrap();
        (answer["ID"].as_i64().unwrap(), answer)
    });
    Played {
        summary,
        answers: answers.collect(),
        warnings: warnings.into_inner(),
    }
}

/// The same with a directory and a server that can be used.
async fn play(dir: &Path, server: Server, said: &str) -> (Summary, HashMap<i64, Value>) {
    let played = play_with(Some(dir.to_owned()), Some(server), said).await;
    assert_eq!(played.warnings, [""; 0]);
    (played.summary, played.answers)
}

const CLOSE: &str = "{\"ID\":99,\"Command\":\"close\"}\n";

const PUT: &str = concat!(
    "{\"ID\":1,\"Command\":\"put\",\"ActionID\":\"AQI=\",\"OutputID\":\"Aw==\",\"BodySize\":5}\n",
    "\"aGVsbG8=\"\n",
    "{\"ID\":2,\"Command\":\"put\",\"ActionID\":\"BQ==\",\"OutputID\":\"Bg==\",\"BodySize\":0}\n",
    "{\"ID\":3,\"Command\":\"close\"}\n",
);

const GET: &str = concat!(
    "{\"ID\":1,\"Command\":\"get\",\"ActionID\":\"AQI=\"}\n",
    "{\"ID\":2,\"Command\":\"get\",\"ActionID\":\"BQ==\"}\n",
    "{\"ID\":3,\"Command\":\"get\",\"ActionID\":\"Bw==\"}\n",
    "{\"ID\":4,\"Command\":\"sing\"}\n",
    "{\"ID\":5,\"Command\":\"close\"}\n",
);

fn read(answer: &Value) -> Vec<u8> {
    std::fs::read(answer["DiskPath"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn what_one_build_stored_another_machine_gets_and_then_has() {
    let addr = Arc::new(Fake::default()).serve().await;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (summary, answers) = play(here.path(), server(&addr), PUT).await;
    assert_eq!((summary.puts, summary.uploads, summary.failures), (2, 2, 0));
    assert_eq!(answers[&0]["KnownCommands"].as_array().unwrap().len(), 3);
    assert_eq!(read(&answers[&1]), b"hello");
    for (hits_here, hits_there) in [(0, 2), (2, 0)] {
        let (summary, answers) = play(there.path(), server(&addr), GET).await;
        assert_eq!(
            (summary.hits_here, summary.hits_there),
            (hits_here, hits_there)
        );
        assert_eq!((summary.misses, summary.failures), (1, 0));
        assert_eq!(answers[&1]["OutputID"], "Aw==");
        assert_eq!(answers[&1]["Size"], 5);
        assert!(answers[&1]["Time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(read(&answers[&1]), b"hello");
        assert_eq!(read(&answers[&2]), b"");
        assert_eq!(answers[&3]["Miss"], true);
        assert!(answers[&4]["Err"].is_string());
        assert!(answers.contains_key(&5));
    }
}

#[tokio::test]
async fn a_value_that_is_not_whole_is_a_miss() {
    let fake = Arc::new(Fake::default());
    let addr = Arc::clone(&fake).serve().await;
    let dir = tempfile::tempdir().unwrap();
    play(dir.path(), server(&addr), PUT).await;
    let key = "/team/go/0102";
    let whole = fake.values.lock()[key].clone();
    let mut damaged = whole.to_vec();
    damaged[whole.len() - 1] ^= 1;
    for value in [
        whole.slice(..whole.len() - 1),
        damaged.into(),
        whole.slice(..20),
        Bytes::new(),
        Bytes::from_static(&[b'x'; 200]),
    ] {
        fake.values.lock().insert(key.to_owned(), value);
        let elsewhere = tempfile::tempdir().unwrap();
        let (summary, answers) = play(elsewhere.path(), server(&addr), GET).await;
        assert_eq!(answers[&1]["Miss"], true);
        assert_eq!((summary.hits_there, summary.misses), (1, 2));
    }
}

#[tokio::test]
async fn a_server_that_refuses_or_is_away_costs_hits_and_no_build() {
    let addr = Arc::new(Fake::default()).serve().await;
    let dir = tempfile::tempdir().unwrap();
    let refusing = Server {
        token: None,
        ..server(&addr)
    };
    let (summary, answers) = play(dir.path(), refusing, PUT).await;
    assert_eq!(
        (summary.puts, summary.uploads, summary.failed_upload),
        (2, 0, Some(Failed::Refused(401)))
    );
    assert_eq!(read(&answers[&1]), b"hello");

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = closed.local_addr().unwrap().to_string();
    drop(closed);
    let empty = tempfile::tempdir().unwrap();
    let (summary, answers) = play(empty.path(), server(&addr), GET).await;
    assert_eq!((summary.misses, summary.failures), (3, 3));
    assert_eq!(summary.failed_read, Some(Failed::Away));
    assert_eq!(answers[&1]["Miss"], true);
    let (summary, _) = play(dir.path(), server(&addr), GET).await;
    assert_eq!((summary.hits_here, summary.misses), (2, 1));
}

#[tokio::test]
async fn a_reader_sends_no_more_after_some_refused_uploads() {
    let fake = Arc::new(Fake::default());
    let addr = Arc::clone(&fake).serve().await;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    play(here.path(), server(&addr), PUT).await;
    fake.is_read_only.store(true, Ordering::Relaxed);
    let store = Store::open(there.path(), 1 << 20).unwrap();
    let session = session(Some(store), server(&addr));
    let kept = session.get(&[1, 2]).await.unwrap();
    let before = fake.requests() as u64;
    for _ in 0..2 * REFUSED_UPLOADS_MAX {
        session.upload(&[9], &kept).await;
    }
    let summary = *session.summary.lock();
    assert_eq!(fake.requests() as u64, before + REFUSED_UPLOADS_MAX);
    assert_eq!(summary.refused_uploads, REFUSED_UPLOADS_MAX);
    assert_eq!((summary.uploads, summary.failed_read), (0, None));
}

#[tokio::test]
async fn a_directory_that_takes_no_file_costs_hits_and_is_no_fault_of_the_server() {
    let fake = Arc::new(Fake::default());
    let addr = Arc::clone(&fake).serve().await;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    play(here.path(), server(&addr), PUT).await;
    let session = session(
        Some(Store::open(there.path(), 1 << 20).unwrap()),
        server(&addr),
    );
    let temps = there.path().join("tmp");
    std::fs::remove_dir(&temps).unwrap();
    let before = fake.requests();
    assert!(session.get(&[1, 2]).await.is_none());
    let summary = *session.summary.lock();
    assert_eq!((summary.misses, summary.failures), (1, 0));
    assert_eq!(fake.requests(), before, "nothing was asked for");
    std::fs::create_dir(&temps).unwrap();
    assert!(session.get(&[1, 2]).await.is_some());
}

#[tokio::test]
async fn a_build_does_not_wait_for_uploads_to_a_slow_server() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = silent.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        server: Some(server(&addr)),
        dir: Some(dir.path().to_owned()),
        budget: 1 << 20,
        upload_wait: Duration::ZERO,
    };
    let (puts, beyond) = (UPLOADS_MAX + 5, 5);
    let put = PUT.split_inclusive('\n').take(2).collect::<String>();
    let input = Cursor::new((put.repeat(puts) + CLOSE).into_bytes());
    let warn = |it: Warning| panic!("{it}");
    let summary = run(options, input, Said::default(), warn).await.unwrap();
    assert_eq!((summary.puts, summary.uploads), (puts as u64, 0));
    assert_eq!(summary.failures, beyond);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_left_alone_after_some_requests() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = silent.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let silent = Server {
        deadline: Duration::from_millis(50),
        ..server(&addr)
    };
    let gets: String = (1..200)
        .map(|id| format!("{{\"ID\":{id},\"Command\":\"get\",\"ActionID\":\"AQI=\"}}\n"))
        .collect();
    let said = gets + "{\"ID\":200,\"Command\":\"close\"}\n";
    let (summary, answers) = play(dir.path(), silent, &said).await;
    assert_eq!(answers.len(), 201);
    assert_eq!((summary.misses, summary.failures), (199, 199));
}

#[tokio::test]
async fn a_go_command_that_breaks_its_protocol_ends_the_helper() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        server: None,
        dir: Some(dir.path().to_owned()),
        budget: 0,
        upload_wait: Duration::ZERO,
    };
    let warn = |it: Warning| panic!("{it}");
    let input = Cursor::new(b"{}\n");
    let served = run(options.clone(), input, Said::default(), warn).await;
    assert!(served.is_err());
    let served = run(options, Cursor::new(b""), Said::default(), warn).await;
    assert_eq!(served.unwrap(), Summary::default());
}

/// A path below a file, where no directory can be, not even for root.
fn below_a_file(dir: &Path) -> PathBuf {
    let file = dir.join("file");
    std::fs::write(&file, b"").unwrap();
    file.join("dir")
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_told_once_and_another_takes_its_place() {
    let addr = Arc::new(Fake::default()).serve().await;
    let dir = tempfile::tempdir().unwrap();
    play(dir.path(), server(&addr), PUT).await;
    let unusable = below_a_file(dir.path());
    // What one build stores, it finds; the server has what the others stored.
    let put = PUT.split_inclusive('\n').take(3).collect::<String>();
    let get_again = put + &GET.replace("\"ID\":", "\"ID\":1");
    for (said, hits_here, hits_there) in [(GET, 0, 2), (&get_again, 2, 0)] {
        let played = play_with(Some(unusable.clone()), Some(server(&addr)), said).await;
        let summary = played.summary;
        assert_eq!(
            (summary.hits_here, summary.hits_there),
            (hits_here, hits_there)
        );
        assert_eq!((summary.misses, summary.failures), (1, 0));
        assert_eq!(played.warnings.len(), 1, "{:?}", played.warnings);
        assert!(played.warnings[0].contains("cannot use the directory"));
        assert_eq!(played.answers[&0]["KnownCommands"][1], "put");
        let path = played
            .answers
            .values()
            .find_map(|it| it["DiskPath"].as_str());
        assert!(!Path::new(path.unwrap()).exists(), "the place is left over");
    }
}

#[tokio::test]
async fn without_any_directory_nothing_is_found_and_puts_are_not_asked_for() {
    let session = session(None, server("127.0.0.1:1"));
    assert!(session.get(b"a").await.is_none());
    assert_eq!(session.summary.lock().failures, 0, "no server was asked");
    // The body of a put is taken all the same, so the next request is read.
    let mut input = Cursor::new(b"\"aGVsbG8=\"\nnext");
    let (body, _) = session.read_put(&mut input, 5).unwrap();
    assert!(body.is_err());
    let mut rest = String::new();
    input.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "\nnext");
    assert_eq!(WITHOUT_PUT, ["get", "close"]);
}

#[tokio::test]
async fn a_server_that_cannot_be_called_is_told_once_and_costs_hits() {
    let dir = tempfile::tempdir().unwrap();
    for server in [
        Server {
            addr: "nowhere".to_owned(),
            ..server("")
        },
        Server {
            token: Some("a\nb".to_owned()),
            ..server("127.0.0.1:1")
        },
    ] {
        let played = play_with(Some(dir.path().to_owned()), Some(server), GET).await;
        assert_eq!((played.summary.misses, played.summary.failures), (3, 0));
        assert_eq!(played.warnings.len(), 1, "{:?}", played.warnings);
    }
}

#[tokio::test]
async fn a_hit_is_one_request_and_requests_run_side_by_side() {
    const HITS: usize = 16;
    let fake = Arc::new(Fake::default());
    let addr = Arc::clone(&fake).serve().await;
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let line = |id: usize, rest: &str| {
        let action = base64_of(&[u8::try_from(id).unwrap()]);
        format!("{{\"ID\":{id},\"ActionID\":\"{action}\",{rest}}}\n")
    };
    let put = "\"Command\":\"put\",\"OutputID\":\"Aw==\",\"BodySize\":5";
    let puts: String = (1..=HITS)
        .map(|id| line(id, put) + "\"aGVsbG8=\"\n")
        .collect();
    let (summary, _) = play(here.path(), server(&addr), &(puts + CLOSE)).await;
    assert_eq!((summary.uploads, fake.requests()), (HITS as u64, HITS));
    // The server answers none of the reads until all have arrived.
    fake.hold_until(HITS);
    let gets: String = (1..=HITS)
        .map(|id| line(id, "\"Command\":\"get\""))
        .collect();
    let (summary, answers) = play(there.path(), server(&addr), &(gets.clone() + CLOSE)).await;
    assert_eq!(
        (summary.hits_there, summary.failures, fake.requests()),
        (HITS as u64, 0, 2 * HITS)
    );
    assert!((1..=HITS as i64).all(|id| read(&answers[&id]) == b"hello"));
    // Nothing is asked for what is in the directory.
    let (summary, _) = play(there.path(), server(&addr), &(gets + CLOSE)).await;
    assert_eq!(
        (summary.hits_here, fake.requests()),
        (HITS as u64, 2 * HITS)
    );
}
