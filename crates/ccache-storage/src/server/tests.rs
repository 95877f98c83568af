use std::os::unix::fs::PermissionsExt as _;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::*;
use crate::protocol::GREETING;
use crate::settings::Target;

/// More than a busy machine takes.
const LIMIT: Duration = Duration::from_secs(60);

fn service() -> Service {
    Service::new(Target::parse("fonn://127.0.0.1:1/cc", []))
}

async fn connect(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(greeting, GREETING);
    stream
}

#[tokio::test]
async fn the_helper_ends_when_ccache_stops_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listening = Listening::bind(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0);
    let serving = async {
        listening.serve(service(), None).await;
        drop(listening);
    };
    let ccache = async {
        let _waits = connect(&path).await;
        let mut stream = connect(&path).await;
        stream.write_all(&[3]).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), 0);
        _waits
    };
    let both = async { tokio::join!(serving, ccache) };
    timeout(LIMIT, both).await.unwrap();
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn the_helper_ends_after_idleness() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listening = Listening::bind(&path).unwrap();
    let began = Instant::now();
    listening
        .serve(service(), Some(Duration::from_secs(5)))
        .await;
    assert!(began.elapsed() >= Duration::from_secs(5));
}

#[tokio::test]
async fn a_socket_is_taken_over_only_from_a_helper_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let first = Listening::bind(&path).unwrap();
    assert!(Listening::bind(&path).is_err());
    // As after `kill -9`: nothing listens, and the file is there.
    drop(first);
    drop(std_net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let second = Listening::bind(&path).unwrap();
    let stream = UnixStream::connect(&path).await.unwrap();
    drop(stream);
    drop(second);
    assert!(!path.exists());
    fs::write(&path, "a file").unwrap();
    assert!(Listening::bind(&path).is_err());
    assert!(Listening::bind(&dir.path().join("none/socket")).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"a file");
}
