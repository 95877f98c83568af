//! What the helper does on the server for a request of ccache.
//!
//! An entry is the value at `PREFIX/xx/yyy…`, the key in hexadecimal. ccache's own HTTP storage has
//! the same layout, so both share entries.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use fonn_http_client::{Answer, Client, Failed, empty, whole};
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::PutMode;
use crate::settings::{SettingsError, Target};

/// Longest value in bytes.
pub(crate) const VALUE_LEN_MAX: u64 = 128 << 20;

/// Bytes of all values that the helper holds at a time.
const MEMORY_LEN_MAX: usize = 256 << 20;

/// The memory is charged in steps of so many bytes.
const CHARGE_LEN: usize = 1 << 10;

/// The entries on the server.
pub(crate) struct Service {
    addr: String,
    client: Result<Client, SettingsError>,
    memory: Arc<Semaphore>,
    failures: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    count: u64,
    last: Option<Failed>,
}

/// The settings are wrong, so no request can have a result.
pub(crate) type Refused<'a> = &'a SettingsError;

/// Memory for a value.
pub(crate) struct Charge(
    #[allow(dead_code, reason = "held until the value is gone")] OwnedSemaphorePermit,
);

impl Service {
    pub(crate) fn new(target: Result<Target, SettingsError>) -> Self {
        let addr = target.as_ref().map_or("", |it| &it.addr).to_owned();
        Self {
            addr,
            client: target.and_then(Target::client),
            memory: Arc::new(Semaphore::new(MEMORY_LEN_MAX / CHARGE_LEN)),
            failures: Mutex::default(),
        }
    }

    /// Memory for a value that arrives; none if it is longer than any may be.
    ///
    /// # Cancel safety
    /// Cancelled, it takes no memory.
    pub(crate) async fn charge(&self, value_len: u64) -> Option<Charge> {
        let steps = charged_steps(value_len)?;
        let memory = Arc::clone(&self.memory);
        memory.acquire_many_owned(steps).await.ok().map(Charge)
    }

