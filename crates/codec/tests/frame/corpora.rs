//! Values made in code: the same at each run, for any length.

/// A source of bytes that look random (SplitMix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A way to make values, by length.
pub struct Corpus {
    pub name: &'static str,
    pub make: fn(len: usize) -> Vec<u8>,
}

pub const CORPORA: [Corpus; 7] = [
    Corpus {
        name: "json",
        make: json,
    },
    Corpus {
        name: "text",
        make: text,
    },
    Corpus {
        name: "object",
        make: object,
    },
    Corpus {
        name: "zeros",
        make: zeros,
    },
    Corpus {
        name: "random",
        make: random,
    },
    Corpus {
        name: "precompressed",
        make: precompressed,
    },
    Corpus {
        name: "mixed",
        make: mixed,
    },
];

/// Words of a small vocabulary, frequent ones more often, with punctuation and numbers.
pub fn text(len: usize) -> Vec<u8> {
    let mut noise = Noise(1);
    let words: Vec<Vec<u8>> = (0..500)
        .map(|_| {
            let letters = 2 + noise.below(8);
            (0..letters)
                .map(|_| b"etaoinshrdlucmfw"[noise.below(16)])
                .collect()
        })
        .collect();
    let mut out = Vec::with_capacity(len + 32);
    while out.len() < len {
        let rank = noise.below(500) * noise.below(500) / 500;
        out.extend_from_slice(&words[rank]);
        match noise.below(12) {
            0 => out.extend_from_slice(b",\n    "),
            1 => out.extend_from_slice(noise.below(10_000).to_string().as_bytes()),
            _ => out.push(b' '),
        }
    }
    out.truncate(len);
    out
}

/// Lines of JSON, as a service logs them: the same names, times that grow, and numbers.
pub fn json(len: usize) -> Vec<u8> {
    const LEVELS: [&str; 4] = ["info", "info", "warn", "debug"];
    const ROUTES: [&str; 6] = [
        "/v1/users",
        "/v1/users/search",
        "/v1/orders",
        "/v1/orders/latest",
        "/health",
        "/v2/reports/daily",
    ];
    let mut noise = Noise(5);
    let mut time_us = 1_700_000_000_000_000u64;
    let mut out = Vec::with_capacity(len + 300);
    while out.len() < len {
        time_us += noise.next() % 5000;
        let status = [200, 200, 200, 404, 500][noise.below(5)];
        let line = format!(
            "{{\"time_us\":{time_us},\"level\":\"{}\",\"service\":\"gateway-{}\",\"route\":\"{}\",\
             \"status\":{status},\"duration_ms\":{}.{:03},\"bytes\":{},\"request_id\":\"{:016x}\"}}\n",
            LEVELS[noise.below(4)],
            noise.below(12),
            ROUTES[noise.below(6)],
            noise.below(90),
            noise.below(1000),
            noise.below(60_000),
            noise.next(),
        );
        out.extend_from_slice(line.as_bytes());
    }
    out.truncate(len);
    out
}

/// Instructions with immediates, tables of addresses, string tables, padding.
pub fn object(len: usize) -> Vec<u8> {
    const OPERATIONS: [&[u8]; 8] = [
        b"\x48\x8B",
        b"\x48\x89",
        b"\xE8",
        b"\x0F\x84",
        b"\x48\x8D",
        b"\x31\xC0",
        b"\xC3",
        b"\x55",
    ];
    let mut noise = Noise(2);
    let mut out = b"\x7FELF\x02\x01\x01\0".to_vec();
    let mut address = 0x40_1000u64;
    while out.len() < len {
        match noise.below(4) {
            0 => (0..64).for_each(|_| {
                address += 8 * noise.below(40) as u64;
                out.extend_from_slice(&address.to_le_bytes());
            }),
            1 => out.extend_from_slice(&text(300)),
            2 => out.extend_from_slice(&[0; 96]),
            _ => (0..128).for_each(|_| {
                out.extend_from_slice(OPERATIONS[noise.below(8)]);
                out.push(noise.below(256) as u8);
                out.extend_from_slice(&(noise.below(4096) as u32).to_le_bytes());
            }),
        }
    }
    out.truncate(len);
    out
}

pub fn zeros(len: usize) -> Vec<u8> {
    vec![0; len]
}

pub fn random(len: usize) -> Vec<u8> {
    random_of(3, len)
}

pub fn random_of(seed: u64, len: usize) -> Vec<u8> {
    let mut noise = Noise(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&noise.next().to_le_bytes());
    }
    out.truncate(len);
    out
}

/// What sccache stores: a ZIP of a stored member that is a Zstandard frame.
pub fn precompressed(len: usize) -> Vec<u8> {
    let mut out = b"PK\x03\x04\x14\0\0\0\0\0\0\0\x21\0\0\0\0\0".to_vec();
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.extend_from_slice(b"\x03\0\0\0obj\x28\xB5\x2F\xFD\x04\x58");
    out.extend_from_slice(&random_of(4, len));
    out.truncate(len);
    out
}

/// An archive of text and random bytes in turn, 50,000 bytes each.
pub fn mixed(len: usize) -> Vec<u8> {
    let (plain, noise) = (text(len), random(len));
    (0..len)
        .map(|i| {
            if i / 50_000 % 2 == 0 {
                plain[i]
            } else {
                noise[i]
            }
        })
        .collect()
}
