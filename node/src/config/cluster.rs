//! The settings of a member of a cluster.

use std::str::FromStr;

use fonn_base::config::ConfigError;
use fonn_base::duration::Span;
use fonn_program::{CommonConfig, HostPort, OrNone};
use fonn_proto::cluster::is_loopback;
use fonn_proto::member::is_reachable;
use fonn_server::ListenAddr;

use super::Settings;
use fonn_membership::Start;
use fonn_membership::member::is_name;
use fonn_membership::state::DOWN_AFTER_MS;

/// In the place of what is not given.
const NONE: &str = "none";
/// What a name of a node or zone may be.
const NAME: &str = "1 to 64 letters, digits, dots, underscores or hyphens";
/// What an address that others use may be.
const ADDRESS: &str = "HOST:PORT that other machines can reach, as in 10.0.0.7:11290";

/// How the node takes part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Name of the node.
    pub node_id: String,
    /// Where it listens for other members and routers: HOST:PORT.
    pub listen: String,
    /// Host and port at which others reach that; None: what it listens on.
    pub advertise: Option<String>,
    /// Host and port at which others reach the first address for clients; None: what it listens on.
    pub advertise_client: Option<String>,
    /// How it comes in.
    pub start: Start,
    /// Failure zone.
    pub zone: String,
    /// Share of the slots relative to others.
    pub weight: u16,
    /// Silence after which a member is down, if this one forms the cluster.
    pub down_after: Span,
}

/// The settings of the cluster with defaults; None if the node is to be alone.
pub(super) fn resolve(
    settings: &Settings,
    common: &CommonConfig,
    has_disk: bool,
) -> Result<Option<ClusterConfig>, ConfigError> {
    let down_after = settings.down_after.unwrap_or(Span::from_millis(1500));
    let millis = u32::try_from(down_after.get().as_millis());
    if !millis.is_ok_and(|millis| DOWN_AFTER_MS.contains(&millis)) {
        return Err(ConfigError::invalid(
            "--down-after",
            down_after.to_string(),
            "1s to 1m",
        ));
    }
    let listen_clients = &common.listen;
    let bootstrap = settings.bootstrap.unwrap_or(false);
    let node_id = settings.node_id.clone().filter(|id| id != NONE);
    let address = |given: &OrNone<MemberAddr>| Some(given.0.clone()?.0);
    let advertise = settings.advertise.as_ref().and_then(address);
    let advertise_client = settings.advertise_client.as_ref().and_then(address);
    let join: Vec<String> = settings.join.iter().filter_map(address).collect();
    let listen = settings.cluster_listen.clone().and_then(|it| it.0);
    let Some(HostPort(listen)) = listen else {
        let given = [
            ("--node-id", node_id),
            ("--advertise", advertise),
            ("--advertise-client", advertise_client),
            ("--join", (!join.is_empty()).then(|| join.join(","))),
            ("--bootstrap", bootstrap.then(|| "true".to_owned())),
        ];
        let mut given = given
            .into_iter()
            .filter_map(|(flag, value)| Some((flag, value?)));
        return match given.next() {
            Some((flag, value)) => Err(ConfigError::invalid(
                flag,
                value,
                "--cluster-listen HOST:PORT besides, since it concerns the members of a cluster",
            )),
            None => Ok(None),
        };
    };
    let wrong = |expected: &str| Err(ConfigError::invalid("--cluster-listen", &listen, expected));
    let Some(node_id) = node_id else {
        return wrong("--node-id NAME besides, by which the cluster knows this node");
    };
    if !is_name(&node_id) {
        return Err(ConfigError::invalid("--node-id", node_id, NAME));
    }
    let zone = settings.zone.clone().unwrap_or("default".to_owned());
    if !is_name(&zone) {
        return Err(ConfigError::invalid("--zone", zone, NAME));
    }
    if !has_disk {
        return wrong("a --data-dir besides, where a member keeps what it agreed to");
    }
    let is_socket = |addr: &ListenAddr| matches!(addr, ListenAddr::Unix(_));
    if listen_clients.iter().all(is_socket) {
        return wrong(
            "a --listen HOST:PORT besides, at which routers and other members reach the node",
        );
    }
    let start = match (bootstrap, join.is_empty()) {
        (true, true) => Start::Bootstrap,
        (false, _) => Start::Join(join),
        (true, false) => {
            let value = join.join(",");
            let expected =
                "no --bootstrap besides: the first node of a cluster forms it, the others join";
            return Err(ConfigError::invalid("--join", value, expected));
        }
    };
    let is_private = ListenAddr::Tcp(listen.clone()).is_loopback();
    if !is_private && !common.security.proves_members() && !common.insecure {
        return wrong(
            "a loopback address, since what can reach another one may become a member; \
             --tls-client-ca FILE protects it, --insecure allows it",
        );
    }
    if advertise.is_none() && !is_reachable(&listen) && !listen.ends_with(":0") {
        return wrong("--advertise HOST:PORT besides, since others cannot reach a node at this");
    }
    // They would look for this node's entries at themselves.
    if advertise_client.is_none()
        && !is_loopback(advertise.as_ref().unwrap_or(&listen))
        && listen_clients.iter().all(ListenAddr::is_loopback)
        && let Some(first) = listen_clients.first()
    {
        return Err(ConfigError::invalid(
            "--listen",
            first,
            "an address besides at which members and routers on other machines reach this node, \
             or --advertise-client HOST:PORT",
        ));
    }
    Ok(Some(ClusterConfig {
        node_id,
        listen,
        advertise,
        advertise_client,
        start,
        zone,
        weight: settings.weight.unwrap_or(100),
        down_after,
    }))
}

