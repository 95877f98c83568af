//! The Remote Execution API beside bazel-remote: the calls that a build tool makes most.

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use fonn_reapi::messages::{
    BatchReadBlobsRequest, BatchReadBlobsResponse, Digest, FindMissingBlobsRequest,
    FindMissingBlobsResponse,
};
use fonn_reapi::{Deflater, DigestFunction, Hasher, Inflater, Method};

use super::beside::{BesideOptions, Server, TABLE, filling_len, measure, over};
use crate::client::RemoteClient;
use crate::values::{Content, ValuePool};

/// Digests of a FindMissingBlobs, and calls of a measurement.
const ASKED: u64 = 1000;
const ASKED_CALLS: u64 = 400;

/// Blobs of a BatchReadBlobs, their length, and calls of a measurement.
const BATCH: u64 = 100;
const BATCH_LEN: usize = 16 << 10;
const BATCH_CALLS: u64 = 400;

/// Length of streams, how many a server has for reads, and calls of a measurement.
const STREAMS: [(&str, usize, u64, u64); 2] =
    [("1 MiB", 1 << 20, 64, 600), ("64 MiB", 64 << 20, 2, 48)];

/// Length of blobs that come and go compressed, how many a server has for reads, and calls of a
/// measurement.
const PACKED: (usize, u64, u64) = (1 << 20, 64, 600);

/// Connections that make calls at the same time.
const CONNECTIONS: usize = 4;

/// Blobs that were never made before.
struct Blobs {
    pool: ValuePool,
    made: u64,
}

impl Blobs {
    fn make(&mut self, count: u64, len: usize) -> Vec<(Digest, Bytes)> {
        let numbers = self.made..self.made + count;
        self.made += count;
        let blob = |number| {
            let bytes = Bytes::from(self.pool.value(number, len).to_vec());
            let hash = Hasher::new(DigestFunction::Sha256);
            (hash.digest(&bytes).message(), bytes)
        };
        numbers.map(blob).collect()
    }
}

/// Writes blobs over some connections.
fn write(server: &Server, blobs: &[(Digest, Bytes)]) -> Result<u64> {
    over(CONNECTIONS, |index| {
        let client = RemoteClient::connect(server.grpc())?;
        for (number, (digest, bytes)) in blobs.iter().enumerate().skip(index).step_by(CONNECTIONS) {
            let Digest { hash, size_bytes } = digest;
            let resource = format!("uploads/{number:032x}/blobs/{hash}/{size_bytes}");
            client.write(&resource, bytes)?;
        }
        Ok(())
    })?;
    Ok(blobs.len() as u64)
}

/// Reads blobs, `count` times one, and compares them.
fn read(server: &Server, blobs: &[(Digest, Bytes)], count: u64) -> Result<u64> {
    calls(server, count, |client, number| {
        let (digest, bytes) = &blobs[number as usize % blobs.len()];
        let got = client.read(&format!("blobs/{}/{}", digest.hash, digest.size_bytes))?;
        ensure!(got == *bytes, "another blob");
        Ok(())
    })
}

/// Blobs, each with its stream of zstd.
fn packed(blobs: &[(Digest, Bytes)]) -> Result<Vec<(Digest, Bytes)>> {
    let pack = |(digest, bytes): &(Digest, Bytes)| {
        let (mut deflater, mut stream) = (Deflater::new()?, Vec::new());
        deflater.step(bytes, &mut stream)?;
        deflater.finish(&mut stream)?;
        Ok((digest.clone(), Bytes::from(stream)))
    };
    blobs.iter().map(pack).collect()
}

/// Writes streams of zstd over some connections.
fn write_packed(server: &Server, streams: &[(Digest, Bytes)]) -> Result<u64> {
    calls(server, streams.len() as u64, |client, number| {
        let (digest, stream) = &streams[number as usize];
        let Digest { hash, size_bytes } = digest;
        let kind = "compressed-blobs/zstd";
        client.write(
            &format!("uploads/{number:032x}/{kind}/{hash}/{size_bytes}"),
            stream,
        )
    })
}

/// Reads blobs as streams of zstd, `count` times one, and compares what they make.
fn read_packed(server: &Server, blobs: &[(Digest, Bytes)], count: u64) -> Result<u64> {
    calls(server, count, |client, number| {
        let (digest, bytes) = &blobs[number as usize % blobs.len()];
        let Digest { hash, size_bytes } = digest;
        let stream = client.read(&format!("compressed-blobs/zstd/{hash}/{size_bytes}"))?;
        let (mut inflater, mut rest) = (Inflater::new(bytes.len() as u64)?, &stream[..]);
        let mut at = 0;
        loop {
            let part = inflater.step(&mut rest)?;
            ensure!(bytes[at..].starts_with(part), "another blob");
            if part.is_empty() && rest.is_empty() {
                break;
            }
            at += part.len();
        }
        ensure!(at == bytes.len(), "a part of the blob");
        Ok(())
    })
}

