//! A store in a bucket of S3, or of a server that speaks its protocol.
//!
//! One call is one request, without retries (these are a decorator's). S3 takes an object of up to
//! 5 GiB in one request; none of ours is larger than 1 GiB.
//!
//! Integrity: a body is sent with its CRC-32C in a header, which S3, MinIO, versitygw and others
//! verify before they acknowledge, and which servers that do not know it ignore. The checksums that
//! the SDK would add by itself are off: they travel in trailers, which many servers reject. Bodies
//! that are read are checked against the length and the range that were announced; their bytes are
//! for the formats in them to check.
//!
//! Anything in the bucket whose name is no [`ObjectKey`] behind the prefix is not an object of ours
//! and is not listed. Errors name the whole key.

mod failure;
mod options;
mod upload;

use std::future::{Future, ready};
use std::ops::Range;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use bytes::Bytes;
use tokio::time::timeout;

use super::{
    Body, ObjectKey, ObjectMeta, ObjectStore, Operation, PAGE_MAX, Page, Pieces, READ_BYTES_MAX,
    StoreError, StoreErrorKind, StoreFuture, Suffix,
};

pub use options::{S3Credentials, S3OpenError, S3Options};

/// Objects in a bucket; cheap to clone.
#[derive(Clone)]
pub struct S3Store {
    client: Client,
    bucket: String,
    /// What all keys of the store begin with in the bucket: empty, or it ends with a slash.
    prefix: String,
    timeout: Duration,
    throughput_bytes_min: u64,
}

/// Without the client, which knows credentials.
impl std::fmt::Debug for S3Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("S3Store")
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

/// A call, for its errors.
struct Subject {
    operation: Operation,
    /// The key or the prefix, as the bucket knows it.
    name: String,
}

impl Subject {
    fn error(&self, kind: StoreErrorKind) -> StoreError {
        StoreError::new(self.operation, self.name.as_str(), kind)
    }

    fn error_because(&self, kind: StoreErrorKind, cause: &'static str) -> StoreError {
        self.error(kind).with_source(cause)
    }
}

impl S3Store {
    /// Reads the configuration that the options leave open from where every AWS program does:
    /// environment, profile files, instance metadata. Sends nothing to the bucket: a store that is
    /// down may be opened.
    ///
    /// # Errors
    /// When something is missing or malformed.
    pub async fn open(options: S3Options) -> Result<Self, S3OpenError> {
        Ok(Self {
            client: options::client(&options).await?,
            prefix: options
                .prefix
                .map_or_else(String::new, |it| format!("{it}/")),
            bucket: options.bucket,
            timeout: options.timeout,
            throughput_bytes_min: options.throughput_bytes_min.max(1),
        })
    }

    fn subject(&self, operation: Operation, name: &str) -> Subject {
        let name = format!("{}{name}", self.prefix);
        Subject { operation, name }
    }

    /// The key of an object by its name in the bucket, if it is one of this store.
    fn key_of(&self, name: &str) -> Option<ObjectKey> {
        ObjectKey::new(name.strip_prefix(&self.prefix)?).ok()
    }

    /// The time in which so many bytes have to be there.
    fn limit(&self, bytes: u64) -> Duration {
        let transfer_ms = bytes.saturating_mul(1000) / self.throughput_bytes_min;
        self.timeout
            .saturating_add(Duration::from_millis(transfer_ms))
    }

