//! Theme `differential`: the same generated commands go to Fonn and to the memcached and redis of the
//! distribution, and the replies are compared byte for byte.
//!
//! What may differ is normalised, and each such rule names a row of the table of differences
//! (`fonn_proto::differences`, printed in docs/protocols.md). A sequence is a pure function of its
//! seed. `FONN_DIFFERENTIAL_SEED` replays one seed, `FONN_DIFFERENTIAL_SEQUENCES` changes the count.

mod binary;
mod coverage;
mod meta;
mod redis;
mod sequence;
mod text;
mod wire;
