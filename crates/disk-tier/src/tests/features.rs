//! A store that has every codec, under other configurations, and values of a codec that the build
//! lacks.

use fonn_codec::frame::HEADER_LEN;
use fonn_codec::{FrameError, Verbatim, encode_verbatim};

use super::compaction::text;
use super::*;

/// What a key's value is.
fn value(key: &str) -> Vec<u8> {
    text(xxhash_rust::xxh3::xxh3_64(key.as_bytes()), 20_000)
}

#[tokio::test]
async fn each_reason_why_entries_cannot_be_read_is_one_line_in_the_log() {
    let rig = Rig::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    let writer = LogWriter(Arc::clone(&log));
    let format = fonn_base::telemetry::LogFormat::Text;
    let (dispatch, _control) =
        fonn_base::telemetry::build(&"warn".parse().unwrap(), format, false, move || {
            writer.clone()
        });
    tracing::dispatcher::with_default(&dispatch, || {
        for _ in 0..3 {
            for codec in ["zstd", "snappy"] {
                let feature = codec;
                let reason = FrameError::AbsentCodec { codec, feature };
                rig.shared().warn_of_unsupported(reason);
            }
        }
    });
    let log = String::from_utf8(log.lock().clone()).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    for (line, codec) in lines.iter().zip(["zstd", "snappy"]) {
        assert!(line.contains("entries on disk cannot be read by this build"));
        assert!(line.contains(&format!("cargo feature `{codec}`")), "{line}");
    }
}

/// Keeps what is logged.
#[derive(Clone)]
struct LogWriter(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(all(
    feature = "lz4",
    feature = "snappy",
    feature = "zlib",
    feature = "zstd"
))]
mod with_all {
    use fonn_codec::Encoding;
    use fonn_codec::frame::Header;

    use super::*;

    const CODECS: [&str; 7] = [
        "none", "lz4", "snappy", "zlib:6", "zstd:-5", "zstd:3", "zstd:9",
    ];

    /// Every codec for fresh values, below every codec for compacted ones, and fresh ones that
    /// never compacted.
    async fn write(rig: &Rig) -> Vec<String> {
        let mut keys = Vec::new();
        let mut version = 0;
        for last in CODECS.into_iter().map(Some).chain([None]) {
            for fresh in CODECS {
                rig.tier().fresh().set(fresh.parse().unwrap(), 256);
                let key = format!("{fresh} {}", last.unwrap_or("fresh"));
                version += 1;
                rig.put(key.as_bytes(), version, value(&key)).await;
                // The writer takes the codec when it comes to the value.
                rig.tier().barrier().await;
                keys.push(key);
            }
            if let Some(last) = last {
                let id = rig.newest_id();
                rig.tier().compacted().set(last.parse().unwrap(), 256);
                rig.roll().await;
                rig.compact(id).await;
            }
        }
        keys
    }

    async fn codec_of(rig: &Rig, key: &str) -> &'static str {
        let entry = rig.get(key.as_bytes()).await;
        let entry = entry.unwrap_or_else(|| panic!("{key} is gone"));
        assert_eq!(entry.value, value(key), "{key}");
        let Some(frame) = entry.frame else {
            return "none";
        };
        match Header::parse(&frame, usize::MAX).unwrap().encoding() {
            Encoding::Verbatim(_) => "none",
            Encoding::Compressed(spec) => spec.codec().name(),
        }
    }

    #[tokio::test]
    async fn a_store_of_every_combination_is_read_under_any_configuration() {
        let mut rig = Rig::with(|options| options.budget_bytes = 1 << 30);
        let keys = write(&rig).await;
        let mut codecs = Vec::new();
        for (fresh, last) in [("none", "none"), ("zstd:1", "lz4"), ("auto", "auto")] {
            rig.options.fresh = fresh.parse().unwrap();
            rig.options.compacted = last.parse().unwrap();
            rig.reopen();
            codecs.clear();
            for key in &keys {
                codecs.push(codec_of(&rig, key).await);
            }
        }
        for codec in ["none", "lz4", "snappy", "zlib", "zstd"] {
            assert!(codecs.contains(&codec), "{codec} is not in the store");
        }
    }
}

/// The id of a codec that no build has.
const FOREIGN: u8 = 0xEE;

/// A frame that is intact, and whose codec this build lacks.
fn foreign_frame(value: &[u8]) -> Bytes {
    const CODEC_AT: usize = 1;
    const CHECKSUM_AT: usize = HEADER_LEN - 4;
    let mut frame = Vec::new();
    encode_verbatim(Verbatim::NoCodec, value, &mut frame).unwrap();
    frame[CODEC_AT] = FOREIGN;
    let header = crc32c::crc32c(&frame[..CHECKSUM_AT]);
    let checksum = crc32c::crc32c_append(header, &frame[HEADER_LEN..]);
    frame[CHECKSUM_AT..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
    frame.into()
}

#[tokio::test]
async fn a_value_whose_codec_the_build_lacks_is_a_miss_and_reported_once() {
    let rig = Rig::new();
    let keys: Vec<String> = (0..20).map(|number| format!("key {number}")).collect();
    let is_foreign = |number: usize| number.is_multiple_of(2);
    for (number, key) in keys.iter().enumerate() {
        let version = number as u64 + 1;
        if is_foreign(number) {
            rig.put_frame(key.as_bytes(), version, foreign_frame(&value(key)))
                .await;
        } else {
            rig.put(key.as_bytes(), version, value(key)).await;
        }
    }
    let check = async || {
        let before = rig.stats();
        for (number, key) in keys.iter().enumerate() {
            let found = rig.get(key.as_bytes()).await.map(|entry| entry.value);
            let expected = (!is_foreign(number)).then(|| value(key));
            assert_eq!(found.as_deref(), expected.as_deref(), "{key}");
        }
        let after = rig.stats();
        assert_eq!(after.reads_unsupported - before.reads_unsupported, 10);
        assert_eq!(after.reads_corrupt, 0);
        assert_eq!(after.reads_failed, 0);
    };
    check().await;
    check().await;
    let reasons = rig.shared().unsupported_reasons();
    assert_eq!(reasons, [FrameError::UnknownCodec { id: FOREIGN }]);
    // A rewrite of the generation keeps them for a build that can read them.
    let id = rig.newest_id();
    rig.roll().await;
    rig.compact(id).await;
    check().await;
    // A key has a value again once it is written again.
    let key = &keys[0];
    rig.put(key.as_bytes(), 1 << 40, value(key)).await;
    assert_eq!(rig.get(key.as_bytes()).await.unwrap().value, value(key));
}

#[tokio::test]
async fn what_is_read_in_one_turn_wakes_one_thread() {
    let rig = Rig::with(|options| options.read_threads = 1);
    for version in 1..=100_u64 {
        rig.put(&version.to_le_bytes(), version, noise(version, 100))
            .await;
    }
    let before = rig.stats();
    let mut reads = tokio::task::JoinSet::new();
    for version in 1..=100_u64 {
        let tier = rig.tier().clone();
        reads.spawn(async move { tier.get(SPACE, &version.to_le_bytes()).await.unwrap() });
    }
    let found = reads.join_all().await;
    assert!(found.iter().all(Option::is_some));
    // None if the thread was awake all the time.
    assert!(rig.stats().read_wakes - before.read_wakes <= 1);
}
