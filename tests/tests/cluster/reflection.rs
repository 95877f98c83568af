//! The admin port of a router for a client that has no .proto files: its members answer what
//! reflection lists.

use anyhow::{Context, Result, ensure};
use fonn_tests::cluster::Cluster;
use fonn_tests::reflection::{Reflected, every_listed_method_is_there};

#[test]
fn a_client_lists_the_services_of_a_router_and_calls_them() -> Result<()> {
    let cluster = Cluster::form_patient(2)?;
    let router = cluster.router()?;
    cluster.wait_agreed()?;
    let port = Reflected::connect(&router.admin().to_string(), None)?;
    let services = every_listed_method_is_there(&port)?;
    let has = |name: &str| services.iter().any(|it| it == name);
    ensure!(
        has("fonn.v1.Admin") && has("fonn.v1.Settings"),
        "{services:?}"
    );
    // Those are for members among themselves.
    ensure!(
        !has("fonn.v1.Members") && !has("fonn.v1.Raft"),
        "{services:?}"
    );

    let map = port.call("fonn.v1.Membership/Map")?;
    let members = map.get_field_by_name("members").context("no members")?;
    ensure!(members.as_list().map(<[_]>::len) == Some(2), "{members:?}");
    let status = port.call("fonn.v1.Admin/Status")?;
    ensure!(status.has_field_by_name("ram"), "{status:?}");
    // Of its settings the router tells itself: no member has such a key.
    let config = port.call("fonn.v1.Settings/Config")?;
    let settings = config
        .get_field_by_name("settings")
        .context("no settings")?;
    let keys: Vec<_> = settings.as_list().context("no list")?.iter().collect();
    let is_cluster = |it: &&prost_reflect::Value| {
        let key = it.as_message().and_then(|it| it.get_field_by_name("key"));
        key.is_some_and(|key| key.as_str() == Some("cluster"))
    };
    ensure!(keys.iter().any(is_cluster), "{keys:?}");
    Ok(())
}