    /// Awaits the answer to a request that sends so many bytes.
    async fn answer<T, E>(
        &self,
        subject: &Subject,
        sent_bytes: u64,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, StoreError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        match timeout(self.limit(sent_bytes), request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failure::of_request(subject, &error)),
            Err(_) => Err(subject.error(StoreErrorKind::Timeout)),
        }
    }

    /// Begins to read what a GET answers: all of it if `range` is `None`, and otherwise what that
    /// HTTP range selects. With the length of the body, which is still to come.
    async fn begin_read(
        &self,
        subject: &Subject,
        range: Option<String>,
    ) -> Result<(GetObjectOutput, u64), StoreError> {
        let request = self.client.get_object();
        let request = request
            .bucket(&self.bucket)
            .key(&subject.name)
            .set_range(range);
        let answer = self.answer(subject, 0, request.send()).await?;
        let len = answer
            .content_length
            .and_then(|len| u64::try_from(len).ok());
        let len = len.ok_or_else(|| {
            subject.error_because(StoreErrorKind::Unavailable, "the answer has no length")
        })?;
        if len > READ_BYTES_MAX {
            let cause = "the object is larger than anything of ours";
            return Err(subject.error_because(StoreErrorKind::Invalid, cause));
        }
        Ok((answer, len))
    }

    /// Reads all of what a GET answers.
    async fn read(
        &self,
        subject: &Subject,
        range: Option<String>,
    ) -> Result<(Bytes, GetObjectOutput), StoreError> {
        let (mut answer, len) = self.begin_read(subject, range).await?;
        let body = std::mem::take(&mut answer.body);
        let mut chunks = Vec::new();
        let read = forward(subject, body, len, |chunk| {
            chunks.push(chunk);
            ready(Ok(()))
        });
        let read = timeout(self.limit(len), read).await;
        read.map_err(|_| subject.error(StoreErrorKind::Timeout))??;
        Ok((Body::from(chunks).to_bytes(), answer))
    }

    /// [`S3Store::read`], with the place of the bytes in the object and its size.
    async fn read_part(
        &self,
        subject: &Subject,
        range: String,
    ) -> Result<(Bytes, ContentRange), StoreError> {
        let (bytes, answer) = self.read(subject, Some(range)).await?;
        let place = place_of(subject, &answer, bytes.len() as u64)?;
        Ok((bytes, place))
    }

    async fn exists(&self, key: &ObjectKey) -> Result<bool, StoreError> {
        match self.head(key).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == StoreErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl ObjectStore for S3Store {
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let subject = &self.subject(Operation::Put, key.as_str());
            self.upload(subject, &body, None).await
        })
    }

    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let subject = &self.subject(Operation::PutIfAbsent, key.as_str());
            let result = self.upload(subject, &body, Some("*")).await;
            // A conflict with another write or delete that is going on: the answer to which of them
            // was first is there a moment later. A server that refuses a long body may end the
            // connection before all of it was sent, and its answer is lost.
            let may_exist = |error: &StoreError| {
                error.kind == StoreErrorKind::Unavailable
                    || error.refusal().is_some_and(|refusal| refusal.status == 409)
            };
            match result {
                Err(error) if may_exist(&error) && matches!(self.exists(key).await, Ok(true)) => {
                    Err(StoreError {
                        kind: StoreErrorKind::AlreadyExists,
                        ..error
                    })
                }
                result => result,
            }
        })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let subject = &self.subject(Operation::Get, key.as_str());
            Ok(self.read(subject, None).await?.0)
        })
    }

    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let subject = &self.subject(Operation::GetRange, key.as_str());
            let text = range_text(subject, &range)?;
            let (bytes, place) = self.read_part(subject, text).await?;
            check_place(subject, &range, &place)?;
            Ok(bytes)
        })
    }

    fn stream_range<'a>(
        &'a self,
        key: &'a ObjectKey,
        range: Range<u64>,
        to: &'a Pieces,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let subject = &self.subject(Operation::GetRange, key.as_str());
            let text = range_text(subject, &range)?;
            let (mut answer, len) = self.begin_read(subject, Some(text)).await?;
            check_place(subject, &range, &place_of(subject, &answer, len)?)?;
            let body = std::mem::take(&mut answer.body);
            let forwarded = async {
                to.begin(key).await?;
                forward(subject, body, len, |chunk| to.bytes(key, chunk)).await
            };
            let forwarded = timeout(self.limit(len), forwarded).await;
            forwarded.map_err(|_| subject.error(StoreErrorKind::Timeout))??;
            Ok(len)
        })
    }

    fn get_suffix<'a>(&'a self, key: &'a ObjectKey, len_bytes: u64) -> StoreFuture<'a, Suffix> {
        Box::pin(async move {
            let subject = &self.subject(Operation::GetSuffix, key.as_str());
            if len_bytes == 0 {
                return Err(subject.error(StoreErrorKind::Invalid));
            }
            let text = format!("bytes=-{}", len_bytes.min(i64::MAX as u64));
            let (bytes, place) = self.read_part(subject, text).await?;
            let object_size_bytes = place.object_size_bytes;
            let start = object_size_bytes.saturating_sub(len_bytes);
            check_place(subject, &(start..object_size_bytes), &place)?;
            Ok(Suffix {
                bytes,
                object_size_bytes,
            })
        })
    }

    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta> {
        Box::pin(async move {
            let subject = &self.subject(Operation::Head, key.as_str());
            let request = self.client.head_object();
            let request = request.bucket(&self.bucket).key(&subject.name);
            let answer = self.answer(subject, 0, request.send()).await?;
            Ok(ObjectMeta {
                key: key.clone(),
                size_bytes: size(answer.content_length),
                modified_ms: unix_ms(answer.last_modified.as_ref()),
            })
        })
    }

    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let subject = &self.subject(Operation::Delete, key.as_str());
            let request = self.client.delete_object();
            let request = request.bucket(&self.bucket).key(&subject.name);
            absence_is_success(self.answer(subject, 0, request.send()).await.map(drop))
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Page> {
        Box::pin(async move {
            let subject = &self.subject(Operation::List, prefix);
            let limit = limit.min(PAGE_MAX) as i32;
            if limit == 0 {
                return Err(subject.error(StoreErrorKind::Invalid));
            }
            // Each page begins behind a key, so a list can go on from any, and after a restart.
            let request = self.client.list_objects_v2();
            let request = request
                .bucket(&self.bucket)
                .prefix(&subject.name)
                .max_keys(limit)
                .set_start_after(after.map(|after| format!("{}{after}", self.prefix)));
            let answer = self.answer(subject, 0, request.send()).await?;
            let last = answer.contents().last().and_then(|last| last.key());
            let next = last
                .filter(|_| answer.is_truncated == Some(true))
                .and_then(|last| last.strip_prefix(&self.prefix))
                .map(str::to_owned);
            let objects = answer.contents().iter().filter_map(|object| {
                Some(ObjectMeta {
                    key: self.key_of(object.key()?)?,
                    size_bytes: size(object.size),
                    modified_ms: unix_ms(object.last_modified()),
                })
            });
            Ok(Page {
                objects: objects.collect(),
                next,
            })
        })
    }
}

