use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

/// Answers the documents of an issuer, each on a connection of its own, and ends.
async fn serve(answers: impl Fn(SocketAddr) -> Vec<String>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = answers(address);
    let served = tokio::spawn(async move {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            asked.push(head.lines().next().unwrap().to_owned());
            // The client may have gone after the head of a response that it refuses.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
        asked
    });
    (format!("http://{address}"), served)
}

fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn configuration(issuer: &str, keys: &str) -> String {
    ok(&format!(
        "{{\"issuer\":\"{issuer}\",\"jwks_uri\":\"{keys}\"}}"
    ))
}

fn issuer(url: &str) -> Issuer {
    Issuer {
        url: url.to_owned(),
        audiences: Vec::new(),
        jwks: None,
        ca: None,
    }
}

#[tokio::test]
async fn keys_are_found_by_discovery() {
    let (url, served) = serve(|at| {
        let keys = format!("http://{at}/keys?x=1");
        vec![
            configuration(&format!("http://{at}"), &keys),
            ok("{\"keys\":[]}"),
        ]
    })
    .await;
    assert_eq!(keys(&issuer(&url)).await.unwrap().len(), 0);
    let asked = served.await.unwrap();
    let expected = [
        "GET /.well-known/openid-configuration HTTP/1.1",
        "GET /keys?x=1 HTTP/1.1",
    ];
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn a_configuration_of_another_issuer_is_refused() {
    let (url, _) =
        serve(|_| vec![configuration("https://evil.test", "https://evil.test/keys")]).await;
    let error = keys(&issuer(&url)).await.unwrap_err();
    assert!(matches!(error, FetchError::OtherIssuer { .. }), "{error}");
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_other_machine_is_asked_in_the_clear() {
    let (url, _) = serve(|_| {
        vec!["HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n".to_owned()]
    })
    .await;
    let error = keys(&issuer(&url)).await.unwrap_err();
    assert!(
        matches!(error, FetchError::Status { status: 302, .. }),
        "{error}"
    );
    for elsewhere in [
        "http://192.0.2.1/keys",
        "file:///etc/passwd",
        "https://issuer.test/keys",
        "",
    ] {
        let (url, _) = serve(|at| vec![configuration(&format!("http://{at}"), elsewhere)]).await;
        let error = keys(&issuer(&url)).await.unwrap_err();
        assert!(
            matches!(error, FetchError::Url { .. }),
            "{elsewhere}: {error}"
        );
    }
}

#[tokio::test]
async fn a_document_that_is_too_long_or_malformed_is_refused() {
    let long = " ".repeat(DOCUMENT_LEN_MAX + 1);
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{long}");
    for answer in [ok(&long), endless] {
        let (url, _) = serve(|_| vec![answer.clone()]).await;
        let error = keys(&issuer(&url)).await.unwrap_err();
        assert!(matches!(error, FetchError::Answer { .. }), "{error}");
    }
    for answer in [ok("{}"), ok("[]"), ok("")] {
        let (url, _) = serve(|_| vec![answer.clone()]).await;
        let error = keys(&issuer(&url)).await.unwrap_err();
        assert!(matches!(error, FetchError::Document { .. }), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_issuer_that_never_answers_fails_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    assert_eq!(keys(&issuer(&url)).await.unwrap_err(), FetchError::Deadline);
}

#[tokio::test]
async fn a_file_is_read_up_to_a_length() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.json");
    let of_file = Issuer {
        jwks: Some(path.clone()),
        ..issuer("https://issuer.test")
    };
    let error = keys(&of_file).await.unwrap_err();
    assert!(
        error.to_string().contains("keys.json: entity not found"),
        "{error}"
    );
    std::fs::write(&path, "{\"keys\":[]}").unwrap();
    assert!(keys(&of_file).await.is_ok());
    std::fs::write(&path, " ".repeat(DOCUMENT_LEN_MAX + 1)).unwrap();
    assert!(matches!(keys(&of_file).await, Err(FetchError::File { .. })));
}
