//! Knows compressed file formats from their first bytes.
//!
//! Signatures are from each format's specification, as long as it allows, so that no text, object
//! file or archive of plain files matches one. A ZIP archive is only a container: its first members
//! decide, each by its method or, if it is stored, by its own first bytes. (sccache writes a ZIP
//! of stored members that are Zstandard frames.)

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// A format whose content is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Zstandard frame, or skippable frame before one (RFC 8878, 3.1).
    Zstd,
    /// gzip member (RFC 1952, 2.3.1).
    Gzip,
    /// LZ4 frame, current or legacy (`lz4_Frame_format.md`).
    Lz4,
    /// xz stream (`xz-file-format.txt`, 2.1.1.1).
    Xz,
    /// bzip2 stream with at least one block.
    Bzip2,
    /// 7-Zip archive (`7zFormat.txt`).
    SevenZip,
    /// ZIP archive whose members are compressed (APPNOTE.TXT, 4.3.7).
    Zip,
    /// RAR archive, versions 4 and 5.
    Rar,
    /// Snappy framing format.
    Snappy,
    /// JPEG image.
    Jpeg,
    /// PNG image.
    Png,
    /// GIF image.
    Gif,
    /// WebP image (RIFF container).
    Webp,
    /// ISO base media file: MP4, MOV, HEIF, AVIF (ISO/IEC 14496-12, 4.3).
    Mp4,
    /// Matroska or WebM (EBML, RFC 8794).
    Matroska,
    /// Ogg container (RFC 3533).
    Ogg,
    /// FLAC stream (RFC 9639).
    Flac,
    /// WOFF2 font.
    Woff2,
}

impl Format {
    /// A short lower-case name, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Xz => "xz",
            Self::Bzip2 => "bzip2",
            Self::SevenZip => "7z",
            Self::Zip => "zip",
            Self::Rar => "rar",
            Self::Snappy => "snappy",
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::Gif => "gif",
            Self::Webp => "webp",
            Self::Mp4 => "mp4",
            Self::Matroska => "matroska",
            Self::Ogg => "ogg",
            Self::Flac => "flac",
            Self::Woff2 => "woff2",
        }
    }
}

/// The compressed format that `raw` begins with, if it is one of those known here. Looks at a few
/// bytes only.
#[must_use]
pub fn format(raw: &[u8]) -> Option<Format> {
    stream(raw).or_else(|| zip(raw))
}

/// Formats that their first bytes identify.
fn stream(raw: &[u8]) -> Option<Format> {
    Some(match *raw.first_chunk::<4>()? {
        [0x28, 0xB5, 0x2F, 0xFD] => Format::Zstd,
        // A skippable frame holds anything, so what follows it decides.
        [0x50..=0x5F, 0x2A, 0x4D, 0x18] => return after_skippable_frame(raw),
        // Method 8 is deflate; the upper three flags are reserved and zero.
        [0x1F, 0x8B, 8, 0..=0x1F] => Format::Gzip,
        [0x04, 0x22, 0x4D, 0x18] | [0x02, 0x21, 0x4C, 0x18] => Format::Lz4,
        [0xFD, b'7', b'z', b'X'] if raw.starts_with(b"\xFD7zXZ\0") => Format::Xz,
        // The digit is the block size, then comes the first block's magic: the digits of pi.
        [b'B', b'Z', b'h', b'1'..=b'9']
            if raw.get(4..10) == Some(&[0x31, 0x41, 0x59, 0x26, 0x53, 0x59]) =>
        {
            Format::Bzip2
        }
        [b'7', b'z', 0xBC, 0xAF] if raw.starts_with(b"7z\xBC\xAF\x27\x1C") => Format::SevenZip,
        [b'R', b'a', b'r', b'!'] if raw.starts_with(b"Rar!\x1A\x07") => Format::Rar,
        [0xFF, 0x06, 0, 0] if raw.starts_with(b"\xFF\x06\0\0sNaPpY") => Format::Snappy,
        // The start-of-image marker and the first byte of the next marker.
        [0xFF, 0xD8, 0xFF, 0xC0..=0xFE] => Format::Jpeg,
        [0x89, b'P', b'N', b'G'] if raw.starts_with(b"\x89PNG\r\n\x1A\n") => Format::Png,
        [b'G', b'I', b'F', b'8'] if raw.starts_with(b"GIF87a") || raw.starts_with(b"GIF89a") => {
            Format::Gif
        }
        [b'R', b'I', b'F', b'F'] if raw.get(8..12) == Some(b"WEBP") => Format::Webp,
        [0x1A, 0x45, 0xDF, 0xA3] => Format::Matroska,
        [b'O', b'g', b'g', b'S'] if raw.get(4) == Some(&0) => Format::Ogg,
        // The first metadata block is STREAMINFO, 34 bytes long.
        [b'f', b'L', b'a', b'C'] if matches!(raw.get(4..8), Some([0x00 | 0x80, 0, 0, 34])) => {
            Format::Flac
        }
        [b'w', b'O', b'F', b'2'] => Format::Woff2,
        // The first box is `ftyp`; its length, big-endian, is that of a few brands.
        [0, 0, 0..=1, _] if raw.get(4..8) == Some(b"ftyp") => Format::Mp4,
        _ => return None,
    })
}

