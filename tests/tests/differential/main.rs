//! Theme `differential`: generated commands go to Fonn and to the memcached or redis of the
//! distribution, and the replies are compared byte for byte: memcached text, meta and binary, and
//! Redis. Every command of memcached and redis exists here or has a row.
//!
//! What may differ is normalised, and each such rule names a row of the table of differences
//! (`fonn_proto::differences`, printed in docs/protocols.md). A sequence is a pure function of its
//! seed. `FONN_DIFFERENTIAL_SEED` replays one seed, `FONN_DIFFERENTIAL_SEQUENCES` changes the
//! count.

mod binary;
mod coverage;
mod meta;
mod packet;
mod redis;
mod redis_words;
mod sequence;
mod text;
mod tokens;
mod wire;
