//! Transactions through members and routers, and over a slot with several owners.

use anyhow::{Result, ensure};

use fonn_tests::client::RespClient;
use fonn_tests::cluster::Cluster;

/// What a connection answers to each of these requests.
fn answers(client: &mut RespClient, requests: &[&str]) -> Result<Vec<String>> {
    let answer = |request: &&str| Ok(format!("{:?}", client.command(request)?));
    requests.iter().map(answer).collect()
}

#[test]
fn a_transaction_of_one_slot_is_carried_out_by_its_owner() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    let mut addresses: Vec<_> = cluster.nodes.iter().map(|node| node.addr()).collect();
    addresses.push(router.addr());
    let alone = fonn_tests::node::FonnNode::start()?;
    for address in addresses {
        let mut client = RespClient::connect(address)?;
        // Slots of several members.
        for tag in 0..8 {
            let key = format!("{{{tag}}}");
            let requests = [
                "WATCH Ka".to_owned(),
                "MULTI".to_owned(),
                "SET Ka 1".to_owned(),
                "INCR Ka".to_owned(),
                "MGET Ka Kb".to_owned(),
                "RENAME Ka Kb".to_owned(),
                "EXPIREAT Kb 4000000000".to_owned(),
                "EXEC".to_owned(),
                "GET Kb".to_owned(),
                "COPY Kb Kc".to_owned(),
                "RENAMENX Kb Kc".to_owned(),
                "EXPIRETIME Kc".to_owned(),
                "MULTI".to_owned(),
                "DEL Ka Kb Kc".to_owned(),
                "EXEC".to_owned(),
                "EXISTS Ka Kb Kc".to_owned(),
            ];
            let requests: Vec<String> = requests.iter().map(|it| it.replace('K', &key)).collect();
            let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
            // A node alone answers the same.
            let expected = answers(&mut RespClient::connect(alone.addr())?, &requests)?;
            let got = answers(&mut client, &requests)?;
            ensure!(got == expected, "{address}: {got:?}, not {expected:?}");
        }
    }
    Ok(())
}

#[test]
fn keys_of_several_slots_are_refused_as_by_redis_cluster() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    for address in [cluster.nodes[0].addr(), router.addr()] {
        let mut client = RespClient::connect(address)?;
        let told = answers(
            &mut client,
            &[
                "MULTI",
                "SET a 1",
                "SET b 1",
                "EXEC",
                "EXISTS a b",
                "RENAME a b",
            ],
        )?;
        for at in [3, 5] {
            ensure!(told[at].contains("CROSSSLOT"), "{told:?}");
        }
        ensure!(told[4].contains('0'), "nothing was done: {told:?}");
    }
    Ok(())
}

#[test]
fn a_watched_key_is_compared_by_its_owner() -> Result<()> {
    let cluster = Cluster::form_patient(3)?;
    let router = cluster.router()?;
    let mut client = RespClient::connect(router.addr())?;
    let mut other = RespClient::connect(cluster.nodes[0].addr())?;
    for tag in 0..8 {
        let key = format!("{{{tag}}}w");
        client.command(&format!("WATCH {key}"))?;
        other.command(&format!("SET {key} {tag}"))?;
        client.command("MULTI")?;
        client.command(&format!("SET {key} lost"))?;
        let told = format!("{:?}", client.command("EXEC")?);
        ensure!(told.contains("Null"), "{told}");
        let value = client.command(&format!("GET {key}"))?.bulk()?;
        ensure!(value == Some(tag.to_string().into_bytes()), "{value:?}");
    }
    Ok(())
}