/// zstd and lz4 share skippable frames: magic, content length, content.
fn after_skippable_frame(raw: &[u8]) -> Option<Format> {
    let len = u32_at(raw, 4)?;
    let next = raw.get(usize::try_from(len).ok()?.checked_add(8)?..)?;
    match *next.first_chunk::<4>()? {
        [0x28, 0xB5, 0x2F, 0xFD] => Some(Format::Zstd),
        [0x04, 0x22, 0x4D, 0x18] => Some(Format::Lz4),
        _ => None,
    }
}

/// How many members of an archive are looked at.
const ZIP_MEMBERS_MAX: usize = 4;

/// Stored members below this length say nothing about an archive: the `mimetype` of an EPUB.
const ZIP_MEMBER_LEN_MIN: usize = 256;

/// A ZIP archive of which the first members are all compressed, but for small ones (directories).
fn zip(raw: &[u8]) -> Option<Format> {
    let mut found = None;
    let mut rest = raw;
    for _ in 0..ZIP_MEMBERS_MAX {
        let Some(member) = ZipMember::parse(rest) else {
            break;
        };
        if member.is_compressed() {
            found = Some(Format::Zip);
        } else if member.data_len.is_none_or(|len| len >= ZIP_MEMBER_LEN_MIN) {
            return None;
        }
        // Where the length is not in the local header the next member cannot be found.
        let Some(next) = member.data_len.and_then(|len| member.data.get(len..)) else {
            break;
        };
        rest = next;
    }
    found
}

struct ZipMember<'a> {
    method: u16,
    /// Bytes of data; None if the local header does not know it.
    data_len: Option<usize>,
    /// From the start of the data to the end of the input.
    data: &'a [u8],
}

impl<'a> ZipMember<'a> {
    /// APPNOTE.TXT, 4.3.7: signature, then at offset 6 flags, 8 method, 18 compressed length, 26
    /// and 28 the lengths of name and extra field, which follow at 30.
    fn parse(raw: &'a [u8]) -> Option<Self> {
        if !raw.starts_with(b"PK\x03\x04") {
            return None;
        }
        let flags = u16_at(raw, 6)?;
        let method = u16_at(raw, 8)?;
        let len = u32_at(raw, 18)?;
        let name_and_extra =
            usize::from(u16_at(raw, 26)?).checked_add(usize::from(u16_at(raw, 28)?))?;
        let data = raw.get(name_and_extra.checked_add(30)?..)?;
        // Bit 3: the length follows the data. All ones: it is in the ZIP64 extra field.
        let is_known = flags & 8 == 0 && len != u32::MAX;
        let data_len = if is_known {
            usize::try_from(len).ok()
        } else {
            None
        };
        Some(Self {
            method,
            data_len,
            data,
        })
    }

    /// Deflate, Deflate64, bzip2, LZMA, zstd, MP3, xz, JPEG, WavPack (4.4.5), or stored data that
    /// is compressed itself.
    fn is_compressed(&self) -> bool {
        match self.method {
            0 => stream(self.data).is_some(),
            8 | 9 | 12 | 14 | 93 | 94 | 95 | 96 | 97 => self.data_len != Some(0),
            _ => false,
        }
    }
}

fn u16_at(raw: &[u8], offset: usize) -> Option<u16> {
    raw.get(offset..)?
        .first_chunk()
        .map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(raw: &[u8], offset: usize) -> Option<u32> {
    raw.get(offset..)?
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)]
mod tests;
