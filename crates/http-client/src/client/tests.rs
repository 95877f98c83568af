use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::{empty, whole};

fn server(addr: String) -> Server {
    Server {
        addr,
        tls: None,
        token: Some("secret".to_owned()),
        agent: "test/1",
        prefix: "team".to_owned(),
        deadline: Duration::from_secs(60),
    }
}

/// Reads the head of a request and as many bytes as it announces. None at the end of the input.
async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(read).unwrap();
    let len = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(text + std::str::from_utf8(&body).unwrap())
}

/// Answers each connection by these answers, then closes it. Returns its address, and how many
/// connections there were.
async fn serve(answers: &'static [&'static str]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            for answer in answers {
                let Some(asked) = read(&mut stream).await else {
                    break;
                };
                assert!(asked.contains("authorization: Bearer secret"), "{asked}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    });
    (addr, count)
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

async fn get(client: &Client) -> Result<String, Failed> {
    client
        .within_deadline(async {
            let mut answer = client.call(Method::GET, "a", 0, || Ok(empty())).await?;
            let mut body = Vec::new();
            while let Some(data) = answer.next().await? {
                body.extend_from_slice(&data);
            }
            answer.end().await?;
            Ok(String::from_utf8(body).unwrap())
        })
        .await
}

#[tokio::test]
async fn requests_one_after_another_share_a_connection() {
    let (addr, count) = serve(&[OK; 20]).await;
    let client = Client::new(server(addr)).unwrap();
    for _ in 0..20 {
        assert_eq!(get(&client).await.unwrap(), "hello");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_request_on_a_connection_that_the_server_closed_is_sent_again() {
    let (addr, count) = serve(&[OK]).await;
    let client = Client::new(server(addr)).unwrap();
    for _ in 0..5 {
        assert_eq!(get(&client).await.unwrap(), "hello");
    }
    let put = client.call(Method::PUT, "a", 3, || Ok(whole("abc".into())));
    assert_eq!(put.await.unwrap().status(), StatusCode::OK);
    assert_eq!(count.load(Ordering::Relaxed), 6);
}

#[tokio::test]
async fn a_connection_that_was_idle_for_long_is_not_used() {
    let (addr, count) = serve(&[OK; 2]).await;
    let client = Client::new(server(addr)).unwrap();
    get(&client).await.unwrap();
    client.idle.lock()[0].since -= IDLE_AGE_MAX;
    get(&client).await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(client.idle.lock().len(), 1);
}

#[tokio::test]
async fn after_a_deadline_no_idle_connection_is_used() {
    let (addr, count) = serve(&[OK; 2]).await;
    let client = Client::new(server(addr)).unwrap();
    get(&client).await.unwrap();
    tokio::time::pause();
    let late = client.within_deadline(std::future::pending::<Result<(), _>>());
    assert_eq!(late.await, Err(Failed::Away));
    tokio::time::resume();
    get(&client).await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_response_that_was_not_read_to_its_end_costs_its_connection() {
    let (addr, count) = serve(&[OK; 2]).await;
    let client = Client::new(server(addr)).unwrap();
    for _ in 0..2 {
        let answer = client.call(Method::GET, "a", 0, || Ok(empty())).await;
        assert_eq!(answer.unwrap().body_len(), Some(5));
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn after_failures_in_a_row_the_server_is_not_called() {
    let (addr, count) = serve(&["HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"; 9]).await;
    let client = Client::new(server(addr)).unwrap();
    for _ in 0..9 {
        let failed: Result<(), _> = client
            .within_deadline(async {
                let answer = client.call(Method::GET, "a", 0, || Ok(empty())).await?;
                Err(Failed::of(answer.status()))
            })
            .await;
        assert_eq!(failed, Err(Failed::Away));
    }
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[test]
fn malformed_settings_are_refused() {
    let refused = |change: fn(&mut Server)| {
        let mut server = server("127.0.0.1:1".to_owned());
        change(&mut server);
        Client::new(server).err()
    };
    assert_eq!(refused(|_| ()), None);
    assert_eq!(refused(|it| it.prefix = String::new()), None);
    for prefix in ["/a", "a/", "a//b", "a/../b", "a b", "a%20b"] {
        let server = Server {
            prefix: prefix.to_owned(),
            ..server("127.0.0.1:1".to_owned())
        };
        let error = Client::new(server).err();
        assert_eq!(error, Some(ServerError::Prefix(prefix.to_owned())));
    }
    for addr in ["", "host", ":1", "host:port", "a b:1\n"] {
        let error = Client::new(server(addr.to_owned())).err();
        assert_eq!(error, Some(ServerError::Addr(addr.to_owned())));
    }
    let token = refused(|it| it.token = Some("a\nb".to_owned()));
    assert_eq!(token, Some(ServerError::Token));
}
