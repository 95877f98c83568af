//! Namespaces whose entries keep their first value (`write_once`).
//!
//! The owner of an entry decides under the lock of its shard, so the rule holds whatever protocol,
//! router or member a command came by. A `set` becomes an `add`, and its client is told that it was
//! stored. What would change or remove the entry in another way is refused as for a user that may
//! only read. Expiry, eviction, quotas and flushes still remove entries.
//!
//! Two kinds of entries of GitHub Actions are no values of a client, and change. The lists of keys
//! below [`ACTIONS_LISTS`] grow, by compare-and-set. What is uploaded for an archive that is not
//! published yet, below [`ACTIONS_UPLOADS`], is replaced by the next upload.

use fonn_proto::command::ACTIONS_LISTS;
use fonn_proto::outcome::KEPT;
use fonn_proto::overlay::is_below;
use fonn_proto::{Command, ExpirySpec, Failure, Outcome, Store, StoreMode, Stored};

/// The beginnings of the keys of blocks and archives that no restore finds before they are
/// published under another key.
const ACTIONS_UPLOADS: [&[u8]; 2] = [b"actions/block/", b"actions/upload/"];

/// What becomes of a command in such a namespace.
#[derive(Debug, PartialEq)]
pub(super) enum Ruling<'a> {
    /// It is carried out as it is.
    Allowed,
    /// It is executed as this command. Its outcome is put right by [`as_of_set`].
    AsAdd(Store<'a>),
    /// It is not carried out.
    Refused(Failure),
}

/// Judges a command.
pub(super) fn judge<'a>(command: &Command<'a>) -> Ruling<'a> {
    match command {
        Command::Get(get) => match get.delete || get.touch.is_some() || get.vivify.is_some() {
            true => Ruling::Refused(Failure::ReadOnly),
            false => Ruling::Allowed,
        },
        Command::Store(store) if grows_list(store) => Ruling::Allowed,
        Command::Store(store) if is_plain(store) => match store.mode {
            StoreMode::Add => Ruling::Allowed,
            StoreMode::Set if is_upload(store.key) => Ruling::Allowed,
            StoreMode::Set => Ruling::AsAdd(Store {
                mode: StoreMode::Add,
                ..store.clone()
            }),
            _ => Ruling::Refused(Failure::ReadOnly),
        },
        _ => Ruling::Refused(Failure::ReadOnly),
    }
}

/// Whether a store puts another list in the place of the one that its client read.
fn grows_list(store: &Store<'_>) -> bool {
    let is_swap = store.mode == StoreMode::Set && store.compare.is_some();
    is_swap && store.vivify.is_none() && is_below(store.key, ACTIONS_LISTS)
}

fn is_upload(key: &[u8]) -> bool {
    ACTIONS_UPLOADS.iter().any(|uploads| is_below(key, uploads))
}

/// Whether a store looks at nothing but whether there is an entry.
fn is_plain(store: &Store<'_>) -> bool {
    store.compare.is_none() && store.vivify.is_none() && store.expiry != ExpirySpec::Keep
}