/// Makes so many calls over some connections.
fn calls(
    server: &Server,
    count: u64,
    call: impl Fn(&RemoteClient, u64) -> Result<()> + Sync,
) -> Result<u64> {
    over(CONNECTIONS, |index| {
        let client = RemoteClient::connect(server.grpc())?;
        let mine = (index as u64..count).step_by(CONNECTIONS);
        mine.into_iter()
            .try_for_each(|number| call(&client, number))
    })?;
    Ok(count)
}

/// Measures the servers in turn; returns a table in Markdown.
///
/// # Errors
/// When a server does not start, refuses something or returns a wrong byte.
pub fn compare_remote(options: &BesideOptions) -> Result<String> {
    let mut table = String::from(TABLE);
    let mut blobs = Blobs {
        pool: ValuePool::new(Content::Random, 64 << 20),
        made: 0,
    };
    let cell = "FindMissingBlobs of 1,000 digests, all there";
    if options.wants(cell) {
        let there = blobs.make(ASKED, 1 << 10);
        let request = FindMissingBlobsRequest {
            blob_digests: there.iter().map(|(digest, _)| digest.clone()).collect(),
            ..FindMissingBlobsRequest::default()
        };
        let servers = Server::all(options, 1 << 10)?;
        for server in &servers {
            write(server, &there)?;
        }
        measure(
            &mut table,
            cell,
            (&servers, options.rounds),
            || (),
            |server, ()| {
                calls(server, ASKED_CALLS, |client, _| {
                    let answer = client.ask(Method::FindMissingBlobs, &request)?;
                    let answer: FindMissingBlobsResponse = answer;
                    ensure!(answer.missing_blob_digests.is_empty(), "a blob is missing");
                    Ok(())
                })
            },
        )?;
    }
    let cell = "BatchReadBlobs of 100 blobs of 16 KiB";
    if options.wants(cell) {
        let there = blobs.make(BATCH, BATCH_LEN);
        let request = BatchReadBlobsRequest {
            digests: there.iter().map(|(digest, _)| digest.clone()).collect(),
            ..BatchReadBlobsRequest::default()
        };
        let servers = Server::all(options, BATCH_LEN)?;
        for server in &servers {
            write(server, &there)?;
        }
        measure(
            &mut table,
            cell,
            (&servers, options.rounds),
            || (),
            |server, ()| {
                calls(server, BATCH_CALLS, |client, _| {
                    let answer = client.ask(Method::BatchReadBlobs, &request)?;
                    let answer: BatchReadBlobsResponse = answer;
                    for (response, (_, bytes)) in answer.responses.iter().zip(&there) {
                        ensure!(response.data == bytes, "another blob");
                    }
                    ensure!(answer.responses.len() == there.len(), "blobs are missing");
                    Ok(())
                })
            },
        )?;
    }
    for (name, len, keys, count) in STREAMS {
        let cell = format!("ByteStream.Read of {name}");
        if options.wants(&cell) {
            let (servers, there) = (Server::all(options, len)?, blobs.make(keys, len));
            for server in &servers {
                write(server, &there)?;
            }
            measure(
                &mut table,
                &cell,
                (&servers, options.rounds),
                || (),
                |server, ()| read(server, &there, count),
            )?;
        }
        let cell = format!("ByteStream.Write of {name}");
        if options.wants(&cell) {
            let servers = Server::all(options, len)?;
            for server in &servers {
                write(server, &blobs.make((filling_len(len) / len) as u64, len))?;
            }
            let fresh = || blobs.make(count / 2, len);
            measure(
                &mut table,
                &cell,
                (&servers, options.rounds),
                fresh,
                |server, fresh| write(server, fresh),
            )?;
        }
    }
    let (len, keys, count) = PACKED;
    let mut texts = Blobs {
        pool: ValuePool::new(Content::Text, 64 << 20),
        made: 0,
    };
    let cell = "ByteStream.Read of 1 MiB, as zstd";
    if options.wants(cell) {
        let (servers, there) = (Server::all(options, len)?, texts.make(keys, len));
        for server in &servers {
            write_packed(server, &packed(&there)?)?;
        }
        measure(
            &mut table,
            cell,
            (&servers, options.rounds),
            || (),
            |server, ()| read_packed(server, &there, count),
        )?;
    }
    let cell = "ByteStream.Write of 1 MiB, as zstd";
    if options.wants(cell) {
        let servers = Server::all(options, len)?;
        measure(
            &mut table,
            cell,
            (&servers, options.rounds),
            || packed(&texts.make(count / 2, len)),
            |server, streams| match streams {
                Ok(streams) => write_packed(server, streams),
                Err(error) => bail!("{error}"),
            },
        )?;
    }
    Ok(table)
}
