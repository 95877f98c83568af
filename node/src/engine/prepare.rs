//! Long values: what is decoded, made or encoded of them without the lock of a shard.
//!
//! A shard is locked for microseconds. To decode, copy or encode a value of megabytes takes
//! milliseconds, so a command that needs it gives the lock back, has the value prepared, and is
//! tried again. What was made of a value counts only while the entry has the same version.

use bytes::Bytes;
use fonn_base::entry::Space;
use fonn_codec::{CodecId, Frame};
use fonn_proto::{Command, Version};
use fonn_ram_tier::{Found, Stored};

use super::commit::{Content, RamForm};
use super::fetch::Fetched;
use super::semantics::{self, Change, Present, Rules};
use super::{Engine, Job};

/// Bytes up to which a value is decoded, made or encoded under the lock.
pub(super) const SHORT_LEN_MAX: usize = 16 << 10;

/// A value that has to be prepared.
pub(super) enum Long {
    /// One that is there.
    Stored(LongStored),
    /// The one of the request.
    Request,
}

/// The value that an entry of a version has.
pub(super) struct LongStored {
    pub of: Version,
    pub stored: Bytes,
    /// Whether that is a frame.
    pub is_framed: bool,
}

/// What was prepared for a command.
#[derive(Clone, Default)]
pub(super) struct Prepared {
    /// The value of the entry of a version.
    decoded: Option<(Version, Bytes)>,
    /// The version of an entry whose value does not decode.
    damaged: Option<Version>,
    /// What the command makes of the value of the entry of a version; of none for version 0.
    grown: Option<(Version, Content)>,
    /// The value of the request, or the one that a transfer copies.
    pub(super) request: Option<Content>,
    /// The form that RAM gives to the value that was fetched.
    pub(super) fetched_form: Option<RamForm>,
}

impl Prepared {
    /// The value of the entry of this version.
    pub(super) fn decoded_of(&self, version: Version) -> Option<&Bytes> {
        let (of, value) = self.decoded.as_ref()?;
        (*of == version).then_some(value)
    }

    /// Notes the value of the entry of this version.
    pub(super) fn know(&mut self, version: Version, value: Bytes) {
        self.decoded = Some((version, value));
    }

    /// Whether the value of the entry of this version turned out not to decode.
    pub(super) fn is_damaged(&self, version: Version) -> bool {
        self.damaged == Some(version)
    }
}

/// A value out of RAM: shared, or (`shared` is None) in the scratch buffer if it was wanted.
pub(super) struct Read {
    pub(super) len: usize,
    pub(super) shared: Option<Bytes>,
}

impl Read {
    pub(super) fn shared(value: &Bytes) -> Self {
        Self {
            len: value.len(),
            shared: Some(value.clone()),
        }
    }
}

/// Gets at a stored value: decodes a frame, copies a small value into `scratch`, shares a large
/// one. None if a frame is damaged.
pub(super) fn read(
    found: &Found<'_>,
    want: bool,
    value_len_max: usize,
    scratch: &mut Vec<u8>,
) -> Option<Read> {
    if found.framed {
        let frame = Frame::parse(found.stored.as_slice(), value_len_max).ok()?;
        if want {
            frame.decode_into(scratch).ok()?;
        }
        return Some(Read {
            len: frame.original_len(),
            shared: None,
        });
    }
    match found.stored {
        Stored::Inline(bytes) => {
            if want {
                scratch.clear();
                scratch.extend_from_slice(bytes);
            }
            Some(Read {
                len: bytes.len(),
                shared: None,
            })
        }
        Stored::Shared(bytes) => Some(Read {
            len: bytes.len(),
            shared: Some(bytes.clone()),
        }),
    }
}

impl LongStored {
    /// The value of an entry, if it has more than `short_len_max` bytes.
    pub(super) fn of_any(
        found: &Found<'_>,
        value_len_max: usize,
        short_len_max: usize,
    ) -> Option<Self> {
        match found.stored {
            _ if found.framed => Self::of_frame(found, value_len_max, short_len_max),
            Stored::Shared(bytes) if bytes.len() > short_len_max => Some(Self {
                of: found.meta.version,
                stored: bytes.clone(),
                is_framed: false,
            }),
            _ => None,
        }
    }

