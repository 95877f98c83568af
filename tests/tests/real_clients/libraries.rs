//! Client libraries of each family, driven by `scripts/clients.py`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use fonn_tests::cluster::Cluster;
use fonn_tests::component::{present, program};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::process::run;

#[test]
fn a_python_client_of_each_family_passes_the_shared_scenario() -> Result<()> {
    let Some(python) = program("python3")? else {
        return Ok(());
    };
    let probe = run(Command::new(&python).args(["-c", "import bmemcached, pymemcache, redis"]));
    let modules = "pymemcache, python-binary-memcached and redis for Python";
    if present(modules, probe.ok())?.is_none() {
        return Ok(());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/clients.py");
    let nodes = [FonnNode::start()?, NodeOptions::new().in_memory().start()?];
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    let addresses = nodes.iter().map(FonnNode::addr);
    for addr in addresses.chain([router.addr()]) {
        let mut command = Command::new(&python);
        command
            .arg(&script)
            .arg(addr.ip().to_string())
            .arg(addr.port().to_string());
        let text = run(&mut command)?;
        assert!(text.contains("each reads what the others wrote"), "{text}");
    }
    Ok(())
}
