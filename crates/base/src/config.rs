//! Configuration in layers: flag over environment over file over default.
//!
//! A program describes its settings once, as a struct of `Option` and `Vec` fields inside
//! [`layer!`](crate::layer), deriving `clap::Args` or `clap::Parser` (flags, and the environment
//! through `#[arg(env = "FONN_…")]`) and `serde::Deserialize`. [`load_layers`] parses the first two
//! layers, reads the third as [`load_file`] does, combines them by [`Layer::over`], and tells where
//! each value comes from. Then the program fills in its defaults. What is in force while it runs is
//! kept in [`InForce`].
//!
//! Invariant: every [`ConfigError`] is one sentence that names the flag or key, the value, and what
//! would be accepted.

mod environment;
mod in_force;
mod origin;
mod watch;

use std::error::Error as _;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgMatches;
use clap::error::ContextKind;
use toml::de::DeTable;
#[doc(hidden)]
pub use toml::{de::Error as FileFault, from_str as from_text};

pub use self::in_force::{InForce, Setting};
pub use self::origin::{Origin, Origins, load_layers};
pub use self::watch::FileWatch;

/// Exit code of a clean stop.
pub const EXIT_CLEAN: u8 = 0;
/// Exit code of a failure at run time.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code of a bad configuration.
pub const EXIT_CONFIG: u8 = 2;

/// How many known keys are proposed for an unknown one.
const SUGGESTIONS_MAX: usize = 3;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A setting has a value that it cannot have.
    #[error("{flag} {value}: {expected}")]
    Invalid {
        /// The flag, with its dashes.
        flag: &'static str,
        /// What was given.
        value: String,
        /// What would be accepted, beginning with "expected".
        expected: String,
    },
    /// The command line or the environment could not be parsed.
    #[error("{0}")]
    Usage(String),
    /// The configuration file could not be read.
    #[error("--config {}: cannot read the file: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The configuration file has a key that no setting has.
    #[error("{}, line {line}: unknown key `{key}`, {}", path.display(), suggest(nearest))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line in it, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The known keys nearest to it.
        nearest: Vec<&'static str>,
    },
    /// The configuration file is no TOML, or a value in it is not accepted.
    #[error("{}, line {line}{}: {message}", path.display(), key_part(key))]
    File {
        /// The file.
        path: PathBuf,
        /// Line in it, from 1.
        line: usize,
        /// The key, when the fault is in a value.
        key: Option<String>,
        /// The fault and what would be accepted.
        message: String,
    },
}

impl ConfigError {
    /// A setting that cannot have this value; `expected` completes "expected …".
    pub fn invalid(flag: &'static str, value: impl Display, expected: impl Display) -> Self {
        Self::Invalid {
            flag,
            value: value.to_string(),
            expected: format!("expected {expected}"),
        }
    }
}

fn suggest(nearest: &[&str]) -> String {
    match nearest {
        [] => "no keys are known here".to_owned(),
        [one] => format!("the nearest known key is `{one}`"),
        several => format!("the nearest known keys are `{}`", several.join("`, `")),
    }
}

fn key_part(key: &Option<String>) -> String {
    key.as_ref()
        .map(|key| format!(", key `{key}`"))
        .unwrap_or_default()
}

/// One layer of configuration, in which any setting may be missing.
pub trait Layer: Sized {
    /// This layer where it has a value, else `lower`. Lists are taken whole, not joined; an empty
    /// list counts as missing.
    #[must_use]
    fn over(self, lower: Self) -> Self;

    /// Adds the keys of the layer to `keys`; `name` is the field that holds it.
    fn push_keys(name: &'static str, keys: &mut Vec<&'static str>);

    /// Adds those of them that have a value here.
    fn push_given(&self, name: &'static str, keys: &mut Vec<&'static str>);

    /// Reads the settings of the layer, and those of the layers in it, from the text of a file. A
    /// single setting is read with its layer.
    ///
    /// # Errors
    /// If a value is not accepted.
    fn read(&mut self, _text: &str) -> Result<(), FileFault> {
        Ok(())
    }
}

impl<T> Layer for Option<T> {
    fn over(self, lower: Self) -> Self {
        self.or(lower)
    }

    fn push_keys(name: &'static str, keys: &mut Vec<&'static str>) {
        keys.push(name);
    }

    fn push_given(&self, name: &'static str, keys: &mut Vec<&'static str>) {
        if self.is_some() {
            keys.push(name);
        }
    }
}

impl<T> Layer for Vec<T> {
    fn over(self, lower: Self) -> Self {
        if self.is_empty() { lower } else { self }
    }

