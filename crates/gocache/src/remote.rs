//! The server: a value for each action, over HTTP/1.1, the record first and the output behind it.

use std::path::Path;

use bytes::Bytes;
use fonn_http_client::{Answer, Body, Client, Failed, Server, ServerError, empty};
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::{Method, StatusCode};
use ring::digest::{Context, SHA256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::local::hex;
use crate::record::{HEAD_LEN, Record};

/// Bytes of an output that are sent at a time.
const PIECE_LEN: usize = 64 << 10;

/// The outputs on the server.
pub(crate) struct Remote(Client);

impl Remote {
    /// # Errors
    /// If a setting is malformed.
    pub(crate) fn new(server: Server) -> Result<Self, ServerError> {
        Ok(Self(Client::new(server)?))
    }

    /// Writes the output of an action to a new file. None if the server has none, or not a whole
    /// one, or if the file cannot be written.
    pub(crate) async fn get(&self, action: &[u8], file: File) -> Result<Option<Record>, Failed> {
        let name = hex(action);
        let exchange = async {
            let answer = self.0.call(Method::GET, &name, 0, || Ok(empty())).await?;
            match answer.status() {
                StatusCode::OK => receive(answer, file).await,
                StatusCode::NOT_FOUND => answer.end().await.map(|()| None),
                status => Err(Failed::of(status)),
            }
        };
        self.0.within_deadline(exchange).await
    }

    /// Stores the output of an action that is in the file `from`.
    pub(crate) async fn put(
        &self,
        action: &[u8],
        record: &Record,
        from: &Path,
    ) -> Result<(), Failed> {
        let head: Bytes = record.encode().ok_or(Failed::Away)?.into();
        let name = hex(action);
        let exchange = async {
            let len = record.len.saturating_add(head.len() as u64);
            let file = std::fs::File::open(from)?;
            let body = || Ok(body_of(head.clone(), file.try_clone()?));
            let answer = self.0.call(Method::PUT, &name, len, body).await?;
            match answer.status() {
                status if status.is_success() => answer.end().await,
                status => Err(Failed::of(status)),
            }
        };
        self.0.within_deadline(exchange).await
    }
}

/// Takes the record and the output of a response apart. None also if the file cannot be written,
/// for which the server is not to blame.
async fn receive(mut answer: Answer<'_>, mut file: File) -> Result<Option<Record>, Failed> {
    let mut head = Vec::new();
    let (mut digest, mut len, mut record) = (Context::new(&SHA256), 0_u64, None);
    let mut is_of_us = true;
    while let Some(mut data) = answer.next().await? {
        if !is_of_us {
            continue;
        }
        while record.is_none() && is_of_us && !data.is_empty() {
            let wanted = match head.len() < HEAD_LEN {
                true => Some(HEAD_LEN),
                false => Record::len_of(&head),
            };
            is_of_us = wanted.is_some();
            let missing = wanted.unwrap_or(0).saturating_sub(head.len());
            head.extend_from_slice(&data.split_to(missing.min(data.len())));
            record = Record::parse(&head);
        }
        digest.update(&data);
        len += data.len() as u64;
        if file.write_all(&data).await.is_err() {
            return Ok(None);
        }
    }
    answer.end().await?;
    if file.flush().await.is_err() {
        return Ok(None);
    }
    let digest = digest.finish();
    Ok(record.filter(|it| it.len == len && it.digest == *digest.as_ref()))
}

/// A body of the record and of a file, from its beginning on.
fn body_of(head: Bytes, file: std::fs::File) -> Body {
    use std::io::Seek as _;
    let mut file = file;
    let rewound = file.rewind().map(|()| File::from_std(file));
    let pieces = stream::try_unfold((Some(head), rewound), async |(head, file)| {
        let mut file = file?;
        if let Some(head) = head {
            return Ok(Some((Frame::data(head), (None, Ok(file)))));
        }
        let mut piece = Vec::with_capacity(PIECE_LEN);
        let read = file.read_buf(&mut piece).await?;
        Ok((read > 0).then(|| (Frame::data(Bytes::from(piece)), (None, Ok(file)))))
    });
    StreamBody::new(pieces).boxed_unsync()
}
