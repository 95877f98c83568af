//! Judges what concurrent clients saw of single keys, against what a cluster promises.
//!
//! Every value is written by one operation, so a read names the write that it saw. An operation
//! took effect between its beginning and the moment by which that is *certain*: its
//! acknowledgement, or the end of a read that saw it. Only sets are not certain before they are
//! acknowledged, since they are repeated when an answer is lost on the way. Operations without an
//! answer may take effect at any later time, or never. A miss is always allowed: a cache may
//! forget.
//!
//! What must hold:
//! - A read returns the value of an operation on that key that had begun.
//! - No read that begins after an overwrite was acknowledged returns what was certain before that
//!   overwrite began.
//! - A compare-and-store that was acknowledged compared with the newest: the same goes for what it
//!   was given to compare with, and no two are acknowledged for the same token.
//!
//! While members are cut off from each other, one of them may go on by its last map. Reads that
//! overlap such a [`Window`] answer only for overwrites acknowledged before it began; all others
//! answer for all.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// Two members that do not hear each other give versions by their clocks, which count milliseconds.
const CLOCK_STEP: Duration = Duration::from_millis(5);

/// What a client asked for, and got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The key got this value.
    Set(u64),
    /// The key was removed.
    Delete {
        /// Whether it was there. Where it was not there is nothing to replicate: the answer is that
        /// of a read.
        was_there: bool,
    },
    /// It was read.
    Get(Option<Seen>),
    /// It got a value, if it still was as seen before.
    Cas {
        /// What was read before.
        seen: Seen,
        /// The new value.
        value: u64,
        /// Whether it was.
        is_stored: bool,
    },
}

/// What a read returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The value.
    pub value: u64,
    /// The token to compare with.
    pub token: u64,
}

/// One operation on a key; times are since the beginning of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client.
    pub client: usize,
    /// What.
    pub action: Action,
    /// When it was begun.
    pub begun: Duration,
    /// When it was answered; None if it was refused, or never answered: it may take effect or not.
    pub answered: Option<Duration>,
}

/// A time in which a member may have been cut off from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub from: Duration,
    /// When all went by the same map again.
    pub until: Duration,
}

/// How strictly to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules<'w> {
    /// When members were cut off.
    pub windows: &'w [Window],
    /// Whether a member that is cut off cannot acknowledge anything, since another owner would have
    /// to take it. Then compare-and-store is exact at all times.
    pub cut_off_cannot_write: bool,
}