    fn push_keys(name: &'static str, keys: &mut Vec<&'static str>) {
        keys.push(name);
    }

    fn push_given(&self, name: &'static str, keys: &mut Vec<&'static str>) {
        if !self.is_empty() {
            keys.push(name);
        }
    }
}

/// Declares structs and implements [`Layer`](crate::config::Layer) for them.
///
/// Every field must be a layer itself: an `Option`, a `Vec`, or another such struct whose keys
/// belong to the file as well. serde skips such a struct (`#[serde(skip)]`): `flatten` would lose
/// the lines of errors. TOML keys are the field names, so do not rename fields with serde.
///
/// ```
/// fonn_base::layer! {
///     /// Settings of a program.
///     #[derive(Debug, Default, clap::Args, serde::Deserialize)]
///     #[serde(default)]
///     pub struct Settings {
///         /// Addresses to listen on.
///         #[arg(long, env = "EXAMPLE_LISTEN", value_delimiter = ',')]
///         pub listen: Vec<String>,
///         /// Number of threads.
///         #[arg(long, env = "EXAMPLE_THREADS")]
///         pub threads: Option<usize>,
///     }
/// }
/// use fonn_base::config::Layer;
/// let flags = Settings { threads: Some(4), ..Settings::default() };
/// let file = Settings { threads: Some(2), listen: vec!["a".into()] };
/// let merged = flags.over(file);
/// assert_eq!((merged.threads, merged.listen.len()), (Some(4), 1));
/// ```
#[macro_export]
macro_rules! layer {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty),* $(,)?
        }
    )+) => {$(
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty,)*
        }

        impl $crate::config::Layer for $name {
            fn over(self, lower: Self) -> Self {
                Self { $($field: $crate::config::Layer::over(self.$field, lower.$field),)* }
            }

            fn push_keys(_name: &'static str, keys: &mut Vec<&'static str>) {
                $(<$ty as $crate::config::Layer>::push_keys(stringify!($field), keys);)*
            }

            fn push_given(&self, _name: &'static str, keys: &mut Vec<&'static str>) {
                $($crate::config::Layer::push_given(&self.$field, stringify!($field), keys);)*
            }

            fn read(&mut self, text: &str) -> Result<(), $crate::config::FileFault> {
                *self = $crate::config::from_text(text)?;
                $($crate::config::Layer::read(&mut self.$field, text)?;)*
                Ok(())
            }
        }
    )+};
}

/// The keys that a configuration file for `T` may have, in the order of the fields.
#[must_use]
pub fn keys<T: Layer>() -> Vec<&'static str> {
    let mut keys = Vec::new();
    T::push_keys("", &mut keys);
    keys
}

/// A longer file is no configuration.
const FILE_LEN_MAX: usize = 16 << 20;

/// Reads a TOML file of at most 16 MiB.
///
/// # Errors
/// [`ConfigError::Read`], [`ConfigError::UnknownKey`] or [`ConfigError::File`].
pub fn load_file<T: Layer + Default>(path: &Path) -> Result<T, ConfigError> {
    let text = crate::file::read_text(path, FILE_LEN_MAX).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse_file(path, &text)
}

/// [`load_file`] on a text; `path` only names it in errors.
///
/// # Errors
/// [`ConfigError::UnknownKey`] or [`ConfigError::File`].
pub fn parse_file<T: Layer + Default>(path: &Path, text: &str) -> Result<T, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| file_error(path, text, None, &error))?;
    let known = keys::<T>();
    let unknown = table
        .get_ref()
        .keys()
        .filter(|key| !known.contains(&key.get_ref().as_ref()))
        // The table is sorted by key; the first line is what a reader looks for.
        .min_by_key(|key| key.span().start);
    if let Some(key) = unknown {
        let name = key.get_ref().to_string();
        return Err(ConfigError::UnknownKey {
            path: path.to_owned(),
            line: line_of(text, key.span().start),
            nearest: nearest(&name, &known),
            key: name,
        });
    }
    let mut layer = T::default();
    let read = layer.read(text);
    read.map_err(|error| file_error(path, text, Some(table.get_ref()), &error))?;
    Ok(layer)
}

