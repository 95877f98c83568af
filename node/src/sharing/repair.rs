//! Read repair: bringing owners of a slot with different versions of a key together, outside of a
//! change of owners.
//!
//! They differ when one of them does not accept a write: the write is refused then, and stays where
//! it was accepted. The primary notes such a key. Another owner notes it when its copy is read and
//! the primary has another version. A moment later each noted key is checked, one at a time and
//! without a waiting client. The owner with the older version receives the newer one, be it a
//! tombstone. The number of noted keys is bounded. A key beyond it is found again by the next read
//! of a copy, or overwritten by the next write.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fonn_base::entry::Space;
use fonn_forward::{Target, envelope};
use fonn_proto::peer::{Reply, Request};
use fonn_proto::placement;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::metrics::Event;
use super::{FILLING, PRIMARY, REPLICA, SHARED, Sharing};
use crate::engine::{Acks, Engine};

/// A key that is read.
type Key = (Space, Box<[u8]>);

/// Keys that are noted at most.
const KEYS_MAX: usize = 1024;

/// Bytes of these keys at most.
const BYTES_MAX: usize = 256 << 10;

/// From noting a key until it is looked at, and looked at again: a write that was under way is over
/// by then.
const WAIT: Duration = Duration::from_secs(1);

/// Looks at one key; an owner that takes nothing for so long is down, or will be asked when it is
/// read.
const TRIES_MAX: u32 = 30;

/// The keys that are noted.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    queue: Mutex<Queue>,
    noted: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    keys: VecDeque<Noted>,
    known: HashSet<Key>,
    bytes: usize,
}

#[derive(Debug)]
struct Noted {
    key: Key,
    due: Instant,
    tries: u32,
}

impl Repairs {
    /// Notes a key. False if there is no room for it.
    fn note(&self, key: Key, tries: u32) -> bool {
        let mut queue = self.queue.lock();
        if queue.known.contains(&key) {
            return true;
        }
        let bytes = queue.bytes + key.1.len();
        if queue.keys.len() >= KEYS_MAX || bytes > BYTES_MAX {
            return false;
        }
        queue.bytes = bytes;
        queue.known.insert(key.clone());
        queue.keys.push_back(Noted {
            key,
            due: Instant::now() + WAIT,
            tries,
        });
        drop(queue);
        self.noted.notify_one();
        true
    }

    /// The key that was noted first. It may be noted again from now on.
    fn take(&self) -> Option<Noted> {
        let mut queue = self.queue.lock();
        let noted = queue.keys.pop_front()?;
        queue.known.remove(&noted.key);
        queue.bytes -= noted.key.1.len();
        Some(noted)
    }

    /// When the next one is to be looked at.
    fn due(&self) -> Option<Instant> {
        self.queue.lock().keys.front().map(|noted| noted.due)
    }
}

/// What came of looking at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looked {
    /// The owners have the same, or this member has no say.
    Agreed,
    /// The owner with the older version has the newer one now.
    Repaired,
    /// Another owner does not answer, or does not take it yet.
    Open,
}

/// Looks at what was noted, for ever.
pub async fn run(sharing: Arc<Sharing>, engine: Arc<Engine>) {
    loop {
        let Some(due) = sharing.repairs.due() else {
            sharing.repairs.noted.notified().await;
            continue;
        };
        tokio::time::sleep_until(due).await;
        let Some(Noted { key, tries, .. }) = sharing.repairs.take() else {
            continue;
        };
        match sharing.look_at(&engine, &key).await {
            Looked::Agreed => {}
            Looked::Repaired => sharing.events.count(Event::Repaired),
            Looked::Open if tries >= TRIES_MAX => sharing.events.count(Event::NotRepaired),
            Looked::Open => {
                if !sharing.repairs.note(key, tries + 1) {
                    sharing.events.count(Event::NotRepaired);
                }
            }
        }
    }
}

