//! The settings in force while a program runs, for `stats settings`, `CONFIG GET` and the admin
//! port.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;

use super::{Layer, Origin, Origins, keys};

/// A setting in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The key in the configuration file.
    pub key: String,
    /// The value; never a secret.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether a reload applies another value.
    pub can_reload: bool,
    /// When it changed last while the program ran, as Unix time in milliseconds; 0 if it did not.
    pub changed_at_ms: u64,
    /// The value after a restart, if that is known to be another one.
    pub after_restart: Option<String>,
}

impl Setting {
    /// The settings of a program whose layers are `T`, in the order of its fields: what is in force
    /// by `pairs` and would be after a restart by `later`. A reload applies those of `live`.
    #[must_use]
    pub fn all<T: Layer>(
        mut pairs: Vec<(String, String)>,
        later: &[(String, String)],
        live: &[&str],
        origins: &Origins,
    ) -> Vec<Self> {
        let order = keys::<T>();
        pairs.sort_by_key(|(key, _)| order.iter().position(|it| it == key));
        let settings = pairs.into_iter().map(|(key, value)| {
            let can_reload = live.contains(&key.as_str());
            let later = later.iter().find(|(known, _)| *known == key);
            let after_restart = match later {
                Some((_, later)) if !can_reload && *later != value => Some(later.clone()),
                _ => None,
            };
            Self {
                origin: origins.of(&key),
                key,
                value,
                can_reload,
                changed_at_ms: 0,
                after_restart,
            }
        });
        settings.collect()
    }

    /// The flags of those settings that will be others after a restart.
    #[must_use]
    pub fn awaiting_restart(settings: &[Self]) -> Vec<String> {
        let awaiting = settings.iter().filter(|it| it.after_restart.is_some());
        awaiting
            .map(|it| format!("--{}", it.key.replace('_', "-")))
            .collect()
    }
}

/// The settings in force; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct InForce(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    settings: RwLock<Vec<Setting>>,
    file: Option<PathBuf>,
}

impl InForce {
    /// The settings that a program starts with, by the configuration `file` if there is one.
    #[must_use]
    pub fn new(settings: Vec<Setting>, file: Option<&Path>) -> Self {
        Self(Arc::new(Inner {
            settings: RwLock::new(settings),
            file: file.map(Path::to_owned),
        }))
    }

    /// All of them.
    #[must_use]
    pub fn list(&self) -> Vec<Setting> {
        self.0.settings.read().clone()
    }

    /// Their keys and values.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        let settings = self.0.settings.read();
        let pairs = settings.iter();
        pairs.map(|it| (it.key.clone(), it.value.clone())).collect()
    }

    /// The configuration file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_deref()
    }

    /// Replaces all settings by those that are in force now. When each changed last is seen here.
    pub fn reload(&self, mut new: Vec<Setting>, now_ms: u64) {
        let mut settings = self.0.settings.write();
        for it in &mut new {
            let before = settings.iter().find(|before| before.key == it.key);
            it.changed_at_ms = match before {
                Some(before) if before.value == it.value => before.changed_at_ms,
                _ => now_ms,
            };
        }
        *settings = new;
    }
}

/// Settings of which nothing else is known: they stay as they are.
impl From<Vec<(String, String)>> for InForce {
    fn from(pairs: Vec<(String, String)>) -> Self {
        let settings = pairs.into_iter().map(|(key, value)| Setting {
            key,
            value,
            ..Setting::default()
        });
        Self::new(settings.collect(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(key: &str, value: &str, origin: Origin) -> Setting {
        Setting {
            key: key.to_owned(),
            value: value.to_owned(),
            origin,
            ..Setting::default()
        }
    }

    #[test]
    fn changes_are_told_with_their_time_and_their_origin() {
        let settings = InForce::new(
            vec![
                setting("a", "1", Origin::Flag),
                setting("b", "2", Origin::File),
                setting("c", "3", Origin::Default),
            ],
            Some(Path::new("/f")),
        );
        let by_admin = vec![
            setting("a", "1", Origin::Flag),
            setting("b", "2", Origin::File),
            setting("c", "4", Origin::Admin),
        ];
        settings.clone().reload(by_admin, 10);
        let told = |at: usize| {
            let it = settings.list().swap_remove(at);
            (it.value, it.origin, it.changed_at_ms)
        };
        assert_eq!(told(2), ("4".to_owned(), Origin::Admin, 10));
        assert_eq!(settings.pairs().len(), 3);
        assert_eq!(settings.file(), Some(Path::new("/f")));

        let reloaded = vec![
            setting("a", "1", Origin::Flag),
            setting("b", "9", Origin::File),
            setting("c", "3", Origin::Default),
        ];
        settings.reload(reloaded.clone(), 20);
        assert_eq!(told(0), ("1".to_owned(), Origin::Flag, 0));
        assert_eq!(told(1), ("9".to_owned(), Origin::File, 20));
        assert_eq!(told(2), ("3".to_owned(), Origin::Default, 20));
        settings.reload(reloaded, 30);
        assert_eq!(told(1).2, 20, "it did not change again");
    }
}
