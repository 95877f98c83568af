//! `cargo xtask sample-config`: the sample configuration and the table of settings, from the flags
//! of the node.
//!
//! What a setting means, its default and its environment variable all come from the command line's
//! own definition. Only where a default cannot be written down (it depends on the machine) an
//! example is given here.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, CommandFactory};
use fonn_node::config::Cli;

use crate::generated::{File, fill, table};

/// What is written.
pub const FILES: [File; 2] = [
    File {
        path: "deploy/config/node.sample.toml",
        make: sample,
    },
    File {
        path: "README.md",
        make: readme,
    },
];

const PREAMBLE: &str = "\
# Settings of fonn-node. Start it with --config FILE, or set FONN_CONFIG=FILE.
#
# A line that begins with `#name` shows a default: remove the # to change it. Every key is also a flag
# (ram_budget is --ram-budget) and an environment variable (FONN_RAM_BUDGET). A flag wins over the
# environment, the environment over this file. An unknown key is an error. SIGHUP reads the file again.
#
# SIZE: bytes, or a number with k, m, g or t (1024-based).
#
# Made by `cargo xtask sample-config`.
";

/// Values for settings whose default depends on the machine.
const EXAMPLES: [(&str, &str); 2] = [("threads", "4"), ("data_dir", "/var/cache/fonn")];

/// One setting.
struct Setting {
    /// The key in the file.
    key: String,
    /// The flag with its value's name.
    flag: String,
    /// The environment variable.
    env: String,
    heading: String,
    /// What it means, without the default.
    meaning: String,
    /// The default, in words where it depends on the machine.
    default: String,
    form: Form,
}

/// How a value is written in TOML.
enum Form {
    Boolean,
    Integer,
    Text,
    List,
}

impl Setting {
    fn of(arg: &Arg) -> Result<Self> {
        let id = arg.get_id().as_str();
        let long = arg
            .get_long()
            .with_context(|| format!("`{id}` has no flag"))?;
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let value_name = arg.get_value_names().and_then(|names| names.first());
        let value_name = value_name.map(ToString::to_string).unwrap_or_default();
        let form = match (arg.get_action(), value_name.as_str()) {
            (ArgAction::Append, _) => Form::List,
            (_, "BOOL") => Form::Boolean,
            (_, "N") => Form::Integer,
            _ => Form::Text,
        };
        let (meaning, default) = match help.rsplit_once(" [default: ") {
            Some((meaning, default)) => (meaning, default.trim_end_matches(']')),
            None if matches!(form, Form::Boolean) => (help.as_str(), "false"),
            None => bail!("--{long} does not tell its default"),
        };
        Ok(Self {
            key: id.to_owned(),
            flag: match form {
                Form::Boolean => format!("--{long}"),
                _ => format!("--{long} {value_name}"),
            },
            env: arg
                .get_env()
                .and_then(|name| name.to_str())
                .with_context(|| format!("--{long} has no environment variable"))?
                .to_owned(),
            heading: arg.get_help_heading().unwrap_or_default().to_owned(),
            meaning: meaning.to_owned(),
            default: default.to_owned(),
            form,
        })
    }

    /// The default as a TOML value, or an example.
    fn toml(&self) -> String {
        let example = EXAMPLES.iter().find(|(key, _)| *key == self.key);
        let value = example.map_or(self.default.as_str(), |(_, value)| value);
        match self.form {
            Form::Boolean | Form::Integer => value.to_owned(),
            Form::Text => format!("{value:?}"),
            Form::List => {
                let values: Vec<String> = value
                    .split(", ")
                    .map(|value| format!("{value:?}"))
                    .collect();
                format!("[{}]", values.join(", "))
            }
        }
    }
}

/// The settings that a file can have, in the order of `--help`.
fn settings() -> Result<Vec<Setting>> {
    let command = Cli::command();
    let arguments = command.get_arguments();
    arguments
        .filter(|arg| !matches!(arg.get_id().as_str(), "config" | "help" | "version"))
        .map(Setting::of)
        .collect()
}

fn sample(_: &str) -> Result<String> {
    let mut text = PREAMBLE.to_owned();
    let mut heading = String::new();
    for setting in settings()? {
        if setting.heading != heading {
            write!(text, "\n# {}\n", setting.heading)?;
            setting.heading.clone_into(&mut heading);
        }
        text.push('\n');
        let default = match EXAMPLES.iter().any(|(key, _)| *key == setting.key) {
            true => format!(" Default: {}.", setting.default),
            false => String::new(),
        };
        for line in wrapped(&format!("{}.{default}", setting.meaning), 98) {
            writeln!(text, "# {line}")?;
        }
        writeln!(text, "#{} = {}", setting.key, setting.toml())?;
    }
    Ok(text)
}

fn readme(old: &str) -> Result<String> {
    let rows = settings()?.into_iter().map(|setting| {
        [
            format!("`{}`", setting.flag),
            format!("`{}`", setting.env),
            format!("`{}`", setting.key),
            setting.default,
            setting.meaning,
        ]
    });
    let header = ["flag", "environment", "TOML key", "default", "meaning"];
    fill(old, "settings", &table(header, rows))
}

/// The text in lines of at most `width` characters, if its words allow that.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fonn_base::config::{keys, parse_file};
    use fonn_node::config::{self, Settings};

    use super::*;

    fn parsed(text: &str) -> Settings {
        parse_file(Path::new("node.sample.toml"), text).unwrap()
    }

    /// What the settings amount to, apart from what depends on the machine.
    fn effect(mut settings: Settings) -> String {
        settings.data_dir = Some("none".into());
        settings.common.threads = Some(1);
        format!("{:?}", config::resolve(settings).unwrap())
    }

    #[test]
    fn the_sample_and_the_table_are_what_the_flags_say() {
        for file in &FILES {
            file.assert_up_to_date();
        }
    }

    #[test]
    fn the_sample_changes_nothing_as_it_is() {
        let text = sample("").unwrap();
        assert_eq!(
            format!("{:?}", parsed(&text)),
            format!("{:?}", Settings::default())
        );
    }

    #[test]
    fn the_sample_gives_every_key_its_default() {
        let text = sample("").unwrap();
        let lines = text.lines().map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with([' ', '#']) => setting,
            _ => line,
        });
        let text: Vec<&str> = lines.collect();
        let text = text.join("\n");
        let table: toml::Table = text.parse().unwrap();
        let mut expected = keys::<Settings>();
        expected.sort_unstable();
        assert_eq!(table.keys().collect::<Vec<_>>(), expected);
        assert_eq!(effect(parsed(&text)), effect(Settings::default()));
    }

    #[test]
    fn lines_are_wrapped_between_words() {
        assert_eq!(wrapped("aa bb ccc d", 5), ["aa bb", "ccc d"]);
        assert_eq!(wrapped("abcdefgh i", 5), ["abcdefgh", "i"]);
    }
}