impl Sharing {
    /// Has it looked at whether the owners of a key have the same, in a moment.
    pub(crate) fn note_disagreement(&self, space: Space, key: &[u8]) {
        if !self.repairs.note((space, key.into()), 1) {
            self.events.count(Event::NotRepaired);
        }
    }

    async fn look_at(&self, engine: &Engine, (space, key): &Key) -> Looked {
        let slot = placement::slot(key);
        let flags = self.flags(slot);
        if flags & (PRIMARY | REPLICA) == 0 || flags & SHARED == 0 {
            return Looked::Agreed;
        }
        // A new owner, or one that was away, asks about each key itself.
        if flags & FILLING != 0 || !self.is_sound() {
            return Looked::Open;
        }
        if flags & PRIMARY != 0 {
            return match self.give(engine, *space, key, self.epoch()).await {
                Ok(()) => Looked::Repaired,
                Err(_) => Looked::Open,
            };
        }
        let Some(first) = self.forwarder.upstreams().owner(slot, 0) else {
            return Looked::Open;
        };
        let compared = self.compare(engine, &first, *space, key).await;
        compared.unwrap_or(Looked::Open)
    }

    /// Compares what is here with what the first owner has; None if that does not come to an end.
    async fn compare(
        &self,
        engine: &Engine,
        first: &Target,
        space: Space,
        key: &[u8],
    ) -> Option<Looked> {
        let envelope = envelope(placement::slot(key), space, first.epoch);
        let ask = async |request: &Request<'_>| {
            let call = first.client.call(request, envelope, None, self.owners_wait);
            call.await.ok()
        };
        let own = engine.copy_version(space, key).await;
        let told = ask(&Request::Version { key }).await?;
        match told.reply() {
            Ok(Reply::Version(version)) if own == Some(version) => return Some(Looked::Agreed),
            Ok(Reply::Version(_)) => {}
            _ => return None,
        }
        let own = engine.newest(space, key).await.ok()?;
        let fetched = ask(&Request::Fetch { key }).await?;
        match fetched.reply() {
            Ok(Reply::Entry(entry)) if own.is_none_or(|own| own < entry.version) => {
                let mut acks = Acks::default();
                let is_new = engine.put_of_peer(&entry, &mut acks).await.ok()?;
                acks.wait().await.is_empty().then_some(match is_new {
                    true => Looked::Repaired,
                    false => Looked::Agreed,
                })
            }
            Ok(Reply::Entry(entry)) if own > Some(entry.version) => {
                let Some(transfer) = engine.fetch_for_peer(space, key).await.ok()? else {
                    return Some(Looked::Agreed);
                };
                let put = Request::Put(transfer.entry(space, key, usize::MAX));
                match ask(&put).await?.reply() {
                    Ok(Reply::Applied) => Some(Looked::Repaired),
                    Ok(Reply::NotNewer) => Some(Looked::Agreed),
                    _ => None,
                }
            }
            // The same, or nothing is known there any more: a cache may forget.
            Ok(Reply::Entry(_) | Reply::Unknown) => Some(Looked::Agreed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn so_many_keys_are_noted_and_no_more_each_once() {
        let repairs = Repairs::default();
        let key = |number: usize| (Space::default(), number.to_string().as_bytes().into());
        for number in 0..KEYS_MAX {
            assert!(repairs.note(key(number), 1));
        }
        assert!(repairs.note(key(7), 1), "it is noted");
        assert!(!repairs.note(key(KEYS_MAX), 1));
        let first = repairs.take().unwrap();
        assert_eq!(first.key, key(0));
        assert!(repairs.note(key(KEYS_MAX), 1));
        while repairs.take().is_some() {}
        let queue = repairs.queue.lock();
        assert_eq!((queue.bytes, queue.known.len()), (0, 0));
        drop(queue);
        let long = |byte: u8| (Space::default(), vec![byte; 200 << 10].into_boxed_slice());
        assert!(repairs.note(long(1), 1));
        assert!(!repairs.note(long(2), 1));
    }
}
