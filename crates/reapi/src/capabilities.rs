//! What the server says that it can do.

use crate::digest::DigestFunction;
use crate::messages::{
    ActionCacheUpdateCapabilities, CacheCapabilities, FastCdc2020Params, PriorityCapabilities,
    SemVer, ServerCapabilities, priority_capabilities,
};
use crate::resource::Compressor;

/// Bytes of blobs in one batch: the rest of the longest message is for digests and statuses.
pub const BATCH_LEN_MAX: usize = crate::frame::MESSAGE_LEN_MAX - (256 << 10);

/// Absolute symbolic links in outputs are allowed.
const SYMLINKS_ALLOWED: i32 = 2;

/// `FAST_CDC_2020` in the API.
pub const FAST_CDC_2020: i32 = 1;

/// The capabilities of a cache with blobs of so many bytes at most, which cuts them into chunks of
/// `chunk_len_avg` bytes on average.
///
/// `update_enabled` says whether the client is told that it may store results. Bazel 2.1 fails if
/// it is told otherwise and may upload; it takes the refusal of a write for a warning. The oldest
/// version is 2.0, without which Bazel 2.1 refuses the server.
#[must_use]
pub fn of_cache(
    blob_len_max: u64,
    chunk_len_avg: usize,
    update_enabled: bool,
) -> ServerCapabilities {
    let version = |minor| Some(SemVer { major: 2, minor });
    let compressors = vec![Compressor::Zstd as i32];
    ServerCapabilities {
        cache_capabilities: Some(CacheCapabilities {
            digest_functions: DigestFunction::ALL.map(|it| it as i32).to_vec(),
            action_cache_update_capabilities: Some(ActionCacheUpdateCapabilities {
                update_enabled,
            }),
            cache_priority_capabilities: Some(PriorityCapabilities {
                priorities: vec![priority_capabilities::PriorityRange::default()],
            }),
            max_batch_total_size_bytes: BATCH_LEN_MAX as i64,
            symlink_absolute_path_strategy: SYMLINKS_ALLOWED,
            supported_compressors: compressors.clone(),
            supported_batch_update_compressors: compressors,
            max_cas_blob_size_bytes: i64::try_from(blob_len_max).unwrap_or(i64::MAX),
            split_blob_support: true,
            splice_blob_support: true,
            fast_cdc_2020_params: Some(FastCdc2020Params {
                avg_chunk_size_bytes: chunk_len_avg as u64,
                seed: 0,
            }),
        }),
        low_api_version: version(0),
        high_api_version: version(12),
    }
}
