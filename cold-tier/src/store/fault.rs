//! A store that fails on demand, for tests: repeatable by its seed, and scripted by rules.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fonn_base::random::SplitMix64;
use parking_lot::Mutex;

use super::around::{Answer, Around, Call};
use super::{ObjectKey, ObjectStore, Operation, StoreError, StoreErrorKind, StoreFuture};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails, and the store below never sees it.
    Error(StoreErrorKind),
    /// The call takes place, and its answer is lost: a timeout, a broken connection.
    LostAnswer(StoreErrorKind),
    /// There is never an answer; the store below does not see the call.
    Hang,
    /// A read gives only a part of the bytes.
    Truncate,
    /// A read gives a wrong bit.
    FlipBit,
    /// A list does not know the objects that were written last.
    StaleList,
    /// The object is gone for good, as if another process had deleted it.
    Vanish,
    /// The answer takes so long.
    Slow(Duration),
    /// A write fails, and leaves an object with a part of the bytes: what no store should do.
    HalfWritten(StoreErrorKind),
}

/// When something goes wrong. A new rule is always good for all calls; its methods restrict it.
#[derive(Clone, Debug)]
pub struct Rule {
    fault: Fault,
    operation: Option<Operation>,
    subject_part: String,
    skip: u64,
    times: u64,
    per_mille: u64,
}

impl Rule {
    /// `fault` at every call that it can happen to.
    #[must_use]
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            operation: None,
            subject_part: String::new(),
            skip: 0,
            times: u64::MAX,
            per_mille: 1000,
        }
    }

    /// Only for this operation.
    #[must_use]
    pub fn on(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Only for keys and prefixes that contain `part`.
    #[must_use]
    pub fn matching(mut self, part: &str) -> Self {
        part.clone_into(&mut self.subject_part);
        self
    }

    /// Not for the first `calls` calls that it would be good for.
    #[must_use]
    pub fn after(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// Only so many times.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Only for about so many of a thousand calls, drawn by the seed.
    #[must_use]
    pub fn per_mille(mut self, per_mille: u64) -> Self {
        self.per_mille = per_mille;
        self
    }

    fn is_for(&self, call: &Call<'_>) -> bool {
        let is_possible = match self.fault {
            Fault::Truncate | Fault::FlipBit => matches!(
                call.operation,
                Operation::Get | Operation::GetRange | Operation::GetSuffix
            ),
            Fault::Vanish => call.operation.is_read(),
            Fault::StaleList => call.operation == Operation::List,
            Fault::HalfWritten(_) => {
                matches!(call.operation, Operation::Put | Operation::PutIfAbsent)
            }
            Fault::Error(_) | Fault::LostAnswer(_) | Fault::Hang | Fault::Slow(_) => true,
        };
        is_possible
            && self.times > 0
            && self.operation.is_none_or(|only| only == call.operation)
            && call.subject.contains(&self.subject_part)
    }
}

/// How many of the objects written last a stale list does not know.
const STALE_MAX: usize = 8;

/// A store with faults.
pub struct FaultStore {
    inner: Arc<dyn ObjectStore>,
    is_down: AtomicBool,
    calls: AtomicU64,
    injected: AtomicU64,
    script: Mutex<Script>,
}

struct Script {
    random: SplitMix64,
    rules: Vec<Rule>,
    /// The keys written last, the newest at the end.
    written: Vec<String>,
}

impl fmt::Debug for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultStore")
            .field("inner", &self.inner)
            .field("injected", &self.injected())
            .finish_non_exhaustive()
    }
}

