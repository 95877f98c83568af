//! What a person is told of a cluster that runs.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::Result;

use super::ports::{Member, Ports, Role};

/// What is told.
pub struct Told<'a> {
    /// All programs with their addresses.
    pub ports: &'a Ports,
    /// Where everything is kept.
    pub dir: &'a str,
    /// URL of the bucket.
    pub bucket: &'a str,
    /// The program to look at the cluster with.
    pub ctl: &'a str,
    /// Whether the data stays.
    pub keep: bool,
}

impl Told<'_> {
    /// Prints where everything is, and how to use it. `pid` knows the process of a program.
    ///
    /// # Errors
    /// If standard output is closed.
    pub fn print(&self, pid: impl Fn(&str) -> Option<u32>) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(self.text(pid).as_bytes())?;
        out.flush()?;
        Ok(())
    }

    fn text(&self, pid: impl Fn(&str) -> Option<u32>) -> String {
        let &Self {
            ports,
            dir,
            bucket,
            ctl,
            keep,
        } = self;
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = text.write_fmt(line);
            text.push('\n');
        };
        line(format_args!(
            "{:<10} {:<16} {:<16} {:<24} pid",
            "", "clients", "members", "admin"
        ));
        for member in ports.members() {
            let cluster = match member.role {
                Role::Router => "-".to_owned(),
                Role::Node => member.cluster_address(),
            };
            let admin = format!("http://{}/", member.admin_address());
            let pid = pid(&member.name).map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            line(format_args!(
                "{:<10} {:<16} {cluster:<16} {admin:<24} {pid}",
                member.name,
                member.client_address(),
            ));
        }
        let urls = |role, scheme: &str| {
            let url = |member: &Member| format!("{scheme}{}", member.client_address());
            ports.of(role).map(url).collect::<Vec<_>>()
        };
        line(format_args!("\nbucket {bucket}\ndata and logs {dir}"));
        if let Some(router) = urls(Role::Router, "").first() {
            let routers = urls(Role::Router, "redis://").join(",");
            line(format_args!(
                "\nsccache through the routers, one of (after sccache --stop-server, with no other one set):\n  \
             export SCCACHE_REDIS_CLUSTER_ENDPOINTS={routers}\n  \
             export SCCACHE_REDIS_ENDPOINT=redis://{router}\n  \
             export SCCACHE_MEMCACHED_ENDPOINT=tcp://{router}"
            ));
        }
        let nodes = urls(Role::Node, "redis://").join(",");
        line(format_args!(
            "sccache straight to the owner of each key:\n  \
         export SCCACHE_REDIS_CLUSTER_ENDPOINTS={nodes}"
        ));
        if let Some(node) = ports.of(Role::Node).next() {
            let admin = node.admin_address();
            line(format_args!("the map: {ctl} --admin {admin} map"));
        }
        let end = match (keep, bucket.contains(dir)) {
            (true, _) => "keeps the data",
            (false, true) => "removes the data",
            (false, false) => "removes the data, but not what is in the bucket",
        };
        line(format_args!("\nCtrl-C stops all and {end}."));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_are_told_and_what_to_export() {
        let kept = "router-1 1 2 0\nrouter-2 3 4 0\nnode-1 5 6 7\nnode-2 8 9 10\n";
        let ports = Ports::of_text(kept).unwrap();
        let told = Told {
            ports: &ports,
            dir: "/d",
            bucket: "file:///d/bucket",
            ctl: "/bin/fonnctl",
            keep: false,
        };
        let text = told.text(|name| (name == "node-2").then_some(77));
        for part in [
            "router-1   127.0.0.1:1      -                http://127.0.0.1:2/      -\n",
            "node-2     127.0.0.1:8      127.0.0.1:10     http://127.0.0.1:9/      77\n",
            "SCCACHE_REDIS_CLUSTER_ENDPOINTS=redis://127.0.0.1:1,redis://127.0.0.1:3\n",
            "SCCACHE_REDIS_CLUSTER_ENDPOINTS=redis://127.0.0.1:5,redis://127.0.0.1:8\n",
            "SCCACHE_REDIS_ENDPOINT=redis://127.0.0.1:1\n",
            "SCCACHE_MEMCACHED_ENDPOINT=tcp://127.0.0.1:1\n",
            "/bin/fonnctl --admin 127.0.0.1:6 map\n",
            "bucket file:///d/bucket\n",
            "removes the data",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let without = Ports::of_text("node-1 5 6 7\n").unwrap();
        let text = |keep| {
            let told = Told {
                ports: &without,
                dir: "/d",
                bucket: "s3://b",
                ctl: "fonnctl",
                keep,
            };
            told.text(|_| None)
        };
        assert!(!text(true).contains("MEMCACHED") && text(true).contains("keeps the data."));
        assert!(text(false).contains("not what is in the bucket"));
    }
}
