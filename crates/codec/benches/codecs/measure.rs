//! One line: one codec on one corpus, by the library and through the path.

use std::hint::black_box;
use std::time::Duration;

use fonn_codec::frame::BLOCK_LEN;
use fonn_codec::{CodecSpec, Frame, encode};
use rustix::time::{ClockId, clock_gettime};

use crate::library::Library;
use crate::sources::Corpus;

const MIN_BYTES: usize = 256;
const LIMIT: usize = 1 << 30;

/// How long to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Processor time for each job.
    pub budget: Duration,
    /// Passes of each job at least.
    pub passes: u32,
}

pub enum Contender {
    /// A codec of the registry.
    Spec(CodecSpec),
    /// Only the library.
    Lzo,
}

impl Contender {
    pub fn named(name: &str) -> Self {
        match name {
            "lzo" => Self::Lzo,
            _ => Self::Spec(name.parse().unwrap()),
        }
    }

    fn library(&self) -> Library {
        match self {
            Self::Spec(spec) => Library::new(*spec),
            Self::Lzo => Library::lzo(),
        }
    }
}

/// Speeds are in MB/s of the values' bytes, ratios of the values' bytes to the stored ones.
pub struct Line {
    pub corpus: &'static str,
    pub codec: String,
    pub library: Figures,
    /// None for what is no codec of ours.
    pub path: Option<Figures>,
    /// The library's ratio on whole values.
    pub whole_ratio: f64,
}

#[derive(Clone, Copy)]
pub struct Figures {
    pub ratio: f64,
    pub compress: f64,
    pub decompress: f64,
}

pub fn measure(corpus: &Corpus, contender: Contender, effort: Effort) -> Line {
    let total = corpus.total_len() as f64;
    let speed = |seconds: f64| total / seconds / 1e6;
    let blocks = || {
        corpus
            .values
            .iter()
            .flat_map(|value| value.chunks(BLOCK_LEN))
    };
    let spec = match contender {
        Contender::Spec(spec) => spec,
        Contender::Lzo => CodecSpec::none(),
    };

    let mut compressor = contender.library();
    let compressed: Vec<Vec<(Vec<u8>, usize)>> = corpus
        .values
        .iter()
        .map(|value| {
            value
                .chunks(BLOCK_LEN)
                .map(|block| (compressor.compress(block).to_vec(), block.len()))
                .collect()
        })
        .collect();
    let whole: usize = corpus
        .values
        .iter()
        .map(|value| compressor.compress(value).len())
        .sum();
    let frames: Vec<Vec<u8>> = corpus
        .values
        .iter()
        .map(|value| {
            let mut frame = Vec::new();
            encode(spec, MIN_BYTES, value, &mut frame).unwrap();
            frame
        })
        .collect();

    let mut decompressor = contender.library();
    let longest = corpus.values.iter().map(Vec::len).max().unwrap_or(0);
    let mut expanded = vec![0; longest];
    let (mut frame_out, mut value_out) = (Vec::new(), vec![0; longest]);
    let [compress, encoded, decompress, decoded] = best(
        effort,
        [
            &mut || {
                for block in blocks() {
                    black_box(compressor.compress(block));
                }
            },
            &mut || {
                for value in &corpus.values {
                    frame_out.clear();
                    black_box(encode(spec, MIN_BYTES, value, &mut frame_out).unwrap());
                }
            },
            &mut || {
                // Each block to its place in the value, as the path does: always to the same 128
                // KiB is faster, and makes no value.
                for value in &compressed {
                    let mut rest = &mut expanded[..];
                    for (block, len) in value {
                        let (place, behind) = rest.split_at_mut(*len);
                        assert_eq!(decompressor.decompress(block, place), *len);
                        rest = behind;
                    }
                    black_box(&expanded);
                }
            },
            &mut || {
                for frame in &frames {
                    let frame = Frame::parse(frame, LIMIT).unwrap();
                    frame.verify().unwrap();
                    let out = &mut value_out[..frame.original_len()];
                    frame.decode_to(out).unwrap();
                    black_box(&value_out);
                }
            },
        ],
    );
    let stored = |parts: &mut dyn Iterator<Item = usize>| total / parts.sum::<usize>() as f64;
    Line {
        corpus: corpus.name,
        codec: match contender {
            Contender::Spec(spec) => spec.to_string(),
            Contender::Lzo => "lzo".to_owned(),
        },
        library: Figures {
            ratio: stored(&mut compressed.iter().flatten().map(|(block, _)| block.len())),
            compress: speed(compress),
            decompress: speed(decompress),
        },
        path: matches!(contender, Contender::Spec(_)).then(|| Figures {
            ratio: stored(&mut frames.iter().map(Vec::len)),
            compress: speed(encoded),
            decompress: speed(decoded),
        }),
        whole_ratio: total / whole as f64,
    }
}

/// The best processor time of one pass of each of `jobs`, in seconds, taking turns. Each runs until
/// it had its passes and used up its budget, so fast ones run more often.
fn best<const N: usize>(effort: Effort, mut jobs: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    let mut spent = [0.0; N];
    let budget = effort.budget.as_secs_f64();
    for pass in 0.. {
        let mut is_done = true;
        for ((job, best), spent) in jobs.iter_mut().zip(&mut best).zip(&mut spent) {
            if pass >= effort.passes && *spent >= budget {
                continue;
            }
            is_done = false;
            let start = cpu_seconds();
            job();
            let seconds = cpu_seconds() - start;
            *spent += seconds;
            *best = best.min(seconds);
        }
        if is_done {
            break;
        }
    }
    best
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