/// A range as HTTP says it.
fn range_text(subject: &Subject, range: &Range<u64>) -> Result<String, StoreError> {
    // HTTP cannot say an empty range.
    if range.is_empty() {
        return Err(subject.error(StoreErrorKind::Invalid));
    }
    let last = range.end - 1;
    // Servers read the ends as signed numbers.
    if last < i64::MAX as u64 {
        Ok(format!("bytes={}-{last}", range.start))
    } else if range.start < i64::MAX as u64 {
        Ok(format!("bytes={}-", range.start))
    } else {
        Err(subject.error(StoreErrorKind::OutOfRange))
    }
}

fn absence_is_success(result: Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Err(error) if error.kind == StoreErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn size(len: Option<i64>) -> u64 {
    len.and_then(|len| u64::try_from(len).ok()).unwrap_or(0)
}

fn unix_ms(time: Option<&DateTime>) -> u64 {
    let ms = time.and_then(|time| time.to_millis().ok());
    ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0)
}

/// Where the `len` bytes of an answer to a ranged request lie in the object.
fn place_of(
    subject: &Subject,
    answer: &GetObjectOutput,
    len: u64,
) -> Result<ContentRange, StoreError> {
    let Some(text) = answer.content_range() else {
        // For an empty object some servers answer this instead of 416.
        if len == 0 {
            return Err(subject.error(StoreErrorKind::OutOfRange));
        }
        let cause = "the store ignores ranges";
        return Err(subject.error_because(StoreErrorKind::Unsupported, cause));
    };
    let place = ContentRange::parse(text);
    let place = place.filter(|place| place.bytes.end - place.bytes.start == len);
    place.ok_or_else(|| {
        let cause = "the answer has not the length of its range";
        subject.error_because(StoreErrorKind::Unavailable, cause)
    })
}

/// Refuses an answer that is not of `range`, cut to the object.
fn check_place(
    subject: &Subject,
    range: &Range<u64>,
    place: &ContentRange,
) -> Result<(), StoreError> {
    if place.bytes == (range.start..range.end.min(place.object_size_bytes)) {
        return Ok(());
    }
    let cause = "the answer is another range than was asked for";
    Err(subject.error_because(StoreErrorKind::Unavailable, cause))
}

/// Hands over a body of exactly `len` bytes, chunk by chunk.
async fn forward<F>(
    subject: &Subject,
    mut body: ByteStream,
    len: u64,
    mut to: impl FnMut(Bytes) -> F,
) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>>,
{
    let mut received = 0u64;
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| failure::of_body(subject, &error))?;
        received += chunk.len() as u64;
        if received > len {
            break;
        }
        to(chunk).await?;
    }
    if received == len {
        return Ok(());
    }
    let cause = "the body has not the announced length";
    Err(subject.error_because(StoreErrorKind::Unavailable, cause))
}

/// The header of that name: `bytes 0-99/1000`.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    bytes: Range<u64>,
    object_size_bytes: u64,
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let object_size_bytes = size.parse().ok()?;
        let is_in_order = first <= last && last < object_size_bytes;
        is_in_order.then(|| Self {
            bytes: first..last + 1,
            object_size_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_parsed_or_refused() {
        let parsed = ContentRange::parse("bytes 5-9/10").unwrap();
        assert_eq!((parsed.bytes, parsed.object_size_bytes), (5..10, 10));
        for wrong in [
            "",
            "bytes 5-9",
            "bytes 5-9/*",
            "bytes */10",
            "bytes 5-4/10",
            "bytes 5-10/10",
            "bytes 0-18446744073709551615/18446744073709551615",
            "5-9/10",
            "bytes -5-9/10",
        ] {
            assert_eq!(ContentRange::parse(wrong), None, "{wrong}");
        }
    }
}
