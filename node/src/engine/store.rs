//! The short way of a store: from the request into its entry, under the shard's lock.
//!
//! Most stores set a value, whatever was there. They need no look at what was there, no future, and
//! no copy of the value besides those that the tiers keep. Whatever is not that simple is declined
//! here, before anything was done, and goes through [`Engine::execute`], which answers a plain
//! store with the same words.

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
        let hot = &*self.hot;
        let &Job { space, command, .. } = job;
        let Command::Store(store) = command else {
            return false;
        };
        // A long value is compressed elsewhere.
        if store.value.len() > INLINE_LEN_MAX && self.ram_codec.active().0.id() != CodecId::NONE
            || !semantics::is_blind(command)
            || hot.namespaces.is_write_once(space.namespace())
        {
            return false;
        }
        let hash = hot.ram.hash(space, store.key);
        let mut shard = hot.ram.lock(hash);
        let rules = self.rules_at(space, moment.now_ms);
        let (mut change, outcome) =
            semantics::apply(command, None, rules, || self.ledger.hlc.next());
        change.write_as(job.writer);
        let Change::PutRequest(meta) = change else {
            return false;
        };
        if meta.version >= self.ledger.ceiling() {
            return false;
        }
        let fresh = self.fresh(hash, space, store.key, meta);
        let request = (job, store.value);
        let put = self.put_request(&mut shard, fresh, request, moment.now_s, acks);
        drop(shard);
        // Why it is refused is found out on the long way, which makes room first.
        if put.is_err() {
            return false;
        }
        hot.ram
            .evict_to_budget(Some(hash), moment.now_s, EVICTIONS_MAX);
        self.evict_to_quota(hash, space);
        self.count(space, command, &outcome);
        word(&outcome);
        true
    }
}
