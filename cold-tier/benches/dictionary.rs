//! Whether a dictionary for each segment would pay for small values.
//!
//! `cargo bench -p fonn-cold-tier --bench dictionary`. Values are JSON made in code, pieces of this
//! repository's Rust sources, and pieces of this program's own executable. For each, a segment of
//! them: what it takes with `none`, `lz4` and `zstd:9` a value, and with `zstd:9` and a dictionary
//! trained from a part of the same values, which the segment would carry. Bytes are those of frames
//! (16 bytes of header each), with the dictionary. Times are CPU time of the thread, the best of
//! some rounds, a value.

#![allow(clippy::print_stdout)] // It is how a benchmark reports.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use fonn_codec::{CodecSpec, Frame, frame};
use rustix::time::{ClockId, clock_gettime};
use zstd::bulk::{Compressor, Decompressor};
use zstd::dict::{DecoderDictionary, EncoderDictionary, from_samples};

const ROUNDS: usize = 5;
const LEVEL: i32 = 9;
const SEGMENT_LEN: usize = 8 << 20;
const DICTIONARY_LENS: [usize; 2] = [16 << 10, 64 << 10];
/// zstd advises some hundred times the dictionary.
const SAMPLES_PART: usize = 100;

fn main() {
    println!(
        "bytes a value (frames, dictionary shared out), and ns a value to encode and to decode"
    );
    println!(
        "{:8} {:>6} {:>7} {:12} {:>9} {:>7} {:>8} {:>8} {:>9}",
        "corpus", "bytes", "values", "codec", "stored", "%", "encode", "decode", "train ms"
    );
    let sources = sources();
    let objects = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    for len in [100, 300, 1000, 4096] {
        report("json", len, &json(len));
        report("sources", len, &pieces(&sources, len));
        report("objects", len, &pieces(&objects, len));
    }
}

/// Stored bytes of all values, ns to encode them, ns to decode them.
struct Measured {
    stored: usize,
    encode_ns: f64,
    decode_ns: f64,
}

fn report(corpus: &str, len: usize, values: &[Vec<u8>]) {
    let raw: usize = values.iter().map(Vec::len).sum();
    let count = values.len();
    let line = |codec: &str, measured: &Measured, extra: usize, train_ms: f64| {
        let stored = measured.stored + extra;
        println!(
            "{corpus:8} {len:6} {count:7} {codec:12} {:9.1} {:7.1} {:8.0} {:8.0} {train_ms:9.0}",
            stored as f64 / count as f64,
            100.0 * stored as f64 / raw as f64,
            measured.encode_ns / count as f64,
            measured.decode_ns / count as f64,
        );
    };
    for codec in ["none", "lz4", "zstd:9"] {
        line(codec, &framed(codec.parse().unwrap(), values), 0, 0.0);
    }
    for dictionary_len in DICTIONARY_LENS {
        let start = cpu_ns();
        let samples_len = dictionary_len * SAMPLES_PART;
        let step = raw.div_ceil(samples_len).max(1);
        let samples: Vec<&[u8]> = values.iter().step_by(step).map(Vec::as_slice).collect();
        let Ok(dictionary) = from_samples(&samples, dictionary_len) else {
            println!("{corpus:8} {len:6} {count:7} no dictionary of {dictionary_len} bytes");
            continue;
        };
        let train_ms = (cpu_ns() - start) / 1e6;
        let name = format!("zstd:9+{}K", dictionary_len >> 10);
        let measured = with_dictionary(&dictionary, values);
        line(&name, &measured, dictionary.len(), train_ms);
    }
}

/// CPU time of this thread in ns: other load on the machine does not count.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The best time in ns of some rounds.
fn best(mut job: impl FnMut()) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let start = cpu_ns();
            job();
            cpu_ns() - start
        })
        .fold(f64::INFINITY, f64::min)
}