impl FaultStore {
    /// A store without faults so far; equal seeds and calls give equal faults.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, seed: u64) -> Self {
        Self {
            inner,
            is_down: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            injected: AtomicU64::new(0),
            script: Mutex::new(Script {
                random: SplitMix64::new(seed),
                rules: Vec::new(),
                written: Vec::new(),
            }),
        }
    }

    /// Adds a rule. Of several that are good for a call the first one counts.
    pub fn add(&self, rule: Rule) {
        self.script.lock().rules.push(rule);
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        self.script.lock().rules.clear();
    }

    /// From now on every call fails as [`StoreErrorKind::Unavailable`].
    pub fn go_down(&self) {
        self.is_down.store(true, Ordering::Relaxed);
    }

    /// Ends [`FaultStore::go_down`].
    pub fn come_up(&self) {
        self.is_down.store(false, Ordering::Relaxed);
    }

    /// Calls so far, those that failed among them.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Faults so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// The fault of a call, if it has one.
    fn draw(&self, call: &Call<'_>) -> Option<Fault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut script = self.script.lock();
        let script = &mut *script;
        let fault = if self.is_down.load(Ordering::Relaxed) {
            Some(Fault::Error(StoreErrorKind::Unavailable))
        } else {
            script.fault(call)
        };
        let is_put = matches!(call.operation, Operation::Put | Operation::PutIfAbsent);
        if is_put && !matches!(fault, Some(Fault::Error(_) | Fault::Hang)) {
            script.written.retain(|key| key != call.subject);
            script.written.push(call.subject.to_owned());
            let surplus = script.written.len().saturating_sub(STALE_MAX);
            script.written.drain(..surplus);
        }
        if fault.is_some() {
            self.injected.fetch_add(1, Ordering::Relaxed);
        }
        fault
    }

    /// Leaves a part of an object that was written just now.
    async fn cut(&self, subject: &str) -> Result<(), StoreError> {
        // A subject of a write is a key.
        let Ok(key) = ObjectKey::new(subject) else {
            return Ok(());
        };
        let whole = self.inner.get(&key).await?;
        let len = self.script.lock().random.below(whole.len().max(1) as u64);
        self.inner
            .put(&key, whole.slice(..len as usize).into())
            .await
    }

    /// Changes what the store below answered.
    fn damage<T: Answer>(&self, fault: Option<Fault>, answer: &mut T) {
        let mut script = self.script.lock();
        if let (Some(Fault::StaleList), Some(page)) = (fault, answer.page_mut()) {
            let written = &script.written;
            page.objects
                .retain(|meta| !written.iter().any(|key| key == meta.key.as_str()));
        }
        let Some(bytes) = answer.bytes_mut().filter(|bytes| !bytes.is_empty()) else {
            return;
        };
        let at = script.random.below(bytes.len() as u64) as usize;
        match fault {
            Some(Fault::Truncate) => bytes.truncate(at),
            Some(Fault::FlipBit) => *bytes = flipped(bytes, at, script.random.below(8) as u32),
            _ => {}
        }
    }
}

impl Script {
    fn fault(&mut self, call: &Call<'_>) -> Option<Fault> {
        for rule in &mut self.rules {
            if !rule.is_for(call) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            if self.random.below(1000) < rule.per_mille {
                rule.times = rule.times.saturating_sub(1);
                return Some(rule.fault);
            }
        }
        None
    }
}

fn flipped(bytes: &Bytes, at: usize, bit: u32) -> Bytes {
    let mut copy = BytesMut::from(bytes.as_ref());
    if let Some(byte) = copy.get_mut(at) {
        *byte ^= 1 << bit;
    }
    copy.freeze()
}

