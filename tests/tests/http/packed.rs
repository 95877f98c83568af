//! Blobs that come compressed, are kept so, and are read by clients of each kind.

use anyhow::{Result, ensure};
use ring::digest::{SHA256, digest};

use fonn_reapi::Deflater;
use fonn_tests::client::{Cache as _, HttpClient, RespClient, TextClient};
use fonn_tests::cluster::Cluster;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::values::{Content, ValuePool};

const LEN: usize = 1 << 20;

/// A blob with its stream and its path.
struct Sample {
    blob: Vec<u8>,
    stream: Vec<u8>,
    path: String,
}

impl Sample {
    fn new(seed: u64) -> Result<Self> {
        let pool = ValuePool::new(Content::Text, LEN);
        let mut blob = pool.value(0, LEN).to_vec();
        blob.extend_from_slice(&seed.to_le_bytes());
        let (mut deflater, mut stream) = (Deflater::new()?, Vec::new());
        deflater.step(&blob, &mut stream)?;
        deflater.finish(&mut stream)?;
        let hash = digest(&SHA256, &blob);
        let hash: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
        Ok(Self {
            blob,
            stream,
            path: format!("/cas/{hash}"),
        })
    }

    fn put(&self, door: &mut HttpClient) -> Result<()> {
        let headers = [("content-encoding", "zstd")];
        let stored = door.request("PUT", &self.path, &headers, &self.stream)?;
        ensure!(stored.status == 200, "{stored:?}");
        Ok(())
    }

    /// Whether the door has the blob: plain, in part, and as its stream.
    fn check(&self, door: &mut HttpClient) -> Result<()> {
        ensure!(door.get(&self.path)?.as_ref() == Some(&self.blob));
        let range = [("range", "bytes=1000000-1000019")];
        let part = door.request("GET", &self.path, &range, b"")?;
        ensure!(part.status == 206 && part.body == self.blob[1_000_000..1_000_020]);
        let takes_zstd = [("accept-encoding", "zstd")];
        let encoded = door.request("GET", &self.path, &takes_zstd, b"")?;
        ensure!(encoded.status == 200 && encoded.body == self.stream);
        Ok(())
    }
}

#[test]
fn a_compressed_blob_outlives_a_crash_and_other_protocols_miss_it() -> Result<()> {
    let mut node = NodeOptions::new().with_http().start()?;
    let sample = Sample::new(1)?;
    sample.put(&mut HttpClient::connect(node.http())?)?;
    let saved = |name| node.metric(name).map(Option::unwrap_or_default);
    let (stored, blobs) = (
        saved("fonn_reapi_packed_bytes_total")?,
        saved("fonn_reapi_packed_blob_bytes_total")?,
    );
    ensure!(blobs == sample.blob.len() as f64, "{blobs}");
    ensure!(stored == (16 + sample.stream.len()) as f64, "{stored}");
    let key = &sample.path[1..];
    ensure!(node.text()?.get(key)?.is_none());
    ensure!(RespClient::connect(node.addr())?.get(key)?.is_none());
    node.kill9()?;
    node.start_again()?;
    sample.check(&mut HttpClient::connect(node.http())?)
}

#[test]
fn a_compressed_blob_is_had_at_every_door_of_a_cluster() -> Result<()> {
    let cluster = Cluster::form_of(3, NodeOptions::new().with_http())?;
    let http = free_address()?;
    let router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let mut doors = vec![HttpClient::connect(http)?];
    for node in &cluster.nodes {
        doors.push(HttpClient::connect(node.http())?);
    }
    let samples: Vec<Sample> = (0..4).map(Sample::new).collect::<Result<_>>()?;
    for (door, sample) in doors.iter_mut().zip(&samples) {
        sample.put(door)?;
    }
    for door in &mut doors {
        for sample in &samples {
            sample.check(door)?;
        }
    }
    let key = &samples[0].path[1..];
    ensure!(TextClient::connect(router.addr())?.get(key)?.is_none());
    Ok(())
}
