//! What is measured: kinds of work and numbers of connections.

/// Connections of the load generator.
pub(super) const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// Values of one kind of work in a server take at most this.
const DATA_LEN_MAX: u64 = 1 << 30;

/// Values of at least this length are compared in bytes, shorter ones in operations.
const IN_BYTES_FROM: usize = 64 << 10;

/// One kind of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) name: &'static str,
    /// Length of values in bytes.
    pub(super) value_len: usize,
    /// Keys, if their values fit [`DATA_LEN_MAX`].
    keys: u64,
    /// Share of gets; the rest are sets.
    pub(super) get_ratio: f64,
    /// Requests in flight on a connection.
    pub(super) pipeline: usize,
    /// What Fonn has to reach in each protocol, as a multiple of the best peer.
    pub(super) bar: f64,
    /// Left out of a quick run.
    pub(super) is_long: bool,
}

impl Work {
    const fn new(name: &'static str, value_len: usize, get_ratio: f64, bar: f64) -> Self {
        Self {
            name,
            value_len,
            keys: 100_000,
            get_ratio,
            pipeline: 1,
            bar,
            is_long: false,
        }
    }

    const fn pipelined(mut self) -> Self {
        self.pipeline = 16;
        self
    }

    const fn of_a_million_keys(mut self) -> Self {
        self.keys = 1_000_000;
        self.is_long = true;
        self
    }

    /// How many keys have values.
    pub(super) fn keys(&self) -> u64 {
        self.keys.min(DATA_LEN_MAX / self.value_len.max(1) as u64)
    }

    pub(super) const fn is_in_bytes(&self) -> bool {
        self.value_len >= IN_BYTES_FROM
    }
}

/// All kinds of work.
pub(super) const WORKS: [Work; 16] = [
    Work::new("GET 100 B", 100, 1.0, 1.05),
    Work::new("GET 100 B, pipelined by 16", 100, 1.0, 1.3).pipelined(),
    Work::new("GET 1 KiB", 1 << 10, 1.0, 1.05),
    Work::new("GET 16 KiB", 16 << 10, 1.0, 1.05),
    Work::new("GET 256 KiB", 256 << 10, 1.0, 1.05),
    Work::new("GET 1 MiB", 1 << 20, 1.0, 1.05),
    Work::new("SET 100 B", 100, 0.0, 1.05),
    Work::new("SET 100 B, pipelined by 16", 100, 0.0, 1.2).pipelined(),
    Work::new("SET 1 KiB", 1 << 10, 0.0, 1.05),
    Work::new("SET 16 KiB", 16 << 10, 0.0, 1.05),
    Work::new("SET 256 KiB", 256 << 10, 0.0, 1.05),
    Work::new("SET 1 MiB", 1 << 20, 0.0, 1.1),
    Work::new("GET 100 B of 1,000,000 keys", 100, 1.0, 1.05).of_a_million_keys(),
    Work::new(
        "GET 100 B of 1,000,000 keys, pipelined by 16",
        100,
        1.0,
        1.3,
    )
    .of_a_million_keys()
    .pipelined(),
    Work::new("SET 100 B of 1,000,000 keys", 100, 0.0, 1.05).of_a_million_keys(),
    Work::new(
        "SET 100 B of 1,000,000 keys, pipelined by 16",
        100,
        0.0,
        1.2,
    )
    .of_a_million_keys()
    .pipelined(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_no_work_fill_the_machine() {
        for work in WORKS {
            let len = work.keys() * work.value_len as u64;
            assert!(work.keys() >= 1000 && len <= DATA_LEN_MAX, "{work:?}");
        }
    }
}
