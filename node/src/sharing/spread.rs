//! Replicating writes to the other owners of a slot before they are acknowledged.
//!
//! A member that is cut off applies its last map, while the others may have replaced it. So no
//! member accepts a write by a map older than its own. A write is not acknowledged if its map was
//! in force while this member was away, since no member waited for it. While no leader is heard,
//! the member asks the other owners before it executes a write at all. A write that is executed and
//! not acknowledged stays here, and is newer than what others acknowledge meanwhile.

use std::sync::atomic::Ordering;
use std::time::Instant;

use fonn_base::entry::Space;
use fonn_forward::envelope;
use fonn_proto::peer::{Entry, Reply, Request};
use fonn_proto::{Failure, Outcome, placement};
use fonn_rpc::CallError;

use super::metrics::Event;
use super::{PRIMARY, REPLICA, RETRY, SHARED, Sharing, Unconfirmed};
use crate::engine::{Acks, Engine};

impl Sharing {
    /// Whether this member may execute writes on a slot. While a leader is heard it knows; else the
    /// other owners have to be there, and go by no newer map.
    pub(crate) async fn check_standing(&self, slot: u16) -> Result<(), Failure> {
        // A member that has just lost its leader, which was an owner, has a new one in a moment,
        // and a map without it.
        let deadline = Instant::now() + self.owners_wait;
        loop {
            if !self.pulse.is_leaderless() || self.flags(slot) & SHARED == 0 {
                return Ok(());
            }
            let standing = self.ask_owners(slot).await;
            if standing.is_ok() || Instant::now() >= deadline {
                return standing;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// What was executed while it became unclear whether this member owns the slot counts if it did
    /// all the time: waits until that is known.
    #[cold]
    pub(super) async fn stood(
        &self,
        slot: u16,
        since: u64,
        deadline: Instant,
    ) -> Result<(), Unconfirmed> {
        while !self.is_sound() {
            if Instant::now() >= deadline {
                return Err(Unconfirmed::Silent);
            }
            tokio::time::sleep(RETRY / 4).await;
        }
        let owns = self.flags(slot) & (PRIMARY | REPLICA) != 0;
        match owns && self.broken.load(Ordering::SeqCst) <= since {
            true => Ok(()),
            false => Err(Unconfirmed::Kept(Failure::Unavailable)),
        }
    }

    /// The same for a command on several slots.
    ///
    /// # Errors
    /// What it is to be refused with.
    pub(crate) async fn all_stood(&self, slots: &[u16], since: u64) -> Result<(), Failure> {
        if self.is_sound() {
            return Ok(());
        }
        let deadline = Instant::now() + self.owners_wait;
        for slot in slots {
            self.stood(*slot, since, deadline)
                .await
                .map_err(|why| match why {
                    Unconfirmed::Silent => Failure::Busy,
                    Unconfirmed::Kept(failure) => failure,
                })?;
        }
        Ok(())
    }

    async fn ask_owners(&self, slot: u16) -> Result<(), Failure> {
        let (owners, wait) = (self.forwarder.upstreams().owners(slot), self.owners_wait);
        let calls = owners.into_iter().map(|(_, target)| async move {
            let envelope = envelope(slot, Space::default(), target.epoch);
            let call = target.client.call(&Request::Ping, envelope, None, wait);
            let answer = call.await.map_err(|_| Failure::Unavailable)?;
            let is_known = answer.head().envelope.epoch <= target.epoch;
            is_known.then_some(()).ok_or(Failure::Busy)
        });
        let answers = futures_util::future::join_all(calls).await;
        answers.into_iter().collect()
    }

    /// Gives the other owners what there is of a key now; returns when all that are up have it.
    /// `since` is the epoch of the map by which it was executed. What one of them did not take is
    /// brought to it later, refused or not.
    pub(super) async fn spread(
        &self,
        engine: &Engine,
        space: Space,
        key: &[u8],
        since: u64,
    ) -> Result<(), Failure> {
        let given = self.give(engine, space, key, since).await;
        if given == Err(Failure::Unavailable) {
            self.events.count(Event::NotReplicated);
        }
        if given.is_err() {
            self.note_disagreement(space, key);
        }
        given
    }

    /// Gives the other owners that a key is gone which this member does not have, from the version
    /// of `gone` on. They may have it: a deletion that an owner did not take was refused, and is
    /// repeated now, or it was dropped from this disk only. An older tombstone that is here may be
    /// no newer than what they have.
    pub(super) async fn spread_absence(
        &self,
        engine: &Engine,
        gone: &Entry<'_>,
        acks: &mut Acks,
        since: u64,
    ) -> Result<(), Failure> {
        let kept = engine.put_of_peer(gone, acks).await;
        kept.map_err(super::failure)?;
        self.spread(engine, Space(gone.space), gone.key, since)
            .await
    }

    /// As [`Self::spread`]; nothing is counted or noted where it fails.
    pub(super) async fn give(
        &self,
        engine: &Engine,
        space: Space,
        key: &[u8],
        since: u64,
    ) -> Result<(), Failure> {
        let slot = placement::slot(key);
        if self.flags(slot) & (PRIMARY | SHARED) == PRIMARY {
            return self.check_unbroken(since);
        }
        let Some(transfer) = engine.fetch_for_peer(space, key).await? else {
            return self.check_unbroken(since);
        };
        let request = Request::Put(transfer.entry(space, key, usize::MAX));
        let deadline = Instant::now() + self.owners_wait;
        let mut done: Vec<String> = Vec::new();
        loop {
            let mut owners = self.forwarder.upstreams().owners(slot);
            self.check_unbroken(since)?;
            owners.retain(|(id, _)| !done.contains(id));
            if owners.is_empty() {
                return Ok(());
            }
            let calls = owners.into_iter().map(|(id, target)| {
                let request = &request;
                let envelope = envelope(slot, space, target.epoch);
                async move {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let answer = target.client.call(request, envelope, None, left).await;
                    (id, target.epoch, answer)
                }
            });
            for (id, epoch, answer) in futures_util::future::join_all(calls).await {
                let answer = match &answer {
                    Ok(answer) => answer,
                    Err(CallError::TooLong) => return Err(Failure::TooLarge),
                    Err(_) => continue,
                };
                match answer.reply() {
                    // By a newer map this member may have no say; it is given again when that map
                    // is here.
                    Ok(Reply::Applied | Reply::NotNewer)
                        if answer.head().envelope.epoch <= epoch =>
                    {
                        self.events.count(Event::Replicated);
                        done.push(id);
                    }
                    Ok(Reply::Outcome(Outcome::Failed(Failure::TooLarge))) => {
                        return Err(Failure::TooLarge);
                    }
                    _ => {}
                }
            }
            if Instant::now() >= deadline {
                return Err(Failure::Unavailable);
            }
            let owners = self.forwarder.upstreams().owners(slot);
            if owners.iter().any(|(id, _)| !done.contains(id)) {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Gives the other owners what there is of some keys now, executed by the map of epoch `since`.
    ///
    /// # Errors
    /// If one that is up does not take it.
    pub async fn spread_all(
        &self,
        engine: &Engine,
        space: Space,
        keys: impl Iterator<Item = &[u8]>,
        since: u64,
    ) -> Result<(), Failure> {
        for key in keys {
            self.spread(engine, space, key, since).await?;
        }
        Ok(())
    }

    /// Whether this member was there by all maps since the one of that epoch.
    pub(super) fn check_unbroken(&self, since: u64) -> Result<(), Failure> {
        if self.broken.load(Ordering::SeqCst) <= since {
            return Ok(());
        }
        Err(Failure::Unavailable)
    }
}
