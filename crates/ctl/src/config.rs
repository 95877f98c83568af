//! `fonnctl config`.

use fonn_proto::grpc::v1::{ConfigRequest, ConfigResponse, Setting, SettingOrigin};

use super::Verdict;
use super::connection::Connection;
use super::error::CtlError;
use super::output::{Of, Output};
use super::table::{Table, printable};
use super::words::relative;

pub(super) async fn run(node: &Connection, output: &Output) -> Result<Verdict, CtlError> {
    let everybody = node.everybody().await?;
    let own = get(node).await?;
    let Some(everybody) = everybody else {
        output.show(&own, render)?;
        return Ok(Verdict::Good);
    };
    output.show(&own, |own| format!("router\n{}", render(own)))?;
    for (name, member) in &everybody.members {
        let settings = Of::new(Some(name), get(member).await?);
        output.show(&settings, |it| it.headed(render))?;
    }
    Ok(Verdict::Good)
}

async fn get(node: &Connection) -> Result<ConfigResponse, CtlError> {
    node.call(node.settings().config(ConfigRequest {})).await
}

fn render(config: &ConfigResponse) -> String {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM", "RELOAD", "NOTE"]);
    for it in &config.settings {
        table.row(row(it, config.now_ms));
    }
    let file = match config.file.as_str() {
        "" => "there is no configuration file\n".to_owned(),
        file => format!("the configuration file is {}\n", printable(file)),
    };
    table.render() + &file
}

fn row(it: &Setting, now_ms: u64) -> [String; 5] {
    let mut notes = Vec::new();
    if it.changed_at_ms != 0 {
        notes.push(format!("changed {}", relative(it.changed_at_ms, now_ms)));
    }
    if let Some(value) = &it.after_restart {
        notes.push(format!("{value} after a restart"));
    }
    let origin = SettingOrigin::try_from(it.origin);
    [
        it.key.clone(),
        it.value.clone(),
        origin.map_or_else(|_| it.origin.to_string(), SettingOrigin::name),
        if it.can_reload { "yes" } else { "" }.to_owned(),
        notes.join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_told_with_their_origin_and_what_is_to_come() {
        let config = ConfigResponse {
            settings: vec![
                Setting {
                    key: "ram_budget".to_owned(),
                    value: "4g".to_owned(),
                    origin: SettingOrigin::Flag.into(),
                    can_reload: true,
                    ..Setting::default()
                },
                Setting {
                    key: "lru".to_owned(),
                    value: "approximate".to_owned(),
                    origin: SettingOrigin::Default.into(),
                    after_restart: Some("strict".to_owned()),
                    ..Setting::default()
                },
                Setting {
                    key: "codec".to_owned(),
                    value: "ram=lz4".to_owned(),
                    origin: SettingOrigin::Admin.into(),
                    can_reload: true,
                    changed_at_ms: 1_000_000,
                    after_restart: None,
                },
            ],
            file: "/etc/fonn/node.toml".to_owned(),
            now_ms: 1_300_000,
        };
        assert_eq!(
            render(&config),
            "\
SETTING     VALUE        FROM     RELOAD  NOTE
ram_budget  4g           flag     yes
lru         approximate  default          strict after a restart
codec       ram=lz4      admin    yes     changed 5 min ago
the configuration file is /etc/fonn/node.toml
"
        );
        let json = serde_json::to_value(&config).unwrap();
        assert_eq!(json["settings"][0]["origin"], "flag");
        assert_eq!(json["settings"][1]["after_restart"], "strict");
    }
}
