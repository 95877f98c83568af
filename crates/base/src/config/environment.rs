//! The environment variables of settings: errors that name them, and names that are misspelt.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::ContextKind;

use super::edit_distance;

/// What the names of all variables begin with.
const PREFIX: &str = "FONN_";

/// What clap says of a value that is not accepted, with the variable in place of the flag if the
/// value was in the environment.
pub(super) fn named(
    command: &Command,
    args: &[OsString],
    error: &clap::Error,
    text: String,
) -> String {
    // As in the help: `--threads <N>`.
    let Some(spelled) = error.get(ContextKind::InvalidArg).map(ToString::to_string) else {
        return text;
    };
    let flag = spelled.split(['[', ' ', '=']).next().unwrap_or_default();
    let is_flag = |text: &str| {
        let rest = text.strip_prefix(flag);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if args.iter().filter_map(|it| it.to_str()).any(is_flag) {
        return text;
    }
    let mut known = command.get_arguments();
    let refused =
        known.find(|it| it.get_long().is_some() && it.get_long() == flag.strip_prefix("--"));
    let variable = refused.and_then(|it| it.get_env()).and_then(OsStr::to_str);
    match variable.filter(|it| std::env::var_os(it).is_some()) {
        Some(variable) => text.replace(&format!("'{spelled}'"), variable),
        None => text,
    }
}

/// Those of `set` that are no variables of the program but look like misspelt ones, each with the
/// variable nearest to it. They differ by one edit or by two swapped letters: farther ones may be
/// of other programs, such as `FONN_NODE_BIN`.
pub(super) fn misspelt(
    command: &Command,
    set: impl Iterator<Item = OsString>,
) -> Vec<(String, String)> {
    let known = command.get_arguments();
    let known: Vec<&str> = known
        .filter_map(|it| it.get_env())
        .filter_map(OsStr::to_str)
        .collect();
    let unknown = set
        .filter_map(|it| it.into_string().ok())
        .filter(|it| it.starts_with(PREFIX) && !known.contains(&it.as_str()));
    unknown
        .filter_map(|name| {
            let ranked = known.iter().map(|it| (edit_distance(&name, it), *it));
            let (edits, nearest) = ranked.min()?;
            let is_slip = edits == 1 || (edits == 2 && has_same_letters(&name, nearest));
            is_slip.then(|| (name, nearest.to_owned()))
        })
        .collect()
}

/// Whether the letters are the same in another order. Two edits that keep them have swapped two.
fn has_same_letters(a: &str, b: &str) -> bool {
    let sorted = |text: &str| {
        let mut letters = text.as_bytes().to_vec();
        letters.sort_unstable();
        letters
    };
    sorted(a) == sorted(b)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_variable_that_nearly_is_one_of_a_setting_is_found_with_it() {
        let arg = |name: &'static str, variable: &'static str| Arg::new(name).env(variable);
        let command = Command::new("test")
            .arg(arg("threads", "FONN_THREADS"))
            .arg(arg("listen", "FONN_LISTEN"));
        let set = [
            "FONN_THREADS",
            "FONN_TREADS",
            "FONN_PASSWORD",
            "FONNTHREADS",
            "FONN_LISETN",
            "FONN_LASTEN_",
            "FONN_LISTNER",
        ];
        let found = misspelt(&command, set.into_iter().map(OsString::from));
        let pair = |name: &str, nearest: &str| (name.to_owned(), nearest.to_owned());
        assert_eq!(
            found,
            [
                pair("FONN_TREADS", "FONN_THREADS"),
                pair("FONN_LISETN", "FONN_LISTEN")
            ]
        );
    }
}
