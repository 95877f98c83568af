//! Namespaces whose entries keep their first value (`write_once`).
//!
//! The owner of an entry decides under the lock of its shard, so the rule holds whatever protocol,
//! router or member a command came by. A `set` becomes an `add`, and its client is told that it was
//! stored. What would change or remove the entry in another way is refused as for a user that may
//! only read. Expiry, eviction, quotas and flushes still remove entries.
//!
//! Two kinds of entries of GitHub Actions are no values of a client, and change. The lists of keys
//! below [`ACTIONS_LISTS`] grow, by compare-and-set. What is uploaded for an archive that is not
//! published yet, below [`ACTIONS_UPLOADS`], is replaced by the next upload of the same identity.

use fonn_proto::command::ACTIONS_LISTS;
use fonn_proto::outcome::KEPT;
use fonn_proto::overlay::{OVERLAY_PREFIX_LEN, is_below};
use fonn_proto::{Command, ExpirySpec, Failure, Outcome, Store, StoreMode, Stored, WriterId};

/// The beginnings of the keys of blocks and archives that no restore finds before they are
/// published under another key. An id follows, and the number of the identity that uploads.
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

/// Judges a command of an identity.
pub(super) fn judge<'a>(command: &Command<'a>, writer: WriterId) -> Ruling<'a> {
    match command {
        Command::Get(get) => match get.delete || get.touch.is_some() || get.vivify.is_some() {
            true => Ruling::Refused(Failure::ReadOnly),
            false => Ruling::Allowed,
        },
        Command::Store(store) if grows_list(store) => Ruling::Allowed,
        Command::Store(store) if is_plain(store) => match store.mode {
            StoreMode::Add => Ruling::Allowed,
            StoreMode::Set if is_own_upload(store.key, writer) => Ruling::Allowed,
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

/// Whether a key is one of an upload of this identity. Any protocol can name such a key.
fn is_own_upload(key: &[u8], writer: WriterId) -> bool {
    ACTIONS_UPLOADS.iter().any(|uploads| {
        let start = match key.starts_with(uploads) {
            true => uploads.len(),
            false => OVERLAY_PREFIX_LEN + uploads.len(),
        };
        let rest = key.get(start..).unwrap_or_default();
        let named = rest.split(|&byte| byte == b'/').nth(1);
        is_below(key, uploads) && named == Some(writer.number().to_string().as_bytes())
    })
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

    const WRITER: WriterId = WriterId::new(7);

    /// What comes of a command of [`WRITER`].
    fn judge<'a>(command: &Command<'a>) -> Ruling<'a> {
        super::judge(command, WRITER)
    }

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
    fn an_upload_replaces_one_of_the_same_identity_that_was_not_published() {
        let overlay = fonn_proto::Overlay::new([7; 16]);
        for (key, is_allowed) in [
            (Bytes::from_static(b"actions/upload/1/7"), true),
            (Bytes::from_static(b"actions/block/1/7/2"), true),
            (overlay.key(b"actions/upload/1/7").into(), true),
            (overlay.key(b"actions/block/1/7/2").into(), true),
            (Bytes::from_static(b"actions/upload/1/8"), false),
            (Bytes::from_static(b"actions/block/1/8/7"), false),
            (overlay.key(b"actions/upload/1/8").into(), false),
            (Bytes::from_static(b"actions/upload/1"), false),
            (Bytes::from_static(b"actions/upload/"), false),
            (Bytes::from_static(b"actions/entry/1/7"), false),
            (Bytes::from_static(b"a/actions/upload/1/7"), false),
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
