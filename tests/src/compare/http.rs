//! The HTTP port beside bazel-remote: blobs of the content-addressed store, which both verify.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ring::digest::{SHA256, digest};

use super::beside::{BesideOptions, Server, TABLE, filling_len, measure, over};
use super::plot::{Chart, Series};
use crate::client::HttpClient;
use crate::values::{Content, ValuePool};

/// Length of values, how many a server has for gets, and operations of a measurement at least.
const SIZES: [(&str, usize, u64, u64); 3] = [
    ("4 KiB", 4 << 10, 2000, 24_000),
    ("64 KiB", 64 << 10, 500, 6000),
    ("1 MiB", 1 << 20, 64, 600),
];

const CONNECTIONS: [usize; 2] = [1, 16];

/// A path and the blob there.
type Blob = (String, Vec<u8>);

/// Blobs that were never made before.
struct Blobs {
    pool: ValuePool,
    made: u64,
}

impl Blobs {
    fn make(&mut self, count: u64, len: usize) -> Vec<Blob> {
        let numbers = self.made..self.made + count;
        self.made += count;
        numbers.map(|number| self.blob(number, len)).collect()
    }

    fn blob(&self, number: u64, len: usize) -> Blob {
        let value = self.pool.value(number, len).to_vec();
        let hash = digest(&SHA256, &value);
        let mut path = String::from("/cas/");
        for byte in hash.as_ref() {
            let _ = write!(path, "{byte:02x}");
        }
        (path, value)
    }
}

/// Puts blobs over so many connections.
fn put(address: SocketAddr, connections: usize, blobs: &[Blob]) -> Result<u64> {
    over(connections, |index| {
        let mut client = HttpClient::connect(address)?;
        for (path, value) in blobs.iter().skip(index).step_by(connections) {
            let status = client.put(path, value)?;
            ensure!(matches!(status, 200..=204), "PUT {path}: {status}");
        }
        Ok(())
    })?;
    Ok(blobs.len() as u64)
}

/// Gets `count` blobs over so many connections, and compares each with what was put.
fn get(address: SocketAddr, connections: usize, blobs: &[Blob], count: u64) -> Result<u64> {
    over(connections, |index| {
        let mut client = HttpClient::connect(address)?;
        for (number, (path, value)) in (0..count).zip(blobs.iter().cycle()) {
            if number % connections as u64 == index as u64 {
                let got = client.get(path)?;
                ensure!(got.as_ref() == Some(value), "GET {path}: another value");
            }
        }
        Ok(())
    })?;
    Ok(count)
}

/// Measures the servers in turn; returns a table in Markdown, and plots it as `http.svg`.
///
/// # Errors
/// When a server does not start, refuses something or returns a wrong byte.
pub fn compare_http(options: &BesideOptions) -> Result<String> {
    let mut table = String::from(TABLE);
    let mut chart = Chart::new(
        "GET and PUT over HTTP beside the cheaper mode of bazel-remote, per server processor second",
        "length of the value, log2 of KiB",
        "fonn / bazel-remote",
    );
    let mut blobs = Blobs {
        pool: ValuePool::new(Content::Random, 1 << 20),
        made: 0,
    };
    for method in ["GET", "PUT"] {
        for connections in CONNECTIONS {
            let over = match connections {
                1 => "1 connection".to_owned(),
                count => format!("{count} connections"),
            };
            let mut series = Series {
                name: format!("{method}, {over}"),
                points: Vec::new(),
            };
            for (name, len, keys, count) in SIZES {
                let cell = format!("{method} {name}, {over}");
                if !options.wants(&cell) {
                    continue;
                }
                let servers = Server::all(options, len)?;
                let all = (&servers, options.rounds);
                let ratio = match method {
                    "GET" => {
                        let there = blobs.make(keys, len);
                        for server in &servers {
                            put(server.http(), 4, &there)?;
                            get(server.http(), connections, &there, keys)?;
                        }
                        measure(
                            &mut table,
                            &cell,
                            all,
                            || (),
                            |server, ()| get(server.http(), connections, &there, count),
                        )?
                    }
                    _ => {
                        let first = blobs.make((filling_len(len) / len) as u64, len);
                        for server in &servers {
                            put(server.http(), 4, &first)?;
                        }
                        // A blob that a server has is not put again.
                        let fresh = || blobs.make(count / 2, len);
                        measure(&mut table, &cell, all, fresh, |server, fresh| {
                            put(server.http(), connections, fresh)
                        })?
                    }
                };
                let kib = (len >> 10).max(1) as f64;
                series.points.push((kib.log2(), ratio));
            }
            chart.series.push(series);
        }
    }
    if options.only.is_none() {
        fs::create_dir_all(&options.out_dir)?;
        let file = options.out_dir.join("http.svg");
        fs::write(&file, chart.to_svg()).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(table)
}
