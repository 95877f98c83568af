//! Knows compressed file formats from their first bytes.
//!
//! Signatures are from each format's specification, as long as it allows, so that no text, object
//! file or archive of plain files matches one. A ZIP archive is only a container: its first members
//! decide, each by its method or, if it is stored, by its own first bytes. (sccache writes a ZIP
//! of stored members that are Zstandard frames.)

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

/// Whether `raw` begins like one of the compressed formats that are known here. It looks at a few
/// bytes only.
#[must_use]
pub fn is_compressed(raw: &[u8]) -> bool {
    is_stream(raw) || is_zip(raw)
}

/// Whether the first bytes are those of a format that they identify.
fn is_stream(raw: &[u8]) -> bool {
    let Some(first) = raw.first_chunk::<4>() else {
        return false;
    };
    match *first {
        // Zstandard frame (RFC 8878, 3.1.1).
        [0x28, 0xB5, 0x2F, 0xFD] => true,
        // A skippable frame (RFC 8878, 3.1.2) holds anything, so what follows it decides.
        [0x50..=0x5F, 0x2A, 0x4D, 0x18] => is_stream_after_skippable_frame(raw),
        // gzip member (RFC 1952, 2.3.1). Method 8 is deflate; the upper three flags are reserved
        // and zero.
        [0x1F, 0x8B, 8, 0..=0x1F] => true,
        // LZ4 frame, current or legacy (`lz4_Frame_format.md`).
        [0x04, 0x22, 0x4D, 0x18] | [0x02, 0x21, 0x4C, 0x18] => true,
        // xz stream (`xz-file-format.txt`, 2.1.1.1).
        [0xFD, b'7', b'z', b'X'] => raw.starts_with(b"\xFD7zXZ\0"),
        // bzip2 stream. The digit is the block size, then comes the first block's magic: the digits
        // of pi.
        [b'B', b'Z', b'h', b'1'..=b'9'] => {
            raw.get(4..10) == Some(&[0x31, 0x41, 0x59, 0x26, 0x53, 0x59])
        }
        // 7-Zip archive (`7zFormat.txt`).
        [b'7', b'z', 0xBC, 0xAF] => raw.starts_with(b"7z\xBC\xAF\x27\x1C"),
        // RAR archive, versions 4 and 5.
        [b'R', b'a', b'r', b'!'] => raw.starts_with(b"Rar!\x1A\x07"),
        // Snappy framing format.
        [0xFF, 0x06, 0, 0] => raw.starts_with(b"\xFF\x06\0\0sNaPpY"),
        // JPEG image: the start-of-image marker and the first byte of the next marker.
        [0xFF, 0xD8, 0xFF, 0xC0..=0xFE] => true,
        // PNG image.
        [0x89, b'P', b'N', b'G'] => raw.starts_with(b"\x89PNG\r\n\x1A\n"),
        // GIF image.
        [b'G', b'I', b'F', b'8'] => raw.starts_with(b"GIF87a") || raw.starts_with(b"GIF89a"),
        // WebP image (RIFF container).
        [b'R', b'I', b'F', b'F'] => raw.get(8..12) == Some(b"WEBP"),
        // Matroska or WebM (EBML, RFC 8794).
        [0x1A, 0x45, 0xDF, 0xA3] => true,
        // Ogg container (RFC 3533).
        [b'O', b'g', b'g', b'S'] => raw.get(4) == Some(&0),
        // FLAC stream (RFC 9639). The first metadata block is STREAMINFO, 34 bytes long.
        [b'f', b'L', b'a', b'C'] => matches!(raw.get(4..8), Some([0x00 | 0x80, 0, 0, 34])),
        // WOFF2 font.
        [b'w', b'O', b'F', b'2'] => true,
        // ISO base media file (ISO/IEC 14496-12, 4.3): MP4, MOV, HEIF, AVIF. The first box is
        // `ftyp`; its length, big-endian, is that of a few brands.
        [0, 0, 0..=1, _] => raw.get(4..8) == Some(b"ftyp"),
        _ => false,
    }
}

/// zstd and lz4 share skippable frames: magic, content length, content.
fn is_stream_after_skippable_frame(raw: &[u8]) -> bool {
    let len = u32_at(raw, 4).and_then(|len| usize::try_from(len).ok());
    let next = len.and_then(|len| raw.get(len.checked_add(8)?..)?.first_chunk::<4>());
    matches!(
        next,
        Some([0x28, 0xB5, 0x2F, 0xFD] | [0x04, 0x22, 0x4D, 0x18])
    )
}

/// How many members of an archive are looked at.
const ZIP_MEMBERS_MAX: usize = 4;

/// Stored members below this length say nothing about an archive: the `mimetype` of an EPUB.
const ZIP_MEMBER_LEN_MIN: usize = 256;

/// Whether it is a ZIP archive (APPNOTE.TXT, 4.3.7) of which the first members are all compressed,
/// but for small ones (directories).
fn is_zip(raw: &[u8]) -> bool {
    let mut is_found = false;
    let mut rest = raw;
    for _ in 0..ZIP_MEMBERS_MAX {
        let Some(member) = ZipMember::parse(rest) else {
            break;
        };
        if member.is_compressed() {
            is_found = true;
        } else if member.data_len.is_none_or(|len| len >= ZIP_MEMBER_LEN_MIN) {
            return false;
        }
        // Where the length is not in the local header the next member cannot be found.
        let Some(next) = member.data_len.and_then(|len| member.data.get(len..)) else {
            break;
        };
        rest = next;
    }
    is_found
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
            0 => is_stream(self.data),
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
