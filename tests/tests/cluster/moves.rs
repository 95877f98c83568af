//! Slots move between members while clients write.

use anyhow::{Result, ensure};

use fonn_tests::client::Dialect;
use fonn_tests::cluster::Cluster;
use fonn_tests::traffic::Load;

/// Enough for writes to be under way at each change of the owners.
const CLIENTS: u64 = 12;

#[test]
fn no_set_and_no_delete_is_refused_while_slots_move() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    cluster.ctl(0, &["replicas", "2"])?;
    cluster.wait_agreed()?;
    // As patient as the members.
    let router = cluster.router_with(vec![("--timeout", "30s".to_owned())])?;
    let mut client = Dialect::Text.connect(router.addr())?;
    let load = Load::over(50, client.as_mut())?;
    let doors: Vec<_> = cluster
        .doors()
        .chain([router.addr(), router.addr()])
        .collect();
    load.beside(CLIENTS, &doors, || {
        for weight in ["10", "100", "10", "100", "10", "100"] {
            cluster.ctl(1, &["weight", "b", weight])?;
            cluster.wait_agreed()?;
            load.go_on(200)?;
        }
        Ok(())
    })?;
    let refused = load.refused.into_inner();
    let [again, not] = ["repeated", "not_replicated"].map(|event| cluster.shared(event));
    println!(
        "{} writes were executed again, of {} interrupted ones",
        again?, not?
    );
    ensure!(refused == 0, "{refused} writes were refused");
    Ok(())
}
