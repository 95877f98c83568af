//! The codecs on data as caches see it: ratio, and speed of compressing and decompressing, through
//! the path of this crate and by the bare library on the same bytes.
//!
//! ```text
//! cargo bench -p fonn-codec --bench codecs                      # 16 MiB a corpus, some minutes
//! cargo bench -p fonn-codec --bench codecs -- quick             # 3 MiB a corpus, half a minute
//! cargo bench -p fonn-codec --bench codecs -- out=../docs/plots # also CSV and SVG, to a directory
//! cargo bench -p fonn-codec --bench codecs -- lz4               # only lines with `lz4` in them
//! ```
//!
//! Everything runs on one thread. Times are the thread's processor time, and the best of several
//! passes counts, so that other load on the machine disturbs little. The library has contexts and
//! buffers that are used again and gets blocks of 128 KiB, as the path gives it; `whole` is its
//! ratio without the cuts.

#![allow(clippy::print_stdout, clippy::print_stderr)] // It is how a benchmark reports.
#![allow(clippy::unwrap_used)]

#[path = "codecs/compiled.rs"]
mod compiled;
#[path = "../tests/frame/corpora.rs"]
#[allow(dead_code)]
mod corpora;
#[path = "path/library.rs"]
mod library;
#[path = "codecs/measure.rs"]
mod measure;
#[path = "codecs/plot.rs"]
mod plot;
#[path = "codecs/report.rs"]
mod report;
#[path = "codecs/sources.rs"]
mod sources;

use std::path::PathBuf;
use std::time::Duration;

use measure::{Contender, Effort};

const CONTENDERS: [&str; 12] = [
    "none", "lzo", "lz4", "snappy", "zlib:6", "zstd:-5", "zstd:1", "zstd:3", "zstd:6", "zstd:9",
    "zstd:12", "zstd:15",
];

struct Options {
    is_quick: bool,
    out: Option<PathBuf>,
    wanted: Option<String>,
}

impl Options {
    fn from_arguments() -> Self {
        let mut options = Self {
            is_quick: false,
            out: None,
            wanted: None,
        };
        for argument in std::env::args().skip(1) {
            match argument.split_once('=') {
                // Cargo's own.
                _ if argument.starts_with('-') => {}
                _ if argument == "quick" => options.is_quick = true,
                Some(("out", directory)) => options.out = Some(directory.into()),
                _ => options.wanted = Some(argument),
            }
        }
        options
    }
}

fn main() {
    let options = Options::from_arguments();
    let (corpus_len, effort) = if options.is_quick {
        let budget = Duration::from_millis(30);
        (3 << 20, Effort { budget, passes: 1 })
    } else {
        let budget = Duration::from_millis(300);
        (16 << 20, Effort { budget, passes: 2 })
    };
    let corpora = sources::all(corpus_len);
    for corpus in &corpora {
        println!("{}", corpus.describe());
    }
    println!("\n{}", report::HEADER);
    let mut lines = Vec::new();
    for corpus in &corpora {
        for name in CONTENDERS {
            let title = format!("{} {name} ", corpus.name);
            if options.wanted.as_ref().is_none_or(|w| title.contains(w)) {
                let line = measure::measure(corpus, Contender::named(name), effort);
                println!("{}", report::row(&line));
                lines.push(line);
            }
        }
    }
    if let Some(directory) = &options.out {
        report::write(directory, &lines).unwrap();
        println!("\nwritten to {}", directory.display());
    }
}
