//! What is compressed. Made at run time: nothing of it is in the repository.

use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{compiled, corpora};

/// Length of a value that is cut from a stream: the longest of one piece.
const SINGLE_LEN: usize = 128 << 10;
/// Length of a value of many blocks.
const MULTI_LEN: usize = 2 << 20;

const KERNEL: &str = "/usr/src/linux-source-6.1.tar.xz";
const MIB: usize = 1 << 20;

pub struct Corpus {
    pub name: &'static str,
    pub values: Vec<Vec<u8>>,
    note: String,
}

impl Corpus {
    fn cut(name: &'static str, stream: &[u8], value_len: usize, note: &str) -> Self {
        let values: Vec<_> = stream.chunks_exact(value_len).map(<[u8]>::to_vec).collect();
        Self::of(name, values, note)
    }

    pub fn of(name: &'static str, values: Vec<Vec<u8>>, note: &str) -> Self {
        let note = note.to_owned();
        Self { name, values, note }
    }

    pub fn total_len(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }

    pub fn describe(&self) -> String {
        let total_mib = self.total_len() as f64 / MIB as f64;
        let count = self.values.len();
        let Self { name, note, .. } = self;
        format!("{name}: {count} values, {total_mib:.1} MiB: {note}")
    }
}

/// All corpora that can be had, of about `len` bytes each.
pub fn all(len: usize) -> Vec<Corpus> {
    let mut all = Vec::new();
    if let Some(stream) = kernel(len) {
        let note = "parts of the tar archive of Linux 6.1";
        all.push(Corpus::cut("kernel", &stream, SINGLE_LEN, note));
        let note = "the same, in values of 2 MiB";
        all.push(Corpus::cut("kernel-2m", &stream, MULTI_LEN.min(len), note));
    }
    all.extend(compiled::corpora(len));
    let json = corpora::json(len);
    let note = "lines of a log";
    all.push(Corpus::cut("json", &json, SINGLE_LEN, note));
    let note = "the same, in values of 2 MiB";
    all.push(Corpus::cut("json-2m", &json, MULTI_LEN.min(len), note));
    let random = corpora::random(len);
    all.push(Corpus::cut("random", &random, SINGLE_LEN, "random bytes"));
    all
}

/// One MiB of every so many of the kernel's source archive.
fn kernel(len: usize) -> Option<Vec<u8>> {
    let path = std::env::var_os("FONN_BENCH_KERNEL").map_or_else(|| KERNEL.into(), PathBuf::from);
    if !path.exists() {
        eprintln!(
            "kernel: {} is not there, so this corpus is left out: `apt-get install linux-source-6.1`, \
             or set FONN_BENCH_KERNEL to a .tar.xz",
            path.display()
        );
        return None;
    }
    // Of the whole archive for the long run, of its first part for the short one: unpacking all of
    // it takes most of a minute.
    let count = len / MIB;
    let skip = if count >= 16 { 1300 / count } else { 40 };
    let mut xz = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .inspect_err(|error| eprintln!("kernel: xz cannot be run ({error}), left out"))
        .ok()?;
    let mut tar = BufReader::with_capacity(MIB, xz.stdout.take()?);
    let mut kept = Vec::new();
    let mut part = vec![0; MIB];
    for index in 0.. {
        if kept.len() >= len || tar.read_exact(&mut part).is_err() {
            break;
        }
        if index % skip == skip / 2 {
            kept.extend_from_slice(&part);
        }
    }
    drop(tar);
    // It may still have much to say.
    let _ = xz.kill();
    let _ = xz.wait();
    Some(kept)
}
