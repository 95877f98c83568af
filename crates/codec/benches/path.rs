//! What the frame costs beside the bare codec library, on one thread.
//!
//! `cargo bench -p fonn-codec`. Values are cut from `FONN_BENCH_TEXT` and `FONN_BENCH_OBJECTS`
//! (files, of which up to 32 MiB are read); without them they are made in code. Library and path
//! take turns in short rounds, and the best round of each counts: other load on the machine
//! disturbs single rounds only.
//!
//! An argument runs only the lines that contain it: `cargo bench -p fonn-codec -- incompressible`,
//! or `-- handed-on`, `-- zstd:3`, or a length in bytes.
//!
//! The library gets what the path gives it, blocks of 128 KiB, with contexts and buffers that are
//! used again, so the difference is sniffing, checksum, index and copies.

#![allow(clippy::print_stdout)] // It is how a benchmark reports.
#![allow(clippy::unwrap_used)]

#[path = "../tests/frame/corpora.rs"]
#[allow(dead_code)]
mod corpora;
#[path = "path/library.rs"]
mod library;

use std::hint::black_box;
use std::time::{Duration, Instant};

use fonn_codec::frame::BLOCK_LEN;
use fonn_codec::sniff::Runs;
use fonn_codec::{CodecSpec, Frame, compress, encode, encode_verbatim};

use library::Library;

const ROUNDS: usize = 80;
const ROUND: Duration = Duration::from_millis(2);
const CODECS: [&str; 8] = [
    "lz4", "snappy", "zlib:1", "zlib:6", "zstd:-5", "zstd:1", "zstd:3", "zstd:9",
];
const MIN_BYTES: usize = 256;
const LIMIT: usize = 1 << 30;

fn main() {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let is_wanted = |line: &str| wanted.as_ref().is_none_or(|wanted| line.contains(wanted));
    if is_wanted("incompressible") {
        incompressible();
        println!();
    }
    if is_wanted("shared") {
        shared();
        println!();
    }
    let text = load("FONN_BENCH_TEXT", corpora::text);
    let objects = load("FONN_BENCH_OBJECTS", corpora::object);
    if is_wanted("handed-on") {
        println!("values decoded into vectors of their own; MB/s; the path verifies, too");
        println!(
            "{:8} {:>8} {:8} | {:>9} {:>9} {:>9} | {:>6} {:>6}",
            "corpus", "bytes", "codec", "again", "own", "path", "% own", "% again"
        );
        for (name, corpus) in [("text", &text), ("objects", &objects)] {
            for len in [16 << 10, 64 << 10, BLOCK_LEN] {
                for codec in CODECS {
                    handed_on(name, corpus, len, codec.parse().unwrap());
                }
            }
        }
        println!();
    }
    println!("path beside library; MB/s of value bytes; `read` is parse + verify + decode");
    println!(
        "{:8} {:>8} {:8} {:>6} | {:>9} {:>9} {:>6} | {:>9} {:>9} {:>6} {:>9} {:>6} | {:>6}",
        "corpus",
        "bytes",
        "codec",
        "ratio",
        "compress",
        "encode",
        "%",
        "expand",
        "read",
        "%",
        "no verify",
        "%",
        "crc %"
    );
    for (name, corpus) in [("text", &text), ("objects", &objects)] {
        for len in [16 << 10, 64 << 10, 256 << 10, 2 << 20] {
            for codec in CODECS {
                if is_wanted(&format!("{name} {len} {codec} ")) {
                    beside_library(name, corpus, len, codec.parse().unwrap());
                }
            }
        }
    }
}

fn load(variable: &str, make: fn(usize) -> Vec<u8>) -> Vec<u8> {
    match std::env::var_os(variable) {
        Some(path) => {
            let mut bytes = std::fs::read(path).unwrap();
            bytes.truncate(32 << 20);
            bytes
        }
        None => make(8 << 20),
    }
}

/// The best time of one pass of each of `jobs`, taking turns.
fn best<const N: usize>(mut jobs: [&mut dyn FnMut(); N]) -> [f64; N] {
    let passes: Vec<u32> = jobs
        .iter_mut()
        .map(|job| {
            job();
            let start = Instant::now();
            job();
            (ROUND.as_nanos() / start.elapsed().as_nanos().max(1)).clamp(1, 1 << 20) as u32
        })
        .collect();
    let mut best = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for ((job, &passes), best) in jobs.iter_mut().zip(&passes).zip(&mut best) {
            // The job before left the caches and predictors as it needs them.
            job();
            let start = Instant::now();
            for _ in 0..passes {
                job();
            }
            *best = best.min(start.elapsed().as_secs_f64() / f64::from(passes));
        }
    }
    best
}

/// Up to 2 MiB of values of `len` bytes, from places spread over the corpus.
fn values(corpus: &[u8], len: usize) -> Vec<&[u8]> {
    let all: Vec<&[u8]> = corpus.chunks_exact(len).collect();
    let count = ((2 << 20) / len).clamp(1, all.len());
    (0..count)
        .map(|index| all[index * all.len() / count])
        .collect()
}