    /// The value of a key. It counts against the memory as long as the charge is held.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<(Bytes, Charge)>, Refused<'_>> {
        let client = self.client.as_ref()?;
        let name = name(key);
        let exchange = async {
            let mut answer = client.call(Method::GET, &name, 0, || Ok(empty())).await?;
            match answer.status() {
                StatusCode::OK => {
                    let value = self.receive(&mut answer).await?;
                    answer.end().await?;
                    Ok(value)
                }
                StatusCode::NOT_FOUND => answer.end().await.map(|()| None),
                status => Err(Failed::of(status)),
            }
        };
        let got = client.within_deadline(exchange).await;
        Ok(self.noted(got).flatten())
    }

    /// The body of a response, if it is whole and there is memory for it. ccache takes an empty
    /// value for damage, so there is none.
    async fn receive(&self, answer: &mut Answer<'_>) -> Result<Option<(Bytes, Charge)>, Failed> {
        let Some(len) = answer.body_len().filter(|len| *len > 0) else {
            return Ok(None);
        };
        let memory = Arc::clone(&self.memory);
        let charge = charged_steps(len).and_then(|it| memory.try_acquire_many_owned(it).ok());
        let Some(charge) = charge.map(Charge) else {
            return Ok(None);
        };
        let mut value = BytesMut::with_capacity(usize::try_from(len).unwrap_or(0));
        while let Some(data) = answer.next().await? {
            value.extend_from_slice(&data);
        }
        Ok((value.len() as u64 == len).then(|| (value.freeze(), charge)))
    }

    /// Whether a key has a value.
    pub(crate) async fn exists(&self, key: &[u8]) -> Result<bool, Refused<'_>> {
        let client = self.client.as_ref()?;
        let found = client.within_deadline(head(client, &name(key))).await;
        Ok(self.noted(found).unwrap_or(false))
    }

    /// Stores a value. False if it is not stored.
    pub(crate) async fn put(
        &self,
        key: &[u8],
        mode: PutMode,
        value: Bytes,
    ) -> Result<bool, Refused<'_>> {
        let client = self.client.as_ref()?;
        let name = name(key);
        let exchange = async {
            if mode == PutMode::Keep && head(client, &name).await? {
                return Ok(false);
            }
            let body = || Ok(whole(value.clone()));
            let len = value.len() as u64;
            let answer = client.call(Method::PUT, &name, len, body).await?;
            match answer.status() {
                status if status.is_success() => answer.end().await.map(|()| true),
                status => Err(Failed::of(status)),
            }
        };
        let stored = client.within_deadline(exchange).await;
        Ok(self.noted(stored).unwrap_or(false))
    }

    /// Removes the value of a key. False if there was none, or it could not be removed.
    pub(crate) async fn remove(&self, key: &[u8]) -> Result<bool, Refused<'_>> {
        let client = self.client.as_ref()?;
        let name = name(key);
        let exchange = async {
            let answer = client
                .call(Method::DELETE, &name, 0, || Ok(empty()))
                .await?;
            match answer.status() {
                StatusCode::NOT_FOUND => answer.end().await.map(|()| false),
                status if status.is_success() => answer.end().await.map(|()| true),
                status => Err(Failed::of(status)),
            }
        };
        let removed = client.within_deadline(exchange).await;
        Ok(self.noted(removed).unwrap_or(false))
    }

    /// Lines for the log of ccache: what is wrong.
    pub(crate) fn diagnostics(&self) -> Vec<String> {
        if let Err(error) = &self.client {
            return vec![error.to_string()];
        }
        let failures = self.failures.lock();
        let (addr, count) = (&self.addr, failures.count);
        let last = failures.last.map(|last| match last {
            Failed::Refused(401) => format!("{addr} refuses the token (401)"),
            Failed::Refused(403) => format!("the token may not do that at {addr} (403)"),
            Failed::Refused(status) => format!("{addr} refused a request ({status})"),
            Failed::Away => format!("no reply from {addr}"),
        });
        let line = last.map(|last| format!("{last}; {count} requests failed so far"));
        line.into_iter().collect()
    }

    fn noted<T>(&self, done: Result<T, Failed>) -> Option<T> {
        done.inspect_err(|failed| {
            let mut failures = self.failures.lock();
            failures.count += 1;
            failures.last = Some(*failed);
        })
        .ok()
    }
}

async fn head(client: &Client, name: &str) -> Result<bool, Failed> {
    let answer = client.call(Method::HEAD, name, 0, || Ok(empty())).await?;
    match answer.status() {
        StatusCode::OK => answer.end().await.map(|()| true),
        StatusCode::NOT_FOUND => answer.end().await.map(|()| false),
        status => Err(Failed::of(status)),
    }
}

fn charged_steps(value_len: u64) -> Option<u32> {
    let len = usize::try_from(value_len).ok()?;
    let steps = u32::try_from(len.div_ceil(CHARGE_LEN)).ok()?;
    (value_len <= VALUE_LEN_MAX).then_some(steps)
}

/// The name of a key below the prefix. Keys of one byte are in no directory.
fn name(key: &[u8]) -> String {
    let mut name = String::with_capacity(2 * key.len() + 1);
    for (number, byte) in key.iter().enumerate() {
        if number == 1 {
            name.push('/');
        }
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_ccache_does_over_http() {
        assert_eq!(name(&[0x13, 0x12, 0x94, 0x0b]), "13/12940b");
        assert_eq!(name(&[0xab]), "ab");
    }

    #[test]
    fn values_are_charged_up_to_the_longest() {
        assert_eq!(charged_steps(0), Some(0));
        assert_eq!(charged_steps(1025), Some(2));
        assert!(charged_steps(VALUE_LEN_MAX).is_some());
        assert_eq!(charged_steps(VALUE_LEN_MAX + 1), None);
        assert_eq!(charged_steps(u64::MAX), None);
    }
}
