//! Build tools over TLS: at a node, at a node that asks for certificates, and through a router.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use fonn_tests::certificates::Certified;
use fonn_tests::cluster::Cluster;
use fonn_tests::component::program;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::free_address;
use fonn_tests::secured::Secured;

use super::bazel::Workspace;
use super::clients::{Found, HelpedCcache, Moon};
use super::documented::documented;
use super::gocache::Module;

/// What Bazel says of a hit.
const HIT: &str = "1 remote cache hit";

/// The times that a busy machine may take.
const PATIENT: &str = "--deadline 60s --upload-wait 60s";

fn node(certified: &Certified, flags: usize) -> Result<FonnNode> {
    let mut options = NodeOptions::new().in_memory().with_http();
    for (name, value) in certified.flags().into_iter().take(flags) {
        options = options.flag(name, value);
    }
    options.start()
}

/// A node with a certificate.
fn with_certificate(certified: &Certified) -> Result<FonnNode> {
    node(certified, 2)
}

/// A node with a certificate that serves only clients with a certificate.
fn with_authority(certified: &Certified) -> Result<FonnNode> {
    node(certified, 3)
}

/// Bazel over gRPC and TLS.
struct Bazel {
    workspace: Workspace,
    line: String,
}

impl Bazel {
    fn new(bazel: &Path, address: SocketAddr, ca: &str) -> Result<Self> {
        let line = documented("Bazel over gRPC", address)?;
        ensure!(line.contains(" --remote_cache=grpc://"), "{line}");
        let line = line.replace("grpc://", "grpcs://");
        Ok(Self {
            workspace: Workspace::new(bazel)?,
            line: format!("{} --tls_certificate={ca}", line.trim_end()),
        })
    }

    /// Builds twice without local state: the second time is a hit.
    fn expect_hit(&self) -> Result<()> {
        let (text, first) = self.workspace.build(&self.line)?;
        ensure!(!text.contains(HIT), "{text}");
        let (text, second) = self.workspace.build(&self.line)?;
        ensure!(text.contains(HIT) && first == second, "{text}");
        Ok(())
    }
}

/// The lines of ccache with the storage helper, with more attributes.
fn ccache_lines(address: SocketAddr, more: &str) -> Result<String> {
    let line = documented("ccache with the storage helper", address)?;
    let line = line.trim_end().trim_end_matches('\'');
    let (name, url) = line.split_once('=').context("no assignment")?;
    Ok(format!("{name}='{} {more}'", url.trim_start_matches('\'')))
}

#[test]
fn ccache_hits_over_tls_and_builds_where_a_certificate_is_asked_for() -> Result<()> {
    let Some(ccache) = HelpedCcache::installed()? else {
        return Ok(());
    };
    let certified = Certified::new()?;
    let attribute = format!("@ca={}", certified.file("ca"));
    let node = with_certificate(&certified)?;
    let lines = ccache_lines(node.http(), &attribute)?;
    let first = ccache.build_with(&lines)?;
    first.expect(Found::Nothing, "an empty node")?;
    let again = ccache.build_with(&lines)?;
    again.expect_output_of(&first, "over TLS")?;
    // Its helper has no certificate to show.
    let node = with_authority(&certified)?;
    let lines = ccache_lines(node.http(), &attribute)?;
    for _ in 0..2 {
        let built = ccache.build_with(&lines)?;
        built.expect(Found::Nothing, "without a certificate")?;
    }
    Ok(())
}

#[test]
fn bazel_hits_over_grpc_and_tls() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let certified = Certified::new()?;
    let node = with_certificate(&certified)?;
    let bazel = Bazel::new(&bazel, node.http(), &certified.file("ca"))?;
    bazel.expect_hit()
}

/// The lines of moon over gRPC, with these variables besides.
fn moon_lines(address: SocketAddr, more: &[(&str, String)]) -> Result<String> {
    let line = documented("moon over gRPC", address)?;
    ensure!(line.contains("=grpc://"), "{line}");
    let more = more
        .iter()
        .map(|(name, value)| format!("export {name}='{value}'"));
    let lines = [line.replace("grpc://", "grpcs://")];
    Ok(lines.into_iter().chain(more).collect::<Vec<_>>().join("\n"))
}

/// Neither version of Bazel that is installed can show a certificate over gRPC.
#[test]
fn moon_hits_over_grpc_with_a_certificate_of_its_own() -> Result<()> {
    let Some(moon) = Moon::over_grpc()? else {
        return Ok(());
    };
    let certified = Certified::new()?;
    let node = with_authority(&certified)?;
    let shown = [
        ("MOON_REMOTE_MTLS_CA_CERT", certified.file("ca")),
        ("MOON_REMOTE_MTLS_CLIENT_CERT", certified.file("cert")),
        ("MOON_REMOTE_MTLS_CLIENT_KEY", certified.file("key")),
    ];
    let lines = moon_lines(node.http(), &shown)?;
    let first = moon.build_with(&lines)?;
    first.expect(Found::Nothing, "an empty node")?;
    let again = moon.build_with(&lines)?;
    again.expect_output_of(&first, "with a certificate")?;
    // It builds without a cache where it shows none.
    let known = [("MOON_REMOTE_TLS_CERT", certified.file("ca"))];
    let refused = moon.build_with(&moon_lines(node.http(), &known)?)?;
    refused.expect(Found::Nothing, "without a certificate")
}

#[test]
fn go_hits_with_a_certificate_of_its_own() -> Result<()> {
    let Some(module) = Module::new()? else {
        return Ok(());
    };
    let certified = Certified::new()?;
    let node = with_authority(&certified)?;
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| certified.file(name));
    let flags = format!("--server https://{} {PATIENT} --tls-ca {ca}", node.http());
    let shown = format!("{flags} --tls-cert {cert} --tls-key {key}");
    module.build(&shown, &[])?.expect_no_hits()?;
    module.build(&shown, &[])?.expect_hits()?;
    let refused = module.build(&flags, &[])?;
    ensure!(
        refused.hits == 0 && refused.sent == 0 && refused.failures > 0,
        "{refused:?}"
    );
    Ok(())
}

#[test]
fn build_tools_log_in_over_tls_through_a_router() -> Result<()> {
    let secured = Secured::start()?;
    let (http, ca) = (free_address()?, secured.ca());
    let _router = secured.router_with_http(http)?;
    if let Some(ccache) = HelpedCcache::installed()? {
        let more = format!("@ca={ca} @bearer-token=ci:correct-horse");
        let lines = ccache_lines(http, &more)?;
        let first = ccache.build_with(&lines)?;
        first.expect(Found::Nothing, "an empty cluster")?;
        let again = ccache.build_with(&lines)?;
        again.expect_output_of(&first, "through a router")?;
    }
    if let Some(module) = Module::new()? {
        let login = "--token ci:correct-horse";
        let flags = format!("--server https://{http} {PATIENT} --tls-ca {ca} {login}");
        module.build(&flags, &[])?.expect_no_hits()?;
        module.build(&flags, &[])?.expect_hits()?;
    }
    Ok(())
}

#[test]
fn bazel_hits_over_grpc_and_tls_through_a_router() -> Result<()> {
    let Some(bazel) = program("bazel")? else {
        return Ok(());
    };
    let (certified, http) = (Certified::new()?, free_address()?);
    let cluster = Cluster::form_patient(3)?;
    let [cert, key, _] = certified.flags();
    let _router = cluster.router_with(vec![("--http-listen", http.to_string()), cert, key])?;
    let bazel = Bazel::new(&bazel, http, &certified.file("ca"))?;
    bazel.expect_hit()
}