fn beside_library(name: &str, corpus: &[u8], len: usize, spec: CodecSpec) {
    let values = values(corpus, len);
    let total: usize = values.iter().map(|value| value.len()).sum();

    let mut library = Library::new(spec);
    let mut compressed: Vec<Vec<(Vec<u8>, usize)>> = Vec::new();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for value in &values {
        let blocks = value.chunks(BLOCK_LEN);
        compressed.push(
            blocks
                .map(|b| (library.compress(b).to_vec(), b.len()))
                .collect(),
        );
        let mut frame = Vec::new();
        encode(spec, MIN_BYTES, value, &mut frame).unwrap();
        frames.push(frame);
    }
    let stored: usize = frames.iter().map(Vec::len).sum();

    let mut other = Library::new(spec);
    let (mut out, mut value_out, mut value_out_2) = (Vec::new(), Vec::new(), Vec::new());
    let mut expanded = vec![0; len];
    let [compress, encoded, expand, read, decoded, crc] = best([
        &mut || {
            for block in values.iter().flat_map(|value| value.chunks(BLOCK_LEN)) {
                black_box(library.compress(block));
            }
        },
        &mut || {
            for value in &values {
                out.clear();
                black_box(encode(spec, MIN_BYTES, value, &mut out).unwrap());
            }
        },
        &mut || {
            for value in &compressed {
                for ((block, len), out) in value.iter().zip(expanded.chunks_mut(BLOCK_LEN)) {
                    assert_eq!(other.decompress(block, out), *len);
                }
            }
        },
        &mut || {
            for frame in &frames {
                let frame = Frame::parse(frame, LIMIT).unwrap();
                frame.verify().unwrap();
                frame.decode_into(&mut value_out).unwrap();
            }
        },
        &mut || {
            for frame in &frames {
                Frame::parse(frame, LIMIT)
                    .unwrap()
                    .decode_into(&mut value_out_2)
                    .unwrap();
            }
        },
        &mut || {
            for frame in &frames {
                black_box(crc_fast::checksum(
                    crc_fast::CrcAlgorithm::Crc32Iscsi,
                    frame,
                ));
            }
        },
    ]);
    let speed = |seconds: f64| total as f64 / seconds / 1e6;
    println!(
        "{name:8} {len:>8} {:8} {:>6.2} | {:>9.0} {:>9.0} {:>5.1}% | {:>9.0} {:>9.0} {:>5.1}% {:>9.0} {:>5.1}% | {:>5.1}%",
        spec.to_string(),
        total as f64 / stored as f64,
        speed(compress),
        speed(encoded),
        100.0 * compress / encoded,
        speed(expand),
        speed(read),
        100.0 * expand / read,
        speed(decoded),
        100.0 * expand / decoded,
        100.0 * crc / expand,
    );
}

/// Values that are handed on are decoded into a vector of their own, as the node does: beside the
/// library that does the same, and beside the library with a buffer that is used again.
fn handed_on(name: &str, corpus: &[u8], len: usize, spec: CodecSpec) {
    let values = values(corpus, len);
    let total: usize = values.iter().map(|value| value.len()).sum();
    let (mut library, mut other) = (Library::new(spec), Library::new(spec));
    let mut frames = Vec::new();
    let mut compressed = Vec::new();
    for value in &values {
        compressed.push(library.compress(value).to_vec());
        let mut frame = Vec::new();
        encode(spec, MIN_BYTES, value, &mut frame).unwrap();
        frames.push(frame);
    }
    let mut again = vec![0; len];
    let [used_again, of_its_own, path] = best([
        &mut || {
            for block in &compressed {
                assert_eq!(library.decompress(block, &mut again), len);
                black_box(&again);
            }
        },
        &mut || {
            for block in &compressed {
                black_box(other.decompress_new(block, len));
            }
        },
        &mut || {
            for frame in &frames {
                let frame = Frame::parse(frame, LIMIT).unwrap();
                frame.verify().unwrap();
                let mut value = Vec::new();
                frame.decode_into(&mut value).unwrap();
                black_box(value);
            }
        },
    ]);
    let speed = |seconds: f64| total as f64 / seconds / 1e6;
    println!(
        "{name:8} {len:>8} {:8} | {:>9.0} {:>9.0} {:>9.0} | {:>5.1}% {:>5.1}%",
        spec.to_string(),
        speed(used_again),
        speed(of_its_own),
        speed(path),
        100.0 * of_its_own / path,
        100.0 * used_again / path,
    );
}

/// What a second thread gains on a value of 10 MiB, and what it costs.
fn shared() {
    println!("a value of 10 MiB with one thread and with two: ms until done, ms of processor time");
    println!(
        "{:8} | {:>8} {:>8} {:>8} {:>8} | {:>8} {:>8} {:>8} {:>8}",
        "codec", "encode", "cpu", "by two", "cpu", "decode", "cpu", "by two", "cpu"
    );
    let value = corpora::json(10 << 20);
    for spec in CODECS.map(|name| name.parse::<CodecSpec>().unwrap()) {
        let (mut frame, mut out) = (Vec::new(), Vec::new());
        let mut times = Vec::new();
        for threads in [1, 2] {
            times.extend(best_of_both(|| {
                frame.clear();
                compress(spec, &value, threads, &mut frame).unwrap();
            }));
        }
        for threads in [1, 2] {
            times.extend(best_of_both(|| {
                let frame = Frame::parse(&frame, LIMIT).unwrap();
                frame.decode_shared(threads, &mut out).unwrap();
            }));
        }
        let [a, b, c, d, e, f, g, h] = times.try_into().unwrap();
        println!(
            "{:8} | {a:>8.2} {b:>8.2} {c:>8.2} {d:>8.2} | {e:>8.2} {f:>8.2} {g:>8.2} {h:>8.2}",
            spec.to_string()
        );
    }
}