/// Why a history cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    what: &'static str,
    operations: Vec<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.what)?;
        for operation in &self.operations {
            let Operation {
                client,
                action,
                begun,
                answered,
            } = operation;
            write!(f, "\n  client {client}, {begun:.6?} to ")?;
            match answered {
                Some(answered) => write!(f, "{answered:.6?}: {action:?}")?,
                None => write!(f, "?: {action:?}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}

impl Operation {
    /// The value that it writes, or would.
    fn writes(&self) -> Option<u64> {
        match self.action {
            Action::Set(value) => Some(value),
            Action::Cas {
                value, is_stored, ..
            } => (is_stored || self.answered.is_none()).then_some(value),
            Action::Delete { .. } | Action::Get(_) => None,
        }
    }

    /// What it saw, if it was told.
    fn saw(&self) -> Option<Seen> {
        match self.action {
            Action::Get(seen) if self.answered.is_some() => seen,
            _ => None,
        }
    }

    /// Whether it replaced what was there, for certain.
    fn overwrites(&self, rules: Rules<'_>) -> bool {
        let is_write = match self.action {
            Action::Set(_) => true,
            // A member that is cut off may not know of what is there.
            Action::Delete { was_there } => {
                let end = self.answered.unwrap_or(self.begun);
                was_there || rules.answers_for(self.begun, end) == self.begun
            }
            Action::Cas { is_stored, .. } => is_stored,
            Action::Get(_) => false,
        };
        is_write && self.answered.is_some()
    }
}

/// A write as judged.
struct Write {
    at: usize,
    /// By when it had taken effect.
    certain: Option<Duration>,
}

/// Checks the operations on one key, in any order.
///
/// # Errors
/// The operations that contradict each other.
pub fn check(operations: &[Operation], rules: Rules<'_>) -> Result<(), Box<Violation>> {
    let violation = |what, of: &[usize]| {
        let operations = of.iter().filter_map(|at| operations.get(*at).copied());
        Err(Box::new(Violation {
            what,
            operations: operations.collect(),
        }))
    };
    let mut writes: HashMap<u64, Write> = HashMap::new();
    for (at, operation) in operations.iter().enumerate() {
        if let Some(value) = operation.writes() {
            let certain = operation.answered;
            if let Some(other) = writes.insert(value, Write { at, certain }) {
                return violation("one value written twice by the test", &[other.at, at]);
            }
        }
    }
    for (at, operation) in operations.iter().enumerate() {
        let (Some(seen), Some(answered)) = (operation.saw(), operation.answered) else {
            continue;
        };
        let Some(write) = writes.get_mut(&seen.value) else {
            return violation("a value that nobody wrote", &[at]);
        };
        let begun = operations.get(write.at).map(|it| it.begun);
        if begun.is_none_or(|begun| begun > answered) {
            return violation("a value read before it was written", &[write.at, at]);
        }
        // A set whose answer was lost between members is repeated: it may come back until its
        // client is told.
        let is_repeatable = operations
            .get(write.at)
            .is_some_and(|it| matches!(it.action, Action::Set(_)));
        if !is_repeatable {
            write.certain = Some(write.certain.map_or(answered, |it| it.min(answered)));
        }
    }
    let mut overwrites: Vec<(usize, &Operation)> = operations
        .iter()
        .enumerate()
        .filter(|(_, it)| it.overwrites(rules))
        .collect();
    overwrites.sort_by_key(|(_, it)| it.answered);
    // The acknowledged overwrite of what was certain by some time, acknowledged before some other.
    let overwritten = |write: &Write, by: Duration| {
        let certain = write.certain?;
        let in_time = overwrites.partition_point(|(_, it)| it.answered.is_some_and(|at| at < by));
        let mut candidates = overwrites.get(..in_time)?.iter().rev();
        candidates.find_map(|(at, it)| {
            let apart = match rules.are_in_one(certain, it.begun) {
                true => CLOCK_STEP,
                false => Duration::ZERO,
            };
            (*at != write.at && it.begun > certain + apart).then_some(*at)
        })
    };
    let mut tokens: HashMap<u64, usize> = HashMap::new();
    for (at, operation) in operations.iter().enumerate() {
        let end = operation.answered.unwrap_or(operation.begun);
        let loose = rules.answers_for(operation.begun, end);
        match operation.action {
            Action::Get(_) => {
                let Some(write) = operation.saw().and_then(|seen| writes.get(&seen.value)) else {
                    continue;
                };
                if let Some(by) = overwritten(write, loose) {
                    let what = "a value read after it had been overwritten";
                    return violation(what, &[write.at, by, at]);
                }
            }
            Action::Cas { seen, .. } if operation.overwrites(rules) => {
                let by = match rules.cut_off_cannot_write {
                    true => operation.begun,
                    false => loose,
                };
                let other = tokens.insert(seen.token, at);
                if let Some(other) = other
                    && (rules.cut_off_cannot_write || loose == operation.begun)
                {
                    return violation("two stores for the same token", &[other, at]);
                }
                let write = writes.get(&seen.value);
                if let Some(write) = write
                    && let Some(by) = overwritten(write, by)
                {
                    let what = "a store that compared with what had been overwritten";
                    return violation(what, &[write.at, by, at]);
                }
            }
            Action::Cas { .. } | Action::Set(_) | Action::Delete { .. } => {}
        }
    }
    Ok(())
}

impl Rules<'_> {
    /// By when an overwrite has to be acknowledged for an operation to answer for it.
    fn answers_for(self, begun: Duration, ended: Duration) -> Duration {
        let windows = self.windows.iter();
        let overlaps = windows.filter(|it| it.from <= ended && begun <= it.until);
        overlaps.map(|it| it.from).fold(begun, Duration::min)
    }

    /// Whether two moments are in the same window.
    fn are_in_one(self, one: Duration, other: Duration) -> bool {
        let is_in = |it: &Window, at| it.from <= at && at <= it.until;
        self.windows
            .iter()
            .any(|it| is_in(it, one) && is_in(it, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn delete(was_there: bool, begun: u64, answered: u64) -> Operation {
        did(Action::Delete { was_there }, begun, answered)
    }

    fn seen(value: u64) -> Seen {
        Seen {
            value,
            token: value * 10,
        }
    }

    fn did(action: Action, begun: u64, answered: u64) -> Operation {
        Operation {
            client: 0,
            action,
            begun: ms(begun),
            answered: Some(ms(answered)),
        }
    }

    fn unanswered(action: Action, begun: u64) -> Operation {
        Operation {
            answered: None,
            ..did(action, begun, begun)
        }
    }

    fn set(value: u64, begun: u64, answered: u64) -> Operation {
        did(Action::Set(value), begun, answered)
    }

    fn get(value: u64, begun: u64, answered: u64) -> Operation {
        did(Action::Get(Some(seen(value))), begun, answered)
    }

    fn cas(of: u64, value: u64, begun: u64, answered: u64) -> Operation {
        let action = Action::Cas {
            seen: seen(of),
            value,
            is_stored: true,
        };
        did(action, begun, answered)
    }

    fn judge(operations: &[Operation], windows: &[Window], exact: bool) -> Option<&'static str> {
        let rules = Rules {
            windows,
            cut_off_cannot_write: exact,
        };
        check(operations, rules).err().map(|it| it.what)
    }

    fn strict(operations: &[Operation]) -> Option<&'static str> {
        judge(operations, &[], true)
    }

    const STALE: Option<&str> = Some("a value read after it had been overwritten");
    const LOST: Option<&str> = Some("a store that compared with what had been overwritten");

    #[test]
    fn histories_that_may_be_pass() {
        let miss = did(Action::Get(None), 21, 22);
        // One after the other.
        let history = [set(1, 0, 5), get(1, 6, 7), set(2, 10, 20), get(2, 21, 22)];
        assert_eq!(strict(&history), None);
        // While it is overwritten, the older and the newer may be seen, in any order.
        let history = [set(1, 0, 5), set(2, 10, 20), get(2, 11, 12), get(1, 13, 14)];
        assert_eq!(strict(&history), None);
        // Everything may be forgotten.
        assert_eq!(strict(&[set(1, 0, 5), miss]), None);
        // Two at a time come in any order.
        let history = [set(1, 0, 10), set(2, 5, 8), get(1, 20, 21), get(1, 22, 23)];
        assert_eq!(strict(&history), None);
        // What got no answer may come late, behind what was acknowledged since.
        let history = [
            unanswered(Action::Set(1), 0),
            set(2, 10, 20),
            get(2, 21, 22),
            get(1, 50, 51),
        ];
        assert_eq!(strict(&history), None);
        // A read while it is deleted.
        let history = [set(1, 0, 5), delete(true, 30, 35), get(1, 31, 40)];
        assert_eq!(strict(&history), None);
        assert_eq!(strict(&[set(1, 0, 5), get(1, 6, 7), cas(1, 2, 8, 9)]), None);
    }

    #[test]
    fn a_value_is_one_that_was_written_to_the_key_before() {
        assert_eq!(strict(&[get(1, 6, 7)]), Some("a value that nobody wrote"));
        assert_eq!(
            strict(&[set(1, 10, 20), get(1, 6, 7)]),
            Some("a value read before it was written")
        );
        let failed = Action::Cas {
            seen: seen(1),
            value: 2,
            is_stored: false,
        };
        let history = [set(1, 0, 1), did(failed, 2, 3), get(2, 4, 5)];
        assert_eq!(strict(&history), Some("a value that nobody wrote"));
    }

    #[test]
    fn nothing_older_than_what_was_acknowledged_is_read() {
        let older = [set(1, 0, 5), set(2, 10, 20), get(1, 21, 22)];
        assert_eq!(strict(&older), STALE);
        for was_there in [true, false] {
            let history = [set(1, 0, 5), delete(was_there, 10, 20), get(1, 21, 22)];
            assert_eq!(strict(&history), STALE);
        }
        // It was not answered, but seen: what was acknowledged since is newer.
        let store = Action::Cas {
            seen: seen(7),
            value: 1,
            is_stored: true,
        };
        let history = |first| {
            [
                unanswered(first, 0),
                get(1, 3, 5),
                set(2, 10, 20),
                get(1, 21, 22),
            ]
        };
        assert_eq!(strict(&history(store)), STALE);
        // A set may be on its way once more.
        assert_eq!(strict(&history(Action::Set(1))), None);
        // An overwrite that was refused replaces nothing for certain.
        let refused = [
            set(1, 0, 5),
            unanswered(Action::Set(2), 10),
            get(2, 15, 16),
            get(1, 21, 22),
        ];
        assert_eq!(strict(&refused), None);
    }

    #[test]
    fn one_store_for_a_token_and_only_for_the_newest() {
        let history = [set(1, 0, 5), cas(1, 2, 6, 30), cas(1, 3, 7, 31)];
        assert_eq!(strict(&history), Some("two stores for the same token"));
        let history = [set(1, 0, 5), set(2, 6, 7), cas(1, 3, 8, 9)];
        assert_eq!(strict(&history), LOST);
        // Where a member may write by itself, two may store at the same time, but not before or
        // after.
        let window = [Window {
            from: ms(6),
            until: ms(40),
        }];
        let history = [set(1, 0, 5), cas(1, 2, 6, 30), cas(1, 3, 7, 31)];
        assert_eq!(judge(&history, &window, false), None);
        assert_eq!(
            judge(&history, &window, true),
            Some("two stores for the same token")
        );
        let history = [set(1, 0, 5), cas(1, 2, 10, 20), cas(1, 3, 41, 42)];
        assert!(judge(&history, &window, false).is_some());
        let history = [set(1, 0, 2), set(2, 3, 4), cas(1, 3, 10, 11)];
        assert_eq!(judge(&history, &window, false), LOST);
    }

    #[test]
    fn in_a_window_reads_answer_for_what_was_before_it_and_behind_it_for_all() {
        let windows = [Window {
            from: ms(100),
            until: ms(200),
        }];
        let judge = |operations: &[Operation]| judge(operations, &windows, true);
        let within = [set(1, 0, 5), set(2, 110, 120), get(1, 130, 131)];
        assert_eq!(judge(&within), None);
        let before = [set(1, 0, 5), set(2, 10, 20), get(1, 130, 131)];
        assert_eq!(judge(&before), STALE);
        let behind = [set(1, 0, 5), set(2, 110, 120), get(1, 201, 202)];
        assert_eq!(judge(&behind), STALE);
        // A member that is cut off may not know what there is to delete, but what it deletes is
        // gone.
        let unknown = [set(1, 0, 5), delete(false, 110, 120), get(1, 201, 202)];
        assert_eq!(judge(&unknown), None);
        let known = [set(1, 0, 5), delete(true, 110, 120), get(1, 201, 202)];
        assert_eq!(judge(&known), STALE);
        // Both written in it, by members that do not hear each other, in the same tick of their
        // clocks.
        let tied = [set(1, 110, 112), set(2, 114, 120), get(1, 201, 202)];
        assert_eq!(judge(&tied), None);
        let apart = [set(1, 110, 112), set(2, 118, 120), get(1, 201, 202)];
        assert_eq!(judge(&apart), STALE);
    }

    #[test]
    fn a_violation_shows_the_operations() {
        let rules = Rules {
            windows: &[],
            cut_off_cannot_write: true,
        };
        let error = check(&[set(1, 0, 5), set(2, 10, 20), get(1, 21, 22)], rules).unwrap_err();
        let text = error.to_string();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("Set(2)"), "{text}");
    }
}
