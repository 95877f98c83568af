//! The table of codecs. Adding one is a module with three or four functions, and a row here.
//!
//! Ids are written into every stored value: an id never changes its meaning and is never used
//! again. The functions of a row keep their contexts per thread and do not allocate once these
//! exist (see `workspace`); they work on at most [`BLOCK_LEN`](crate::frame::BLOCK_LEN) bytes at a
//! time, which bounds what a context may hold.

/// Identifies a codec in stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodecId(u8);

impl CodecId {
    /// No compression: the bytes as they are.
    pub const NONE: Self = Self(0);
    /// An LZ4 block (<https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>).
    pub const LZ4: Self = Self(1);
    /// A raw Snappy stream (<https://github.com/google/snappy/blob/main/format_description.txt>).
    pub const SNAPPY: Self = Self(2);
    /// A raw deflate stream (RFC 1951), without zlib's header and Adler checksum: the frame has its
    /// own.
    pub const ZLIB: Self = Self(3);
    /// One Zstandard frame (RFC 8878), without its optional checksum.
    pub const ZSTD: Self = Self(4);

    /// The byte that is stored.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self.0
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Codec {
    id: CodecId,
    name: &'static str,
    levels: Option<Levels>,
    feature: Option<&'static str>,
    support: Support,
}

/// The levels that a codec accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The lowest, included.
    pub min: i8,
    /// The highest, included.
    pub max: i8,
    /// What is meant when no level is given.
    pub default: i8,
}

/// What this build can do with a codec.
#[derive(Debug)]
pub(crate) enum Support {
    /// There is nothing to do.
    Verbatim,
    /// The codec is compiled in. (Constructed only if one is.)
    #[cfg_attr(
        not(any(
            feature = "lz4",
            feature = "snappy",
            feature = "zlib",
            feature = "zstd"
        )),
        allow(dead_code)
    )]
    Compiled(Operations),
    /// The codec's cargo feature is off. (Constructed only in such builds.)
    #[cfg_attr(
        all(
            feature = "lz4",
            feature = "snappy",
            feature = "zlib",
            feature = "zstd"
        ),
        allow(dead_code)
    )]
    Absent,
}

/// The functions of a codec.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operations {
    /// How long the output buffer of `compress` must be for `raw_len` bytes.
    pub bound: fn(raw_len: usize) -> usize,
    /// Compresses `raw` into the front of `out` and returns how many bytes it took, or None if they
    /// did not fit or the codec failed: the caller then stores the bytes as they are.
    pub compress: fn(level: i8, raw: &[u8], out: &mut [u8]) -> Option<usize>,
    /// Decompresses all of `stored` into the front of `out` and returns how many bytes it gave.
    /// None if `stored` is not well-formed, or gives more than `out` can take. What `out` holds
    /// after None is unspecified.
    pub decompress: fn(stored: &[u8], out: &mut [u8]) -> Option<usize>,
    /// Like `decompress`, but behind what `out` holds and within its capacity, which need not be
    /// filled with anything before. None for a library that writes to initialized memory only.
    pub append: Option<Append>,
}

/// Decompresses all of `stored` to the end of `out`. None as for [`Operations::decompress`]; what
/// was appended then is unspecified.
pub(crate) type Append = fn(stored: &[u8], out: &mut Vec<u8>) -> Option<()>;

#[cfg(feature = "lz4")]
const LZ4: Support = Support::Compiled(crate::lz4::OPERATIONS);
#[cfg(not(feature = "lz4"))]
const LZ4: Support = Support::Absent;
#[cfg(feature = "snappy")]
const SNAPPY: Support = Support::Compiled(crate::snappy::OPERATIONS);
#[cfg(not(feature = "snappy"))]
const SNAPPY: Support = Support::Absent;
#[cfg(feature = "zlib")]
const ZLIB: Support = Support::Compiled(crate::zlib::OPERATIONS);
#[cfg(not(feature = "zlib"))]
const ZLIB: Support = Support::Absent;
#[cfg(feature = "zstd")]
const ZSTD: Support = Support::Compiled(crate::zstd::OPERATIONS);
#[cfg(not(feature = "zstd"))]
const ZSTD: Support = Support::Absent;

