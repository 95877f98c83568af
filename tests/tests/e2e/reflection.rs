//! The admin port for a client that has no .proto files: what reflection lists is there, and can be
//! called.

use anyhow::{Context, Result, ensure};
use fonn_tests::node::FonnNode;
use fonn_tests::reflection::{Reflected, every_listed_method_is_there};

#[test]
fn a_client_lists_the_services_of_a_node_and_calls_them() -> Result<()> {
    let node = FonnNode::start()?;
    let port = Reflected::connect(&node.admin().to_string(), None)?;
    let mut services = every_listed_method_is_there(&port)?;
    services.sort();
    let expected = [
        "fonn.v1.Admin",
        "fonn.v1.Cold",
        "fonn.v1.Membership",
        "fonn.v1.Settings",
        "fonn.v1.Telemetry",
        "fonn.v1.Tools",
        "fonn.v1.Users",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    ensure!(services == expected, "{services:?}");

    let status = port.call("fonn.v1.Admin/Status")?;
    let version = status.get_field_by_name("version").context("no version")?;
    ensure!(version.as_str() == Some(env!("CARGO_PKG_VERSION")));
    let ram = status.get_field_by_name("ram").context("no ram")?;
    let ram = ram.as_message().context("no message")?;
    let budget = ram.get_field_by_name("budget_bytes");
    ensure!(budget.context("no budget")?.as_u64() == Some(256 << 20));
    let refused = port.call("fonn.v1.Membership/Map").unwrap_err();
    let text = refused.to_string();
    ensure!(text.contains("this node is in no cluster"), "{text}");
    Ok(())
}