/// A layer with one setting, whose value is spelled as on the command line. One that may be
/// repeated is a list, divided by commas.
///
/// # Errors
/// What is wrong with the value.
pub fn parse_setting<T: Layer + Default>(
    key: &str,
    value: &str,
    is_list: bool,
) -> Result<T, String> {
    if value.contains(|it: char| it == '\'' || it.is_control()) {
        return Err("unexpected quote or control character".to_owned());
    }
    let value = match is_list {
        true => format!("['{}']", value.replace(',', "','")),
        false => format!("'{value}'"),
    };
    let parsed = parse_file(Path::new("CONFIG SET"), &format!("{key} = {value}"));
    parsed.map_err(|error| match error {
        ConfigError::File { message, .. } => message,
        other => other.to_string(),
    })
}

fn file_error(
    path: &Path,
    text: &str,
    table: Option<&DeTable<'_>>,
    error: &toml::de::Error,
) -> ConfigError {
    let at = error.span().map_or(0, |span| span.start);
    let key = table.and_then(|table| {
        let (key, _) = table.iter().find(|(_, value)| value.span().contains(&at))?;
        Some(key.get_ref().to_string())
    });
    ConfigError::File {
        path: path.to_owned(),
        line: line_of(text, at),
        key,
        message: error.message().lines().collect::<Vec<_>>().join(" "),
    }
}

/// The line, from 1, of byte `at`.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count()
}

/// The known keys nearest to `key`, at most [`SUGGESTIONS_MAX`] and only those about as near as the
/// nearest one.
fn nearest(key: &str, known: &[&'static str]) -> Vec<&'static str> {
    let mut ranked: Vec<(usize, &'static str)> = known
        .iter()
        .map(|&candidate| (edit_distance(key, candidate), candidate))
        .collect();
    ranked.sort_unstable();
    let limit = ranked.first().map_or(0, |&(distance, _)| distance + 1);
    ranked.retain(|&(distance, _)| distance <= limit);
    ranked.truncate(SUGGESTIONS_MAX);
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

/// Levenshtein distance in characters; `-` and `_` count as the same, since flags have the one and
/// keys the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let same = |x: char, y: char| x == y || (matches!(x, '-' | '_') && matches!(y, '-' | '_'));
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!same(x, y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Why a program ends before it starts.
#[derive(Debug)]
pub enum Early {
    /// The text of `--help` or `--version` was asked for.
    Info(String),
    /// The configuration is bad.
    Bad(ConfigError),
}

impl From<ConfigError> for Early {
    fn from(error: ConfigError) -> Self {
        Self::Bad(error)
    }
}

impl Early {
    /// Prints the text to standard output, or the error to standard error, and gives the exit code.
    #[must_use]
    pub fn report(self) -> ExitCode {
        // There is no other place to report it when the standard streams are closed.
        match self {
            Self::Info(text) => {
                let _ = io::stdout().write_all(text.as_bytes());
                ExitCode::from(EXIT_CLEAN)
            }
            Self::Bad(error) => {
                let _ = writeln!(io::stderr(), "error: {error}");
                ExitCode::from(EXIT_CONFIG)
            }
        }
    }
}

/// Parses flags and environment, and gives the source of each value; `args` begins with the
/// program's name, like `std::env::args_os()`.
fn parse_matches<T, I>(args: I) -> Result<(T, ArgMatches), Early>
where
    T: clap::Parser,
    I: IntoIterator<Item: Into<OsString> + Clone>,
{
    use clap::error::ErrorKind;

    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    let mut command = T::command();
    let matches = command.try_get_matches_from_mut(&args);
    let parsed = matches.and_then(|matches| {
        let parsed = T::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        Ok((parsed, matches))
    });
    parsed.map_err(|error| {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Early::Info(text),
            _ => {
                let text = without_login(&error).unwrap_or_else(|| one_sentence(&text));
                let text = environment::named(&command, &args, &error, text);
                Early::Bad(ConfigError::Usage(text))
            }
        }
    })
}

/// What clap says of a value that is not accepted, without the value if that has an `@`: it may be
/// a URL with a password.
fn without_login(error: &clap::Error) -> Option<String> {
    let refused = |kind| error.get(kind).map(ToString::to_string);
    if !refused(ContextKind::InvalidValue)?.contains('@') {
        return None;
    }
    let arg = refused(ContextKind::InvalidArg)?;
    let why = error
        .source()
        .map_or_else(String::new, |why| format!(": {why}"));
    Some(format!("invalid value for '{arg}'{why}"))
}

/// What clap says, without its prefix, its usage and its reference to `--help`, on one line.
fn one_sentence(text: &str) -> String {
    let paragraphs = text
        .trim()
        .split("\n\n")
        .take_while(|part| !part.starts_with("Usage:") && !part.starts_with("For more information"))
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let joined = paragraphs.collect::<Vec<_>>().join("; ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

#[cfg(test)]
mod tests;