/// The table, in the order of the ids.
#[rustfmt::skip]
static CODECS: [Codec; 5] = [
    Codec { id: CodecId::NONE,   name: "none",   levels: None, feature: None, support: Support::Verbatim },
    Codec { id: CodecId::LZ4,    name: "lz4",    levels: None, feature: Some("lz4"), support: LZ4 },
    Codec { id: CodecId::SNAPPY, name: "snappy", levels: None, feature: Some("snappy"), support: SNAPPY },
    Codec { id: CodecId::ZLIB,   name: "zlib",   levels: Some(Levels { min: 1, max: 9, default: 6 }), feature: Some("zlib"), support: ZLIB },
    Codec { id: CodecId::ZSTD,   name: "zstd",   levels: Some(Levels { min: -7, max: 22, default: 3 }), feature: Some("zstd"), support: ZSTD },
];

/// All codecs that have an id, compiled in or not, in the order of their ids.
#[must_use]
pub fn all() -> &'static [Codec] {
    &CODECS
}

/// The codec that a stored id stands for.
#[must_use]
pub fn by_id(id: u8) -> Option<&'static Codec> {
    CODECS.get(usize::from(id))
}

/// The codec of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Codec> {
    CODECS.iter().find(|codec| codec.name == name)
}

impl Codec {
    /// Its stored id.
    #[must_use]
    pub fn id(&self) -> CodecId {
        self.id
    }

    /// Its name in the configuration and in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its levels, if it has any.
    #[must_use]
    pub fn levels(&self) -> Option<Levels> {
        self.levels
    }

    /// The cargo feature that compiles it in; None if it always is.
    #[must_use]
    pub fn feature(&self) -> Option<&'static str> {
        self.feature
    }

    /// Whether this build can encode and decode it.
    #[must_use]
    pub fn is_available(&self) -> bool {
        !matches!(self.support, Support::Absent)
    }

    /// How the operator writes it, with the levels accepted: `zstd[:-7..22]`.
    #[must_use]
    pub fn usage(&self) -> String {
        let name = self.name;
        match self.levels {
            None => name.to_owned(),
            Some(Levels { min, max, .. }) if min < 0 => format!("{name}[:{min}..{max}]"),
            Some(Levels { min, max, .. }) => format!("{name}[:{min}-{max}]"),
        }
    }

    pub(crate) fn support(&self) -> &Support {
        &self.support
    }

    /// The row of `none`.
    pub(crate) fn none() -> &'static Self {
        let [none, ..] = &CODECS;
        none
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_ones_that_stores_hold() {
        let table: Vec<_> = all()
            .iter()
            .map(|codec| (codec.id().as_u8(), codec.name()))
            .collect();
        assert_eq!(
            table,
            [
                (0, "none"),
                (1, "lz4"),
                (2, "snappy"),
                (3, "zlib"),
                (4, "zstd")
            ]
        );
    }

    #[test]
    fn lookups_agree_with_the_table() {
        for codec in all() {
            assert_eq!(
                by_id(codec.id().as_u8()).map(Codec::name),
                Some(codec.name())
            );
            assert_eq!(by_name(codec.name()).map(Codec::id), Some(codec.id()));
        }
        assert!(by_id(5).is_none());
        assert!(by_id(255).is_none());
        assert!(by_name("auto").is_none());
    }

    #[test]
    fn availability_follows_the_features() {
        let available = |name: &str| by_name(name).is_some_and(Codec::is_available);
        assert!(available("none"));
        assert_eq!(available("lz4"), cfg!(feature = "lz4"));
        assert_eq!(available("snappy"), cfg!(feature = "snappy"));
        assert_eq!(available("zlib"), cfg!(feature = "zlib"));
        assert_eq!(available("zstd"), cfg!(feature = "zstd"));
    }

    #[test]
    fn usage_shows_the_levels() {
        let usage: Vec<_> = all().iter().map(Codec::usage).collect();
        assert_eq!(
            usage,
            ["none", "lz4", "snappy", "zlib[:1-9]", "zstd[:-7..22]"]
        );
    }
}