impl ClusterConfig {
    /// For the banner.
    #[must_use]
    pub fn describe(&self) -> String {
        let start = match &self.start {
            Start::Bootstrap => "forms a cluster unless it is in one".to_owned(),
            Start::Join(addresses) if addresses.is_empty() => {
                "goes on in the cluster of its disk".to_owned()
            }
            Start::Join(addresses) => format!("joins at {}", addresses.join(", ")),
        };
        format!(
            "{} on {}, zone {}, weight {}, {start}",
            self.node_id, self.listen, self.zone, self.weight
        )
    }

    /// Names and values for `stats settings` and `CONFIG GET`.
    pub(super) fn pairs(&self) -> Vec<(String, String)> {
        let (bootstrap, join) = match &self.start {
            Start::Bootstrap => (true, String::new()),
            Start::Join(addresses) => (false, addresses.join(",")),
        };
        [
            ("node_id", self.node_id.clone()),
            ("cluster_listen", self.listen.clone()),
            ("advertise", self.advertise.clone().unwrap_or_default()),
            (
                "advertise_client",
                self.advertise_client.clone().unwrap_or_default(),
            ),
            ("join", join),
            ("bootstrap", bootstrap.to_string()),
            ("zone", self.zone.clone()),
            ("weight", self.weight.to_string()),
            ("down_after", self.down_after.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Where clients reach the node: what is advertised for them, else the first of its listeners
    /// `names` (HOST:PORT as they were bound) that is not for this machine alone, or the first one
    /// if all are; with the host that is advertised, where it listens on all addresses.
    #[must_use]
    pub fn client_address(&self, names: &[String]) -> String {
        if let Some(advertised) = &self.advertise_client {
            return advertised.clone();
        }
        let tcp = || names.iter().filter(|name| !name.starts_with("unix:"));
        let others = tcp().find(|name| !is_loopback(name));
        let tcp = others.or_else(|| tcp().next()).map_or("", String::as_str);
        if is_reachable(tcp) {
            return tcp.to_owned();
        }
        let host = |text: &str| text.rsplit_once(':').map(|(host, _)| host.to_owned());
        let port = tcp.rsplit_once(':').map_or("", |(_, port)| port);
        let advertised = self.advertise.as_deref().and_then(host);
        let host = advertised.or_else(|| host(&self.listen));
        format!("{}:{port}", host.unwrap_or_default())
    }
}

/// An address at which others are reached: HOST:PORT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddr(pub String);

impl FromStr for MemberAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match is_reachable(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("expected {ADDRESS}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_program::CommonSettings;

    use super::*;
    use crate::config::{Config, resolve as resolve_all};

    fn member() -> Settings {
        Settings {
            data_dir: Some("/nowhere".into()),
            node_id: Some("a".to_owned()),
            cluster_listen: Some("127.0.0.1:11290".parse().unwrap()),
            bootstrap: Some(true),
            ..Settings::default()
        }
    }

    fn resolved(settings: Settings) -> Result<Config, String> {
        resolve_all(settings).map_err(|error| error.to_string())
    }

    #[test]
    fn a_member_has_the_documented_defaults_and_none_is_made_without_its_flags() {
        assert_eq!(resolved(Settings::default()).unwrap().cluster, None);
        let cluster = resolved(member()).unwrap().cluster.unwrap();
        assert_eq!((cluster.zone.as_str(), cluster.weight), ("default", 100));
        assert_eq!(cluster.start, Start::Bootstrap);
        let joining = Settings {
            bootstrap: None,
            join: vec![
                "10.0.0.1:11290".parse().unwrap(),
                "b:11290".parse().unwrap(),
            ],
            ..member()
        };
        let cluster = resolved(joining).unwrap().cluster.unwrap();
        let addresses = ["10.0.0.1:11290", "b:11290"].map(str::to_owned).to_vec();
        assert_eq!(cluster.start, Start::Join(addresses));
        let returning = Settings {
            bootstrap: None,
            ..member()
        };
        let cluster = resolved(returning).unwrap().cluster.unwrap();
        assert_eq!(cluster.start, Start::Join(Vec::new()));
        assert!(cluster.describe().contains("in the cluster of its disk"));
    }

    /// A flag with what its error has to say.
    #[test]
    fn what_cannot_be_is_refused_with_the_flag_and_the_remedy() {
        let open = || Some("0.0.0.0:11290".parse().unwrap());
        let insecure = || CommonSettings {
            insecure: Some(true),
            ..CommonSettings::default()
        };
        let listening = |addresses: &[&str]| CommonSettings {
            listen: addresses.iter().map(|it| it.parse().unwrap()).collect(),
            ..CommonSettings::default()
        };
        let cases: [(Settings, &[&str]); 16] = [
            (
                Settings {
                    down_after: Some(Span::from_millis(999)),
                    ..member()
                },
                &["--down-after", "999ms", "1s to 1m"],
            ),
            (
                Settings {
                    down_after: Some(Span::from_millis(61_000)),
                    ..member()
                },
                &["--down-after", "61s"],
            ),
            (
                Settings {
                    cluster_listen: Some("10.0.0.7:11290".parse().unwrap()),
                    common: insecure(),
                    ..member()
                },
                &["--listen", "127.0.0.1:11211", "--advertise-client"],
            ),
            (
                Settings {
                    common: listening(&["127.0.0.1:1", "unix:/s"]),
                    advertise: Some("192.0.2.7:7".parse().unwrap()),
                    ..member()
                },
                &["--listen", "127.0.0.1:1", "--advertise-client"],
            ),
            (
                Settings {
                    common: listening(&["unix:/s"]),
                    ..member()
                },
                &["--listen HOST:PORT"],
            ),
            (
                Settings {
                    cluster_listen: None,
                    ..member()
                },
                &["--node-id", "--cluster-listen"],
            ),
            (
                Settings {
                    join: vec!["b:1".parse().unwrap()],
                    ..Settings::default()
                },
                &["--join", "b:1", "--cluster-listen"],
            ),
            (
                Settings {
                    advertise_client: Some("b:1".parse().unwrap()),
                    ..Settings::default()
                },
                &["--advertise-client", "b:1", "--cluster-listen"],
            ),
            (
                Settings {
                    node_id: None,
                    ..member()
                },
                &["--cluster-listen", "--node-id"],
            ),
            (
                Settings {
                    node_id: Some("a b".to_owned()),
                    ..member()
                },
                &["--node-id", "a b", "letters"],
            ),
            (
                Settings {
                    zone: Some(String::new()),
                    ..member()
                },
                &["--zone", "letters"],
            ),
            (
                Settings {
                    data_dir: Some("none".into()),
                    ..member()
                },
                &["--cluster-listen", "--data-dir"],
            ),
            (
                Settings {
                    down_after: Some(Span::from_millis(1)),
                    ..Settings::default()
                },
                &["--down-after", "1ms"],
            ),
            (
                Settings {
                    join: vec!["b:1".parse().unwrap()],
                    ..member()
                },
                &["--join", "b:1", "--bootstrap"],
            ),
            (
                Settings {
                    cluster_listen: open(),
                    ..member()
                },
                &[
                    "--cluster-listen",
                    "0.0.0.0",
                    "--tls-client-ca",
                    "--insecure",
                ],
            ),
            (
                Settings {
                    cluster_listen: open(),
                    common: insecure(),
                    ..member()
                },
                &["--cluster-listen", "0.0.0.0", "--advertise"],
            ),
        ];
        for (settings, words) in cases {
            let error = resolved(settings).unwrap_err();
            for word in words {
                assert!(error.contains(word), "no {word} in: {error}");
            }
        }
        for text in ["", "b", "b:0", "b:http", "0.0.0.0:1", "[::]:1", "unix:/x"] {
            assert!(text.parse::<OrNone<MemberAddr>>().is_err(), "{text}");
        }
        assert_eq!("none".parse(), Ok(OrNone::<MemberAddr>(None)));
    }

    #[test]
    fn clients_are_told_an_address_that_others_reach() {
        let mut cluster = resolved(member()).unwrap().cluster.unwrap();
        let names = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let told =
            |cluster: &ClusterConfig, listening: &[&str]| cluster.client_address(&names(listening));
        assert_eq!(
            told(&cluster, &["unix:/s", "10.0.0.7:11211"]),
            "10.0.0.7:11211"
        );
        assert_eq!(
            told(&cluster, &["127.0.0.1:1", "10.0.0.7:11211"]),
            "10.0.0.7:11211"
        );
        assert_eq!(told(&cluster, &["unix:/s", "127.0.0.1:1"]), "127.0.0.1:1");
        assert_eq!(told(&cluster, &["0.0.0.0:11211"]), "127.0.0.1:11211");
        cluster.advertise = Some("a.example:7".to_owned());
        assert_eq!(told(&cluster, &["[::]:11211"]), "a.example:11211");
        cluster.advertise_client = Some("b.example:8".to_owned());
        assert_eq!(told(&cluster, &["10.0.0.7:11211"]), "b.example:8");
    }
}