impl Around for FaultStore {
    /// It damages them.
    fn lets_bytes_pass(&self) -> bool {
        false
    }

    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    fn around<'a, T: Answer>(
        &'a self,
        call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let fault = self.draw(&call);
            let failure = |kind| Err(StoreError::new(call.operation, call.subject, kind));
            match fault {
                Some(Fault::Error(kind)) => return failure(kind),
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::Slow(delay)) => tokio::time::sleep(delay).await,
                Some(Fault::Vanish) => {
                    // A subject of a read is a key.
                    if let Ok(key) = ObjectKey::new(call.subject) {
                        self.inner.delete(&key).await?;
                    }
                }
                _ => {}
            }
            let mut answer = start().await?;
            if let Some(Fault::LostAnswer(kind)) = fault {
                return failure(kind);
            }
            if let Some(Fault::HalfWritten(kind)) = fault {
                self.cut(call.subject).await?;
                return failure(kind);
            }
            self.damage(fault, &mut answer);
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::store::{MemoryStore, suite};

    fn store(seed: u64) -> FaultStore {
        FaultStore::new(Arc::new(MemoryStore::default()), seed)
    }

    fn key(text: &str) -> ObjectKey {
        ObjectKey::new(text).unwrap()
    }

    #[tokio::test]
    async fn without_rules_it_keeps_the_contract_of_stores() {
        let store = Arc::new(store(1));
        suite::run(Arc::clone(&store) as _).await;
        assert_eq!(store.injected(), 0);
        assert!(store.calls() > 100);
    }

    #[tokio::test]
    async fn errors_come_before_and_lost_answers_after_the_deed() {
        let store = store(1);
        store.add(Rule::new(Fault::Error(StoreErrorKind::Throttled)).times(1));
        store.add(Rule::new(Fault::LostAnswer(StoreErrorKind::Timeout)).times(1));
        let error = store.put(&key("a"), "1".into()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Throttled);
        assert!(store.inner.get(&key("a")).await.is_err());
        let error = store.put(&key("a"), "1".into()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Timeout);
        assert_eq!(store.inner.get(&key("a")).await.unwrap(), "1");
        assert_eq!((store.injected(), store.calls()), (2, 2));
    }

    #[tokio::test]
    async fn what_is_half_written_is_shorter_and_not_acknowledged() {
        let store = store(1);
        let whole = Bytes::from(vec![7u8; 1000]);
        let fault = Fault::HalfWritten(StoreErrorKind::Unavailable);
        store.add(Rule::new(fault).times(1));
        assert!(store.get(&key("a")).await.is_err());
        let name = key("a");
        let error = store.put_if_absent(&name, whole.clone().into()).await;
        assert_eq!(error.unwrap_err().kind, StoreErrorKind::Unavailable);
        let left = store.get(&name).await.unwrap();
        assert!(left.len() < 1000 && whole.starts_with(&left));
        let error = store.put_if_absent(&name, whole.clone().into()).await;
        assert_eq!(error.unwrap_err().kind, StoreErrorKind::AlreadyExists);
        store.put(&name, whole.clone().into()).await.unwrap();
        assert_eq!(store.get(&name).await.unwrap(), whole);
    }

    #[tokio::test]
    async fn rules_are_restricted_by_operation_key_and_count() {
        let store = store(1);
        let rule = Rule::new(Fault::Error(StoreErrorKind::NotFound));
        store.add(rule.on(Operation::Get).matching("seg/").after(1).times(2));
        for name in ["seg/a", "tail/a"] {
            store.put(&key(name), "1".into()).await.unwrap();
        }
        let mut results = Vec::new();
        for _ in 0..5 {
            assert!(store.get(&key("tail/a")).await.is_ok());
            assert!(store.head(&key("seg/a")).await.is_ok());
            results.push(store.get(&key("seg/a")).await.is_ok());
        }
        assert_eq!(results, [true, false, false, true, true]);
    }

    #[tokio::test]
    async fn reads_are_damaged_as_told_and_equally_for_equal_seeds() {
        let whole = Bytes::from(vec![0u8; 1000]);
        let mut damaged = Vec::new();
        for seed in [5, 5, 6] {
            let store = store(seed);
            store.put(&key("a"), whole.clone().into()).await.unwrap();
            store.add(Rule::new(Fault::FlipBit).times(1));
            store.add(Rule::new(Fault::Truncate).times(1));
            let flipped = store.get(&key("a")).await.unwrap();
            let ones: u32 = flipped.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!((flipped.len(), ones), (1000, 1));
            let cut = store.get_suffix(&key("a"), 1000).await.unwrap();
            assert!(cut.bytes.len() < 1000 && cut.object_size_bytes == 1000);
            assert_eq!(store.get(&key("a")).await.unwrap(), whole);
            damaged.push((flipped, cut));
        }
        assert!(damaged[0] == damaged[1] && damaged[1] != damaged[2]);
    }

    #[tokio::test]
    async fn some_of_many_calls_fail() {
        let store = store(9);
        store.add(Rule::new(Fault::Error(StoreErrorKind::Unavailable)).per_mille(100));
        for _ in 0..1000 {
            let _ = store.put(&key("a"), "1".into()).await;
        }
        assert!(
            (60..140).contains(&store.injected()),
            "{}",
            store.injected()
        );
    }

    #[tokio::test]
    async fn stale_lists_lack_the_newest_and_vanished_objects_stay_away() {
        let store = store(1);
        for index in 0..20 {
            let key = key(&format!("a/{index:02}"));
            store.put(&key, "1".into()).await.unwrap();
        }
        store.add(Rule::new(Fault::StaleList).times(1));
        store.add(Rule::new(Fault::Vanish).times(1));
        let stale = store.list("a/", None, 100).await.unwrap();
        assert_eq!(stale.objects.len(), 12);
        assert_eq!(stale.objects.last().unwrap().key, key("a/11"));
        assert_eq!(store.list("a/", None, 100).await.unwrap().objects.len(), 20);
        for _ in 0..2 {
            let error = store.get(&key("a/03")).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::NotFound);
        }
        assert_eq!(store.list("a/", None, 100).await.unwrap().objects.len(), 19);
    }

    #[tokio::test(start_paused = true)]
    async fn it_hangs_until_it_is_left_and_it_can_be_down() {
        let store = store(1);
        store.add(Rule::new(Fault::Hang).times(1));
        let day = Duration::from_secs(86_400);
        assert!(timeout(day, store.list("", None, 1)).await.is_err());
        store.go_down();
        let error = store.list("", None, 1).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unavailable);
        store.come_up();
        assert!(store.list("", None, 1).await.is_ok());
    }
}
