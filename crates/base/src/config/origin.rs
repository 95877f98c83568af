//! Where each value of a configuration comes from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::{Early, Layer, environment, load_file, parse_matches};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The default holds.
    #[default]
    Default,
    /// The configuration file.
    File,
    /// The environment.
    Environment,
    /// The command line.
    Flag,
    /// An admin, while the program runs.
    Admin,
}

/// The origins of all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// Of those that have a value; all others have their defaults.
    by_key: BTreeMap<&'static str, Origin>,
    file: Option<PathBuf>,
    /// Environment variables that look like misspelt ones of settings, and the nearest of these.
    misspelt: Vec<(String, String)>,
}

impl Origins {
    /// Where the value of a key comes from.
    #[must_use]
    pub fn of(&self, key: &str) -> Origin {
        self.by_key.get(key).copied().unwrap_or_default()
    }

    /// The configuration file, if there is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Warns of environment variables that look like misspelt ones of settings. To be called once,
    /// when there is a log.
    pub fn warn_of_misspelt(&self) {
        for (variable, nearest) in &self.misspelt {
            tracing::warn!(
                variable,
                nearest,
                "no setting has this environment variable"
            );
        }
    }

    /// Takes over from where `new` has these keys.
    pub fn take_over(&mut self, keys: &[&'static str], new: &Self) {
        for key in keys {
            self.by_key.remove(key);
            if let Some(origin) = new.by_key.get(key) {
                self.by_key.insert(key, *origin);
            }
        }
    }
}

/// All layers of a configuration as one, and where each of its values comes from. `set` is above
/// all others, `args` are those of the process; `parts` are the file that they name, and their
/// layer.
///
/// # Errors
/// [`Early::Info`] for `--help` and `--version`, [`ConfigError::Usage`](super::ConfigError::Usage)
/// for bad flags, else as [`load_file`].
pub fn load_layers<C, T, I>(
    args: I,
    set: T,
    parts: impl FnOnce(C) -> (Option<PathBuf>, T),
) -> Result<(T, Origins), Early>
where
    C: clap::Parser,
    T: Layer + Default,
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    let (args, matches) = parse_matches::<C, I>(args)?;
    let (file, upper) = parts(args);
    let lower = match &file {
        Some(path) => load_file::<T>(path)?,
        None => T::default(),
    };
    let in_file = given(&lower).into_iter().map(|key| (key, Origin::File));
    let above = given(&upper).into_iter();
    let above = above.map(|key| (key, said_by(&matches, key)));
    let by_admin = given(&set).into_iter().map(|key| (key, Origin::Admin));
    let origins = Origins {
        by_key: in_file.chain(above).chain(by_admin).collect(),
        file,
        misspelt: environment::misspelt(&C::command(), std::env::vars_os().map(|(name, _)| name)),
    };
    Ok((set.over(upper.over(lower)), origins))
}

/// The keys that a layer has a value for.
fn given<T: Layer>(layer: &T) -> Vec<&'static str> {
    let mut keys = Vec::new();
    layer.push_given("", &mut keys);
    keys
}

/// The source of the value of a key that is among the arguments.
fn said_by(matches: &ArgMatches, key: &str) -> Origin {
    match matches.value_source(key) {
        Some(ValueSource::EnvVariable) => Origin::Environment,
        Some(ValueSource::CommandLine) => Origin::Flag,
        _ => Origin::Default,
    }
}
