//! The short way of a store: from the request into its entry, under the shard's lock.
//!
//! Most stores set a value, whatever was there. They need no look at what was there, no future, and
//! no copy of the value besides those that the tiers keep. Whatever is not that simple is declined
//! here, before anything was done, and goes through [`Engine::execute`], which answers a plain
//! store with the same words.

use bytes::Bytes;
use fonn_base::entry::Meta;
use fonn_codec::CodecId;
use fonn_proto::{Command, Outcome};
use fonn_ram_tier::INLINE_LEN_MAX;

use super::hit::Moment;
use super::semantics::{self, Change};
use super::{Acks, EVICTIONS_MAX, Engine, Job};

impl Engine {
    /// Carries out a store that does not depend on what is there: `word` gets the
    /// outcome and puts it into words. The outcome is provisional until the acknowledgements that
    /// were added have come.
    ///
    /// Returns false if it takes more than that; nothing was done then.
    #[inline]
    pub fn answer_store(
        &self,
        job: &Job<'_>,
        moment: Moment,
        acks: &mut Acks,
        word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        let Some((_, outcome)) = self.store_at_once(job, moment, acks, None) else {
            return false;
        };
        word(&outcome);
        true
    }

    /// As [`Engine::answer_store`]; returns the facts of the entry as well. `plain` is the value of
    /// the request, if it is needed elsewhere as the tiers keep it.
    #[inline]
    pub(crate) fn store_at_once(
        &self,
        job: &Job<'_>,
        moment: Moment,
        acks: &mut Acks,
        plain: Option<&Bytes>,
    ) -> Option<(Meta, Outcome<'static>)> {
        let hot = &*self.hot;
        let &Job { space, command, .. } = job;
        let Command::Store(store) = command else {
            return None;
        };
        // A long value is compressed elsewhere, and one that others need is compressed once.
        let len = store.value.len();
        let (spec, min_bytes) = self.ram_codec.active();
        let is_elsewhere = len > INLINE_LEN_MAX || plain.is_some() && len >= min_bytes;
        if is_elsewhere && spec.id() != CodecId::NONE
            || !semantics::is_blind(command)
            || hot.namespaces.is_write_once(space.namespace())
        {
            return None;
        }
        let hash = hot.ram.hash(space, store.key);
        let mut shard = hot.ram.lock(hash);
        let rules = self.rules_at(space, moment.now_ms);
        let (mut change, outcome) =
            semantics::apply(command, None, rules, || self.ledger.hlc.next());
        change.write_as(job.writer);
        let Change::PutRequest(meta) = change else {
            return None;
        };
        if self.is_late(acks) || meta.version >= self.ledger.ceiling() {
            return None;
        }
        let fresh = self.fresh(hash, space, store.key, meta);
        let request = (job, store.value, plain);
        let put = self.put_request(&mut shard, fresh, request, moment.now_s, acks);
        drop(shard);
        // Why it is refused is found out on the long way, which makes room first.
        put.ok()?;
        hot.ram
            .evict_to_budget(Some(hash), moment.now_s, EVICTIONS_MAX);
        self.evict_to_quota(hash, space);
        self.count(space, command, &outcome);
        Some((meta, outcome))
    }
}
