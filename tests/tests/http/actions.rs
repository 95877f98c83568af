//! The cache of GitHub Actions, by its own client.

use anyhow::{Result, ensure};

use fonn_tests::node::NodeOptions;

use super::clients::ActionsCache;
use super::documented::Endpoint;
use super::tokens::Tokens;

#[test]
fn a_pull_request_restores_what_the_main_branch_saved_and_never_the_other_way() -> Result<()> {
    let Some(job) = ActionsCache::new()? else {
        return Ok(());
    };
    let namespaces = "[[namespace]]\nname = 'pull'\nbase = 'main'\n";
    // Archives are longer than values.
    let options = NodeOptions::new()
        .in_memory()
        .with_http()
        .flag("--max-value", "256k");
    let (tokens, [main, pull]) = Tokens::start_as(options, namespaces, |entry| {
        Ok([
            entry.token("main", "read-write", "main")?,
            entry.token("pull", "read-write", "pull")?,
        ])
    })?;
    let at = |token: &str| Endpoint::with_token(tokens.node.http(), token);
    let (main, pull) = (at(&main), at(&pull));
    let saved = |at: &Endpoint, key: &str| -> Result<Vec<u8>> {
        let made = job.restore(at, 500_000, &[key])?;
        ensure!(made.key.is_none() && made.file.len() == 1_000_000);
        Ok(made.file)
    };
    let first = saved(&main, "deps-1")?;
    let second = saved(&main, "deps-2")?;
    let restore = |at: &Endpoint, keys: &[&str]| job.restore(at, 0, keys);
    restore(&main, &["deps-1"])?.expect("deps-1", &first)?;
    restore(&main, &["deps-3", "deps-"])?.expect("deps-2", &second)?;
    restore(&pull, &["deps-3", "none-", "deps-"])?.expect("deps-2", &second)?;
    let third = saved(&pull, "deps-3")?;
    restore(&pull, &["deps-4", "deps-"])?.expect("deps-3", &third)?;
    // The own entries come first, then those of the base.
    restore(&pull, &["deps-1"])?.expect("deps-1", &first)?;
    restore(&main, &["deps-4", "deps-"])?.expect("deps-2", &second)?;
    ensure!(restore(&main, &["deps-3"])?.key.is_none());
    Ok(())
}

#[test]
fn archives_of_a_namespace_that_keeps_first_values_are_restored_by_prefix() -> Result<()> {
    let Some(job) = ActionsCache::new()? else {
        return Ok(());
    };
    let namespace = "[[namespace]]\nname = 'kept'\nwrite_once = true\n";
    let (tokens, token) =
        Tokens::start(namespace, |entry| entry.token("main", "read-write", "kept"))?;
    let main = Endpoint::with_token(tokens.node.http(), &token);
    let mut archives = Vec::new();
    for key in ["deps-1", "deps-2", "deps-3"] {
        let made = job.restore(&main, 1000, &[key])?;
        ensure!(made.key.is_none(), "{key}: {:?}", made.key);
        archives.push(made.file);
    }
    job.restore(&main, 0, &["deps-4", "deps-"])?
        .expect("deps-3", &archives[2])?;
    job.restore(&main, 0, &["deps-1"])?
        .expect("deps-1", &archives[0])
}