/// The outcome of an `add` as that of the `set` that it was: the first value stays, and the client
/// goes on.
pub(super) fn as_of_set(outcome: Outcome<'_>, value_len: usize) -> Outcome<'_> {
    match outcome {
        Outcome::NotStored(previous) => Outcome::Stored(Stored {
            version: KEPT,
            value_len,
            previous,
        }),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fonn_proto::{Delete, Get};

    use super::*;

    fn store(mode: StoreMode) -> Store<'static> {
        Store {
            mode,
            ..Store::set(b"k", b"v", 7, ExpirySpec::Never)
        }
    }

    #[test]
    fn a_set_becomes_an_add_and_all_other_changes_are_refused() {
        let refused = Ruling::Refused(Failure::ReadOnly);
        let add = store(StoreMode::Add);
        let judged = judge(&Command::Store(store(StoreMode::Set)));
        assert_eq!(judged, Ruling::AsAdd(add.clone()));
        assert_eq!(judge(&Command::Store(add)), Ruling::Allowed);
        for mode in [StoreMode::Replace, StoreMode::Append, StoreMode::Prepend] {
            assert_eq!(judge(&Command::Store(store(mode))), refused, "{mode:?}");
        }
        let set = || store(StoreMode::Set);
        for store in [
            Store {
                compare: Some(1),
                ..set()
            },
            Store {
                expiry: ExpirySpec::Keep,
                ..set()
            },
            Store {
                vivify: Some(ExpirySpec::Never),
                ..set()
            },
        ] {
            assert_eq!(judge(&Command::Store(store)), refused);
        }
        assert_eq!(judge(&Command::Delete(Delete::new(b"k"))), refused);
    }

    #[test]
    fn lists_of_keys_are_changed_by_compare_and_set_alone() {
        let key = |key: &[u8]| Bytes::copy_from_slice(key);
        let overlay = fonn_proto::Overlay::new([7; 16]);
        let foreign = [&[b'x'; 19][..], b"actions/index/1"].concat();
        for (key, is_allowed) in [
            (key(b"actions/index/1"), true),
            (overlay.key(b"actions/index/1").into(), true),
            (key(b"actions/entry/1"), false),
            (overlay.key(b"actions/entry/1").into(), false),
            (foreign.into(), false),
        ] {
            let swap = Store {
                key: &key,
                compare: Some(1),
                ..store(StoreMode::Set)
            };
            let expected = match is_allowed {
                true => Ruling::Allowed,
                false => Ruling::Refused(Failure::ReadOnly),
            };
            assert_eq!(judge(&Command::Store(swap)), expected, "{key:?}");
            let set = Store {
                key: &key,
                ..store(StoreMode::Set)
            };
            assert!(matches!(judge(&Command::Store(set)), Ruling::AsAdd(_)));
        }
    }

    #[test]
    fn an_upload_replaces_one_that_was_not_published() {
        let overlay = fonn_proto::Overlay::new([7; 16]);
        for (key, is_allowed) in [
            (Bytes::from_static(b"actions/upload/1"), true),
            (Bytes::from_static(b"actions/block/1/2"), true),
            (overlay.key(b"actions/upload/1").into(), true),
            (Bytes::from_static(b"actions/entry/1"), false),
            (Bytes::from_static(b"a/actions/upload/1"), false),
        ] {
            let set = Store {
                key: &key,
                ..store(StoreMode::Set)
            };
            let judged = judge(&Command::Store(set));
            assert_eq!(judged == Ruling::Allowed, is_allowed, "{key:?}");
            let append = Store {
                key: &key,
                ..store(StoreMode::Append)
            };
            let refused = Ruling::Refused(Failure::ReadOnly);
            assert_eq!(judge(&Command::Store(append)), refused, "{key:?}");
        }
    }

    #[test]
    fn reads_are_allowed_unless_they_change_the_entry() {
        let get = || Get::new(b"k");
        assert_eq!(
            judge(&Command::Get(Get {
                claim: true,
                ..get()
            })),
            Ruling::Allowed
        );
        for get in [
            Get {
                delete: true,
                ..get()
            },
            Get {
                touch: Some(ExpirySpec::Never),
                ..get()
            },
            Get {
                vivify: Some(ExpirySpec::Never),
                ..get()
            },
        ] {
            assert_eq!(
                judge(&Command::Get(get)),
                Ruling::Refused(Failure::ReadOnly)
            );
        }
    }

    #[test]
    fn a_value_that_stays_is_told_as_stored() {
        let kept = as_of_set(Outcome::NotStored(Some(Bytes::from_static(b"first"))), 5);
        let Outcome::Stored(stored) = kept else {
            panic!("{kept:?}")
        };
        assert_eq!(stored.previous.as_deref(), Some(&b"first"[..]));
        let failed = Outcome::Failed(Failure::Busy);
        assert_eq!(as_of_set(failed.clone(), 5), failed);
    }
}
