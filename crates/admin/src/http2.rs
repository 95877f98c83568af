//! HTTP/2 beside HTTP/1.1 on one port: which of both a connection speaks, and the tasks of its
//! streams.

use std::future::Future;
use std::io;
use std::sync::Arc;

use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::JoinSet;

/// The beginning of every HTTP/2 connection (RFC 9113, section 3.4), as far as no request line of
/// HTTP/1.1 has it too: no method begins like this.
const HTTP2_MARK: &[u8; 3] = b"PRI";

/// Reads until it is clear whether HTTP/2 or HTTP/1.1 is spoken; `first` has what was read.
///
/// # Errors
/// Those of the stream, and an unexpected end.
///
/// # Cancel safety
/// What was read is in `first`.
pub async fn is_http2(
    stream: &mut (impl AsyncRead + Unpin),
    first: &mut Vec<u8>,
) -> io::Result<bool> {
    while HTTP2_MARK.starts_with(first) && first.len() < HTTP2_MARK.len() {
        let mut rest = stream.take((HTTP2_MARK.len() - first.len()) as u64);
        if rest.read_buf(first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(first == HTTP2_MARK)
}

/// The requests of an HTTP/2 connection run as tasks that end with it.
#[derive(Clone, Debug, Default)]
pub struct Streams(Arc<Mutex<JoinSet<()>>>);

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let mut tasks = self.0.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn detected(bytes: &[u8]) -> (io::Result<bool>, Vec<u8>) {
        let mut first = Vec::new();
        let mut stream = bytes;
        let result = is_http2(&mut stream, &mut first).await;
        // Whatever was not read is still there.
        first.extend_from_slice(stream);
        (result, first)
    }

    #[tokio::test]
    async fn the_version_is_found_from_the_first_bytes_and_none_is_lost() {
        for (bytes, is_http2) in [
            (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], true),
            (b"GET / HTTP/1.1\r\n", false),
            (b"PUT / HTTP/1.1\r\n", false),
            (b"PROPFIND / HTTP/1.1\r\n", false),
            (b"\x80", false),
        ] {
            let (result, seen) = detected(bytes).await;
            assert_eq!(result.unwrap(), is_http2);
            assert_eq!(seen, bytes);
        }
        for bytes in [&b""[..], b"P", b"PR"] {
            assert!(detected(bytes).await.0.is_err());
        }
    }
}
