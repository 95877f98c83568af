//! Theme `differential`: generated commands of the text protocol go to Fonn and to the memcached of the
//! distribution, and the replies are compared byte for byte. Every command of memcached and redis exists here or has a row.
//!
//! What may differ is normalised, and each such rule names a row of the table of differences
//! (`fonn_proto::differences`, printed in docs/protocols.md). A sequence is a pure function of its
//! seed. `FONN_DIFFERENTIAL_SEED` replays one seed, `FONN_DIFFERENTIAL_SEQUENCES` changes the count.

mod coverage;
mod sequence;
mod text;
mod wire;
