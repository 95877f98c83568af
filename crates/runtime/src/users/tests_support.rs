//! Users for the tests.

use super::directory::Directory;

pub(crate) const PASSWORD: &[u8] = b"hunter 2";

/// [`PASSWORD`], with parameters that cost next to nothing.
pub(crate) const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$HEzykw8NCIJXN7CpA3KYzQ$SeqwoQks7+u6mql/wEyc+tg9EZTi7hi7uKM+8XIL1Bw";

/// One `[[user]]` with further lines.
pub(crate) fn row(name: &str, role: &str, more: &str) -> String {
    format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{HASH}'\n{more}\n")
}

pub(crate) fn directory(rows: &[(&str, &str)]) -> Directory {
    let rows = rows.iter().map(|(name, role)| row(name, role, ""));
    parsed(&rows.collect::<String>())
}

/// What a users file with that text says.
pub(crate) fn parsed(text: &str) -> Directory {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Directory::load(file.path()).unwrap()
}
