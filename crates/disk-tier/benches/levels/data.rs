//! Values of three kinds.

use bytes::Bytes;

/// Bytes that values are cut from.
const POOL_LEN: usize = 24 << 20;

/// What values consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Lines of words.
    Compressible,
    /// An object file: this program.
    Object,
    /// Zstandard frames of that, as sccache stores them.
    Precompressed,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Compressible, Self::Object, Self::Precompressed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Compressible => "compressible",
            Self::Object => "object file",
            Self::Precompressed => "precompressed",
        }
    }
}

/// Values of one kind and length.
pub struct Pool {
    values: Vec<Bytes>,
}

impl Pool {
    pub fn new(kind: Kind, value_len: usize) -> Self {
        let bytes = match kind {
            Kind::Compressible => words(),
            Kind::Object => object(),
            Kind::Precompressed => return Self::packed(value_len),
        };
        let mut values: Vec<Bytes> = bytes
            .chunks_exact(value_len)
            .map(Bytes::copy_from_slice)
            .collect();
        values.truncate(4096);
        Self { values }
    }

    /// Each value begins like a frame, as a real one does.
    fn packed(value_len: usize) -> Self {
        let spec = "zstd:3".parse().unwrap();
        let object = object();
        let mut packed = Vec::new();
        for chunk in object.chunks(128 << 10) {
            let mut frame = Vec::new();
            fonn_codec::encode(spec, 0, chunk, &mut frame).unwrap();
            packed.extend_from_slice(&frame[fonn_codec::frame::HEADER_LEN..]);
        }
        let magic = [0x28, 0xB5, 0x2F, 0xFD];
        let values = packed.chunks_exact(value_len).map(|chunk| {
            let mut value = chunk.to_vec();
            value[..4].copy_from_slice(&magic);
            Bytes::from(value)
        });
        Self {
            values: values.take(4096).collect(),
        }
    }

    pub fn value(&self, number: u64) -> &Bytes {
        &self.values[number as usize % self.values.len()]
    }
}

fn object() -> Vec<u8> {
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    bytes.truncate(POOL_LEN);
    bytes
}

fn words() -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let letters = b"etaoinshrdlucmfw";
    let word = |seed: usize| -> Vec<u8> {
        let len = 2 + seed % 9;
        (0..len)
            .map(|at| letters[(seed >> (at * 3)) % letters.len()])
            .collect()
    };
    let vocabulary: Vec<Vec<u8>> = (0..2000).map(|_| word(next())).collect();
    let mut out = Vec::with_capacity(POOL_LEN);
    while out.len() < POOL_LEN {
        // Some words are more frequent than others.
        let at = (next() % 2000).min(next() % 2000);
        out.extend_from_slice(&vocabulary[at]);
        out.push(if next() % 12 == 0 { b'\n' } else { b' ' });
    }
    out
}