    /// The frame of an entry, if its value has more than `short_len_max` bytes.
    pub(super) fn of_frame(
        found: &Found<'_>,
        value_len_max: usize,
        short_len_max: usize,
    ) -> Option<Self> {
        if !found.framed {
            return None;
        }
        let frame = Frame::parse(found.stored.as_slice(), value_len_max).ok()?;
        (frame.original_len() > short_len_max).then(|| Self {
            of: found.meta.version,
            stored: found.stored.to_bytes(),
            is_framed: true,
        })
    }
}

impl Engine {
    /// Prepares a long value.
    pub(super) fn prepare(&self, job: &Job<'_>, long: Long, prepared: &mut Prepared) {
        let long = match long {
            Long::Request => {
                prepared.request = Some(self.formed(self.request_value(job)));
                return;
            }
            Long::Stored(long) => long,
        };
        let of = long.of;
        let Some(value) = self.decode(long, prepared) else {
            return;
        };
        if semantics::grown_len(job.command, value.len(), self.rules(job.space)).is_some() {
            let grown = Bytes::from(semantics::grown(job.command, &value));
            prepared.grown = Some((of, self.formed(grown)));
        }
        prepared.decoded = Some((of, value));
    }

    /// Gives a long value that was fetched the form of the RAM level.
    pub(super) fn prepare_fetched(&self, fetched: &Fetched, prepared: &mut Prepared) {
        let entry = fetched.entry.as_ref();
        let long = entry.filter(|entry| entry.value.len() > SHORT_LEN_MAX);
        prepared.fetched_form =
            long.map(|entry| self.ram_form(entry.value.clone(), entry.frame.as_ref()));
    }

    /// Prepares a value that is given to another key.
    pub(super) fn prepare_copy(&self, long: LongStored, prepared: &mut Prepared) {
        let of = long.of;
        if let Some(value) = self.decode(long, prepared) {
            prepared.request = Some(self.formed(value.clone()));
            prepared.decoded = Some((of, value));
        }
    }

    /// A stored value, decoded. None, which is noted, if it does not decode.
    fn decode(&self, long: LongStored, prepared: &mut Prepared) -> Option<Bytes> {
        if !long.is_framed {
            return Some(long.stored);
        }
        let mut value = Vec::new();
        let is_decoded = Frame::parse(&long.stored, self.settings.value_len_max)
            .is_ok_and(|frame| frame.decode_into(&mut value).is_ok());
        if !is_decoded {
            prepared.damaged = Some(long.of);
            return None;
        }
        Some(Bytes::from(value))
    }

    pub(super) fn formed(&self, value: Bytes) -> Content {
        let form = self.ram_form(value.clone(), None);
        Content::Formed { value, form }
    }

    /// The value that a change stores, if it is none that the change itself has.
    ///
    /// # Errors
    /// The value to prepare, if it is long.
    pub(super) fn made(
        &self,
        job: &Job<'_>,
        change: &Change,
        present: Option<Present<'_>>,
        prepared: &Prepared,
    ) -> Result<Option<Content>, Long> {
        match (change, job.command) {
            (Change::PutGrown(_), command) => {
                let of = present.map_or(0, |it| it.meta.version);
                if let Some((_, content)) = prepared.grown.as_ref().filter(|(it, _)| *it == of) {
                    return Ok(Some(content.clone()));
                }
                let old = present.map_or(&[][..], |it| it.value);
                let len = semantics::grown_len(command, old.len(), self.rules(job.space));
                if len.is_some_and(|len| len > SHORT_LEN_MAX) {
                    return Err(Long::Stored(LongStored {
                        of,
                        stored: match present.and_then(|it| it.shared) {
                            Some(shared) => shared.clone(),
                            None => Bytes::copy_from_slice(old),
                        },
                        is_framed: false,
                    }));
                }
                let grown = semantics::grown(command, old);
                Ok(Some(Content::Fresh(Bytes::from(grown))))
            }
            (Change::PutRequest(_), Command::Store(store)) => match &prepared.request {
                Some(content) => Ok(Some(content.clone())),
                None if store.value.len() > SHORT_LEN_MAX
                    && self.ram_codec.active().0.id() != CodecId::NONE =>
                {
                    Err(Long::Request)
                }
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// What bounds commands on a space now.
    pub(super) fn rules(&self, space: Space) -> Rules {
        self.rules_at(space, self.hot.clock.wall_ms())
    }

    /// What bounds commands on a space at `now_ms`.
    pub(super) fn rules_at(&self, space: Space, now_ms: u64) -> Rules {
        Rules {
            now_ms,
            value_len_max: self.settings.value_len_max,
            ttl_ms_max: self.hot.namespaces.ttl_ms_max(space.namespace()),
        }
    }
}
