use super::*;

/// What a file of each format begins with.
const SIGNATURES: &[&[u8]] = &[
    b"\x28\xB5\x2F\xFD\x04\x00",
    b"\x50\x2A\x4D\x18\x04\0\0\0abcd\x28\xB5\x2F\xFD\x04",
    b"\x5F\x2A\x4D\x18\x00\0\0\0\x04\x22\x4D\x18\x64",
    b"\x1F\x8B\x08\x00\0\0\0\0\x00\x03",
    b"\x1F\x8B\x08\x08\0\0\0\0\x00\x03name\0",
    b"\x04\x22\x4D\x18\x64\x40",
    b"\x02\x21\x4C\x18\x10\x00",
    b"\xFD7zXZ\x00\x00\x04",
    b"BZh91AY&SY\x12\x34",
    b"7z\xBC\xAF\x27\x1C\x00\x04",
    b"Rar!\x1A\x07\x00",
    b"Rar!\x1A\x07\x01\x00",
    b"\xFF\x06\x00\x00sNaPpY\x00",
    b"\xFF\xD8\xFF\xE0\x00\x10JFIF\0",
    b"\xFF\xD8\xFF\xDB\x00\x43",
    b"\x89PNG\r\n\x1A\n\0\0\0\rIHDR",
    b"GIF89a\x01\x00",
    b"GIF87a\x01\x00",
    b"RIFF\x24\0\0\0WEBPVP8 ",
    b"\0\0\0\x20ftypisom\0\0\x02\0",
    b"\0\0\0\x1Cftypavif\0\0\0\0",
    b"\x1A\x45\xDF\xA3\x9F\x42\x86\x81",
    b"OggS\0\x02\0\0",
    b"fLaC\0\0\0\x22\x10\0",
    b"wOF2\0\x01\0\0",
];

#[test]
fn signatures_are_recognized() {
    for head in SIGNATURES {
        let mut file = head.to_vec();
        file.extend_from_slice(&[0xA5; 64]);
        assert!(is_compressed(&file), "{head:02x?}");
    }
}

#[test]
fn a_signature_cut_short_is_no_panic_and_below_four_bytes_no_match() {
    for head in SIGNATURES {
        for len in 0..head.len() {
            let found = is_compressed(&head[..len]);
            assert!(len >= 4 || !found, "{:02x?}", &head[..len]);
        }
    }
}

#[test]
fn compressible_files_are_not_recognized() {
    let heads: &[&[u8]] = &[
        b"\x7FELF\x02\x01\x01\0",
        b"!<arch>\n/               0",
        b"\xCF\xFA\xED\xFE\x07\0\0\x01",
        b"\x64\x86\x05\0\0\0\0\0",
        b"\0asm\x01\0\0\0",
        b"rust\0\0\0\x09",
        b"BC\xC0\xDE\x35\x14\0\0",
        b"{\"key\":1}",
        b"BZh9 is how a bzip2 file begins",
        b"GIF8 and more",
        b"RIFF\x24\0\0\0WAVEfmt ",
        b"OggS is a container",
        b"fLaC is a codec",
        b"Rar! he said",
        b"7zip",
        b"PK is not an archive",
        b"\x1F\x8B\x07\0",
        b"\x1F\x8B\x08\xE0",
        b"\xFF\xD8\xFF\x00",
        b"\x50\x2A\x4D\x18\x04\0\0\0abcdtext",
        b"\x50\x2A\x4D\x18\xFF\xFF\xFF\xFF",
        b"\0\0\0\x20moov",
        b"ustar",
        b"%PDF-1.7",
    ];
    for head in heads {
        let mut file = head.to_vec();
        file.extend_from_slice(&[b' '; 64]);
        assert!(!is_compressed(&file), "{head:02x?}");
        assert!(!is_compressed(head), "{head:02x?}");
    }
}

struct Member<'a> {
    method: u16,
    flags: u16,
    len: Option<u32>,
    data: &'a [u8],
}

fn stored(data: &[u8]) -> Member<'_> {
    Member {
        method: 0,
        flags: 0,
        len: None,
        data,
    }
}

fn archive(members: &[Member<'_>]) -> Vec<u8> {
    let mut zip = Vec::new();
    for member in members {
        let len = member.len.unwrap_or(member.data.len() as u32).to_le_bytes();
        zip.extend_from_slice(b"PK\x03\x04\x14\0");
        zip.extend_from_slice(&member.flags.to_le_bytes());
        zip.extend_from_slice(&member.method.to_le_bytes());
        zip.extend_from_slice(&[0; 8]); // Time, date, CRC-32.
        zip.extend_from_slice(&len);
        zip.extend_from_slice(&len);
        zip.extend_from_slice(&[3, 0, 2, 0]);
        zip.extend_from_slice(b"obj");
        zip.extend_from_slice(b"xx");
        zip.extend_from_slice(member.data);
    }
    zip.extend_from_slice(b"PK\x01\x02 the central directory");
    zip
}

const ZSTD: &[u8] = b"\x28\xB5\x2F\xFD\x04\x58 and the rest of a frame";

#[test]
fn a_zip_of_zstd_streams_is_recognized() {
    assert!(is_compressed(&archive(&[stored(ZSTD)])));
    assert!(is_compressed(&archive(&[
        stored(ZSTD),
        stored(ZSTD),
        stored(ZSTD)
    ])));
    // Output of a compiler that printed nothing, before the object.
    assert!(is_compressed(&archive(&[stored(b""), stored(ZSTD)])));
    assert!(is_compressed(&archive(&[
        stored(b"application/epub+zip"),
        stored(ZSTD)
    ])));
}

#[test]
fn a_zip_of_compressed_members_is_recognized_by_the_method() {
    for method in [8, 9, 12, 14, 93, 94, 95, 96, 97] {
        let zip = archive(&[Member {
            method,
            flags: 0,
            len: None,
            data: b"whatever",
        }]);
        assert!(is_compressed(&zip), "{method}");
        // Written to a pipe: the length follows the data.
        let zip = archive(&[Member {
            method,
            flags: 8,
            len: Some(0),
            data: b"whatever",
        }]);
        assert!(is_compressed(&zip), "{method}");
    }
}

#[test]
fn a_zip_of_plain_members_is_not_recognized() {
    let text = [b'x'; 256];
    assert!(!is_compressed(&archive(&[stored(&text)])));
    assert!(!is_compressed(&archive(&[stored(ZSTD), stored(&text)])));
    assert!(!is_compressed(&archive(&[stored(b"short"), stored(&text)])));
    assert!(!is_compressed(&archive(&[stored(b"short")])));
    assert!(!is_compressed(&archive(&[stored(b"")])));
    assert!(!is_compressed(&archive(&[])));
    let reduced = archive(&[Member {
        method: 2,
        flags: 0,
        len: None,
        data: b"whatever",
    }]);
    assert!(!is_compressed(&reduced));
}

#[test]
fn a_zip_cut_short_or_with_hostile_lengths_is_no_panic() {
    let zip = archive(&[stored(ZSTD), stored(ZSTD)]);
    for len in 0..zip.len() {
        let _ = is_compressed(&zip[..len]);
    }
    for len in [u32::MAX, u32::MAX - 1, 1 << 31] {
        let zip = archive(&[Member {
            method: 0,
            flags: 0,
            len: Some(len),
            data: ZSTD,
        }]);
        assert!(is_compressed(&zip));
    }
}
