//! The codec libraries without anything of ours around them, used as well as they can be: contexts
//! and output buffers are kept.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use fonn_codec::CodecSpec;
use fonn_codec::frame::BLOCK_LEN;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

pub struct Library {
    level: i8,
    codec: Codec,
    out: Vec<u8>,
}

enum Codec {
    None,
    Lzo(Box<lzokay::compress::Dict>),
    Lz4 {
        small: CompressTable,
        large: CompressTable,
    },
    Snappy {
        encoder: Box<snap::raw::Encoder>,
        decoder: snap::raw::Decoder,
    },
    Zlib {
        deflate: Compress,
        inflate: Decompress,
    },
    Zstd {
        compression: zstd::bulk::Compressor<'static>,
        decompression: zstd::bulk::Decompressor<'static>,
    },
}

impl Library {
    pub fn new(spec: CodecSpec) -> Self {
        let level = spec.level().unwrap_or(0);
        let codec = match spec.codec().name() {
            "none" => Codec::None,
            "lz4" => Codec::Lz4 {
                small: CompressTable::small(),
                large: CompressTable::large(),
            },
            "snappy" => Codec::Snappy {
                encoder: Box::new(snap::raw::Encoder::new()),
                decoder: snap::raw::Decoder::new(),
            },
            "zlib" => Codec::Zlib {
                deflate: Compress::new(Compression::new(level as u32), false),
                inflate: Decompress::new(false),
            },
            _ => Codec::Zstd {
                compression: zstd::bulk::Compressor::new(level.into()).unwrap(),
                decompression: zstd::bulk::Decompressor::new().unwrap(),
            },
        };
        Self::of(level, codec)
    }

    /// LZO, which has no row in the registry.
    #[allow(dead_code)]
    pub fn lzo() -> Self {
        Self::of(0, Codec::Lzo(lzokay::compress::Dict::new()))
    }

    fn of(level: i8, codec: Codec) -> Self {
        Self {
            level,
            codec,
            out: vec![0; 2 * BLOCK_LEN],
        }
    }

    pub fn compress(&mut self, raw: &[u8]) -> &[u8] {
        if self.out.len() < 2 * raw.len() {
            self.out.resize(2 * raw.len(), 0);
        }
        let out = self.out.as_mut_slice();
        let len = match &mut self.codec {
            Codec::None => {
                out[..raw.len()].copy_from_slice(raw);
                raw.len()
            }
            Codec::Lzo(dictionary) => {
                lzokay::compress::compress_no_alloc(raw, out, dictionary).unwrap()
            }
            Codec::Lz4 { small, large } => {
                let table = if raw.len() < 65_535 { small } else { large };
                compress_into_with_table(raw, out, table).unwrap()
            }
            Codec::Snappy { encoder, .. } => encoder.compress(raw, out).unwrap(),
            Codec::Zlib { deflate, .. } => {
                deflate.reset();
                deflate.compress(raw, out, FlushCompress::Finish).unwrap();
                deflate.total_out() as usize
            }
            Codec::Zstd { compression, .. } => {
                debug_assert!(self.level != 0);
                compression.compress_to_buffer(raw, out).unwrap()
            }
        };
        &self.out[..len]
    }

    pub fn decompress(&mut self, stored: &[u8], out: &mut [u8]) -> usize {
        match &mut self.codec {
            Codec::None => {
                out[..stored.len()].copy_from_slice(stored);
                stored.len()
            }
            Codec::Lzo(_) => lzokay::decompress::decompress(stored, out).unwrap(),
            Codec::Lz4 { .. } => decompress_into(stored, out).unwrap(),
            Codec::Snappy { decoder, .. } => decoder.decompress(stored, out).unwrap(),
            Codec::Zlib { inflate, .. } => {
                inflate.reset(false);
                inflate
                    .decompress(stored, out, FlushDecompress::Finish)
                    .unwrap();
                inflate.total_out() as usize
            }
            Codec::Zstd { decompression, .. } => {
                decompression.decompress_to_buffer(stored, out).unwrap()
            }
        }
    }

    /// A block in a vector of its own, which the library makes where it can.
    #[allow(dead_code)]
    pub fn decompress_new(&mut self, stored: &[u8], len: usize) -> Vec<u8> {
        match &mut self.codec {
            Codec::None => stored.to_vec(),
            Codec::Lzo(_) => {
                let mut out = vec![0; len];
                lzokay::decompress::decompress(stored, &mut out).unwrap();
                out
            }
            Codec::Lz4 { .. } => lz4_flex::block::decompress(stored, len).unwrap(),
            Codec::Snappy { decoder, .. } => decoder.decompress_vec(stored).unwrap(),
            Codec::Zlib { inflate, .. } => {
                inflate.reset(false);
                let mut out = Vec::with_capacity(len);
                inflate
                    .decompress_vec(stored, &mut out, FlushDecompress::Finish)
                    .unwrap();
                out
            }
            Codec::Zstd { decompression, .. } => decompression.decompress(stored, len).unwrap(),
        }
    }
}
