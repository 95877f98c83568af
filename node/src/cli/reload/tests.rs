use std::path::PathBuf;
use std::sync::Arc;

use fonn_base::clock::Clock;
use fonn_base::config::{Origin, Setting};
use fonn_base::telemetry::{self, LogFormat};
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::*;

/// A node whose settings come from a configuration file.
struct Rig {
    file: PathBuf,
    config: Config,
    engine: Arc<Engine>,
    security: Security,
    log: LogControl,
    events: Events,
    settings: InForce,
    args: Vec<OsString>,
    _dir: TempDir,
}

impl Rig {
    async fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fonn.toml");
        std::fs::write(&file, text).unwrap();
        let args: [OsString; 9] = [
            "fonn-node".into(),
            "--config".into(),
            file.clone().into(),
            "--data-dir".into(),
            dir.path().join("data").into(),
            "--ram-budget".into(),
            "64m".into(),
            "--threads".into(),
            "1".into(),
        ];
        let config = config::load(&args).unwrap();
        let options = crate::cli::engine_options(&config, Clock::system()).await;
        let filter = "warn".parse().unwrap();
        Self {
            engine: Engine::open(options.unwrap().0).unwrap(),
            security: Security::default(),
            log: telemetry::build(&filter, LogFormat::Text, false, std::io::sink).1,
            events: Events::new(Clock::system(), 100),
            settings: InForce::new(config.settings(), config.origins.file()),
            config,
            file,
            args: args.into(),
            _dir: dir,
        }
    }

    fn reload(&self) -> Reload<'_> {
        let parts = Parts {
            engine: &self.engine,
            security: &self.security,
            log: &self.log,
            events: &self.events,
        };
        let (config, settings) = (self.config.clone(), self.settings.clone());
        Reload::new(self.args.clone(), config, settings, parts)
    }

    fn shown(&self, key: &str) -> Setting {
        let mut all = self.settings.list().into_iter();
        all.find(|it| it.key == key).unwrap()
    }

    /// The codecs as they are shown and as the engine has them, and where they come from.
    fn codecs(&self) -> (String, Origin) {
        let shown = self.shown("codec");
        let (levels, _) = codecs::list(&self.engine);
        for it in levels {
            let level = format!("{}={}", it.level, it.codec);
            assert!(shown.value.split(',').any(|it| it == level), "{level}");
        }
        (shown.value, shown.origin)
    }
}

fn set(reload: &mut Reload<'_>, key: &str, value: &str) -> Result<(), (String, String)> {
    let (answer, mut answered) = oneshot::channel();
    let pairs = vec![(key.to_owned(), value.to_owned())];
    reload.change(SettingsChange {
        pairs,
        message: format!("{key} was changed"),
        answer,
    });
    answered.try_recv().unwrap()
}

#[tokio::test]
async fn a_change_by_an_administrator_leaves_all_other_settings_as_they_are() {
    let rig = Rig::new("disk_budget = '256m'\n").await;
    let mut reload = rig.reload();
    std::fs::write(&rig.file, "lru = 'strict'\ncodec = 'compacted=zlib:6'\n").unwrap();
    reload.all();
    let by_file = "ram=none,fresh=lz4,compacted=zlib:6,cold=zstd:9";
    assert_eq!(rig.codecs(), (by_file.to_owned(), Origin::File));
    assert_eq!(rig.shown("lru").after_restart.as_deref(), Some("strict"));

    set(&mut reload, "codec", "fresh=zstd:1").unwrap();
    set(&mut reload, "codec", "fresh=zstd:2").unwrap();
    let by_admin = "ram=none,fresh=zstd:2,compacted=zlib:6,cold=zstd:9";
    assert_eq!(rig.codecs(), (by_admin.to_owned(), Origin::Admin));

    // Neither the codecs nor the note of a restart is gone after a change of another setting.
    set(&mut reload, "disk_budget", "512mb").unwrap();
    assert_eq!(rig.shown("disk_budget").value, "512m");
    assert_eq!(rig.codecs(), (by_admin.to_owned(), Origin::Admin));
    assert_eq!(rig.shown("lru").after_restart.as_deref(), Some("strict"));

    // Of the codecs those change that are named.
    set(&mut reload, "codec", "ram=lz4").unwrap();
    let both = "ram=lz4,fresh=zstd:2,compacted=zlib:6,cold=zstd:9";
    assert_eq!(rig.codecs(), (both.to_owned(), Origin::Admin));
    let (key, why) = set(&mut reload, "codec", "ram=best").unwrap_err();
    assert!(key == "codec" && why.contains("best"), "{key}: {why}");
    assert_eq!(rig.codecs().0, both);

    // All that until the next reload.
    reload.all();
    assert_eq!(rig.codecs(), (by_file.to_owned(), Origin::File));
    assert_eq!(rig.shown("disk_budget").value, "10g");
}

#[tokio::test]
async fn a_setting_that_the_node_refuses_stays_and_is_told() {
    let rig = Rig::new("disk_budget = '256m'\n").await;
    let mut reload = rig.reload();
    for (key, value) in [("cold_budget", "1g"), ("ram_budget", "much")] {
        let (refused, _) = set(&mut reload, key, value).unwrap_err();
        assert_eq!(refused, key);
    }
    assert_eq!(rig.shown("ram_budget").value, "64m");
    assert_eq!(rig.engine.ram().budget(), 64 << 20);
    // Nor is any changed while the file cannot be used.
    let before = rig.codecs();
    std::fs::write(&rig.file, "no_such_key = 1\n").unwrap();
    let (key, why) = set(&mut reload, "codec", "ram=lz4").unwrap_err();
    assert!(
        key == "codec" && why.contains("no_such_key"),
        "{key}: {why}"
    );
    assert_eq!(rig.codecs(), before);
}