fn framed(codec: CodecSpec, values: &[Vec<u8>]) -> Measured {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let encode_ns = best(|| {
        frames.clear();
        for value in values {
            let mut frame = Vec::with_capacity(value.len() + frame::HEADER_LEN);
            fonn_codec::encode(codec, 0, value, &mut frame).unwrap();
            frames.push(frame);
        }
    });
    let mut out = Vec::new();
    let decode_ns = best(|| {
        for bytes in &frames {
            let frame = Frame::parse(bytes, 1 << 20).unwrap();
            frame.verify().unwrap();
            frame.decode_into(&mut out).unwrap();
        }
    });
    Measured {
        stored: frames.iter().map(Vec::len).sum(),
        encode_ns,
        decode_ns,
    }
}

/// What does not shrink is kept verbatim, as in a frame; a checksum is computed like a frame's.
fn with_dictionary(dictionary: &[u8], values: &[Vec<u8>]) -> Measured {
    let encoder = EncoderDictionary::copy(dictionary, LEVEL);
    let mut compressor = Compressor::with_prepared_dictionary(&encoder).unwrap();
    let mut stored: Vec<Vec<u8>> = Vec::new();
    let encode_ns = best(|| {
        stored.clear();
        for value in values {
            let bytes = compressor.compress(value).unwrap();
            let bytes = if bytes.len() < value.len() {
                bytes
            } else {
                value.clone()
            };
            std::hint::black_box(crc32c::crc32c(&bytes));
            stored.push(bytes);
        }
    });
    let decoder = DecoderDictionary::copy(dictionary);
    let mut decompressor = Decompressor::with_prepared_dictionary(&decoder).unwrap();
    let mut out = Vec::with_capacity(1 << 16);
    let decode_ns = best(|| {
        for (bytes, value) in stored.iter().zip(values) {
            std::hint::black_box(crc32c::crc32c(bytes));
            if bytes.len() < value.len() {
                out.clear();
                decompressor.decompress_to_buffer(bytes, &mut out).unwrap();
                assert_eq!(out.len(), value.len());
            }
        }
    });
    Measured {
        stored: stored
            .iter()
            .map(|bytes| bytes.len() + frame::HEADER_LEN)
            .sum(),
        encode_ns,
        decode_ns,
    }
}

/// Pieces of a corpus from all over it, one segment full at most.
fn pieces(corpus: &[u8], len: usize) -> Vec<Vec<u8>> {
    let all: Vec<&[u8]> = corpus.chunks_exact(len).collect();
    let step = (corpus.len() / SEGMENT_LEN).max(1);
    all.into_iter().step_by(step).map(<[u8]>::to_vec).collect()
}

/// The Rust sources of this repository, one after the other.
fn sources() -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut folders: Vec<_> = [
        "proto",
        "crates/codec",
        "crates/base",
        "crates/auth",
        "crates/server",
        "crates/admin",
        "cold-tier",
        "node",
        "router",
    ]
    .map(|name| root.join(name).join("src"))
    .into();
    let mut text = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.extend(std::fs::read(path).unwrap());
            }
        }
    }
    text
}

/// Documents as a service caches them: the same fields, other values.
fn json(len: usize) -> Vec<Vec<u8>> {
    let mut state = 1_u64;
    let mut noise = move || {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let cities = ["Lisbon", "Oslo", "Turin", "Kyoto", "Quito", "Perth"];
    let states = ["active", "pending", "suspended"];
    (0..SEGMENT_LEN / len)
        .map(|_| {
            let mut text = String::from("{\"items\":[");
            while text.len() < len {
                let n = noise();
                text += &format!(
                    "{{\"id\":{},\"etag\":\"{:016x}\",\"city\":\"{}\",\"state\":\"{}\",\
                     \"updated_at\":\"2024-{:02}-{:02}T{:02}:{:02}:00Z\",\"score\":{}.{}}},",
                    n % 10_000_000,
                    noise(),
                    cities[(n >> 8) as usize % cities.len()],
                    states[(n >> 16) as usize % states.len()],
                    1 + (n >> 20) % 12,
                    1 + (n >> 24) % 28,
                    (n >> 28) % 24,
                    (n >> 33) % 60,
                    (n >> 40) % 100,
                    (n >> 48) % 10,
                );
            }
            let mut bytes = text.into_bytes();
            bytes.truncate(len);
            bytes
        })
        .collect()
}