/// The best time and the best processor time of 30 passes, in ms.
fn best_of_both(mut job: impl FnMut()) -> [f64; 2] {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let mut best = [f64::INFINITY; 2];
    for _ in 0..30 {
        let (start, start_cpu) = (Instant::now(), cpu());
        job();
        let times = [start.elapsed().as_secs_f64(), cpu() - start_cpu];
        for (best, time) in best.iter_mut().zip(times) {
            *best = best.min(1e3 * time);
        }
    }
    best
}

/// What sniffing costs on values that no codec shrinks.
fn incompressible() {
    println!("incompressible values: ns a value; % is over none");
    println!(
        "{:>8} | {:>9} {:>9} {:>9} | {:>9} {:>7} | {:>9} {:>7} | {:>9} {:>7} | {:>9} {:>7} {:>9}",
        "bytes",
        "copy",
        "crc",
        "none",
        "zip",
        "%",
        "random",
        "%",
        "in a run",
        "%",
        "sniff zip",
        "random",
        "attempt"
    );
    for len in [
        1 << 10,
        4 << 10,
        16 << 10,
        64 << 10,
        128 << 10,
        256 << 10,
        1 << 20,
        2 << 20,
    ] {
        let (random, zip) = (corpora::random(len), corpora::precompressed(len));
        let (none, lz4): (CodecSpec, CodecSpec) = ("none".parse().unwrap(), "lz4".parse().unwrap());
        let count = (64 << 10) / len;
        let randoms: Vec<_> = (0..count.clamp(1, 20) as u64)
            .map(|seed| corpora::random_of(seed + 3, len))
            .collect();
        let (mut before, mut next, mut later, mut sniffed) = (0, 0, 0, 0);
        let runs = Runs::default();
        let mut library = Library::new(lz4);
        let mut outs: [Vec<u8>; 5] = std::array::from_fn(|_| Vec::new());
        let [copied, plain, zipped, randomized, run_of] = &mut outs;
        let run = |spec, value: &[u8], out: &mut Vec<u8>| {
            out.clear();
            black_box(encode(spec, MIN_BYTES, black_box(value), out).unwrap());
        };
        let [
            copy,
            crc,
            as_none,
            as_zip,
            as_random,
            in_a_run,
            sniff_zip,
            sniff_random,
            attempt,
        ] = best([
            &mut || {
                copied.clear();
                copied.extend_from_slice(black_box(&random));
                black_box(&copied);
            },
            &mut || {
                black_box(crc_fast::checksum(
                    crc_fast::CrcAlgorithm::Crc32Iscsi,
                    black_box(&random),
                ));
            },
            &mut || {
                before = (before + 1) % randoms.len();
                run(none, &randoms[before], plain);
            },
            &mut || run(lz4, &zip, zipped),
            &mut || {
                // Other bytes each time: one value in ten needs a second look.
                next = (next + 1) % randoms.len();
                run(lz4, &randoms[next], randomized);
            },
            &mut || {
                later = (later + 1) % randoms.len();
                let value = black_box(&randoms[later]);
                run_of.clear();
                match runs.reason_to_leave(lz4, MIN_BYTES, value) {
                    Some(reason) => {
                        black_box(encode_verbatim(reason, value, run_of).unwrap());
                    }
                    None => runs.tell(value.len(), compress(lz4, value, 1, run_of).is_ok()),
                }
            },
            &mut || {
                black_box(fonn_codec::sniff::is_compressed(black_box(&zip)));
            },
            &mut || {
                sniffed = (sniffed + 1) % randoms.len();
                black_box(fonn_codec::sniff::looks_random(black_box(
                    &randoms[sniffed],
                )));
            },
            &mut || {
                for block in random.chunks(BLOCK_LEN) {
                    black_box(library.compress(block));
                }
            },
        ]);
        let over = |seconds: f64| 100.0 * (seconds / as_none - 1.0);
        println!(
            "{len:>8} | {:>9.0} {:>9.0} {:>9.0} | {:>9.0} {:>6.1}% | {:>9.0} {:>6.1}% | {:>9.0} {:>6.1}% | {:>9.1} {:>7.1} {:>9.0}",
            copy * 1e9,
            crc * 1e9,
            as_none * 1e9,
            as_zip * 1e9,
            over(as_zip),
            as_random * 1e9,
            over(as_random),
            in_a_run * 1e9,
            over(in_a_run),
            sniff_zip * 1e9,
            sniff_random * 1e9,
            attempt * 1e9,
        );
    }
}
