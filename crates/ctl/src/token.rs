//! `fonnctl token`: makes, lists and revokes the tokens of a users file. No node is asked.
//!
//! The file is locked while it is changed, and what stands in it is checked before and after: a
//! change never leaves a file that a server would refuse. The secret is printed once, after its
//! entry is on disk, and is kept nowhere.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use fonn_auth::{Directory, Expiry, ListedToken, TokenSecret};
use fonn_base::clock::Clock;
use serde::Serialize;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table as Entry, value};

use super::Verdict;
use super::args::{CreateToken, ListTokens, RevokeToken, TokenRole};
use super::error::CtlError;
use super::output::Output;
use super::table::{Table, printable};

/// A longer file is not one of users.
const FILE_LEN_MAX: u64 = 16 << 20;

/// How often a file is opened again because another process has replaced it meanwhile.
const OPENS_MAX: usize = 8;

#[derive(Serialize)]
struct Created<'c> {
    name: &'c str,
    token: &'c str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    role: String,
    namespace: String,
    expires: Option<String>,
    has_expired: bool,
}

#[derive(Serialize)]
struct List {
    tokens: Vec<Row>,
}

#[derive(Serialize)]
struct Revoked<'r> {
    revoked: &'r str,
}

/// Makes a token, adds its entry to the file, and shows its secret.
pub(super) fn create(args: &CreateToken, output: &Output) -> Result<Verdict, CtlError> {
    let secret = TokenSecret::generate()
        .ok_or_else(|| CtlError::NotNow("the system gives no random bytes".to_owned()))?;
    let expiry = args
        .ttl
        .map(|ttl| expiry(Clock::system().wall_ms(), u128::from(ttl.as_millis())));
    let expiry = expiry.transpose()?;
    let mut file = UsersFile::open(&args.entry, true)?;
    let text = with_token(&file.text, args, &secret, expiry).map_err(|why| file.refused(&why))?;
    file.check(&text)?;
    file.append(&text)?;
    let created = Created {
        name: &args.name,
        token: secret.text(),
        expires: expiry.map(|it| it.to_string()),
    };
    output.show(&created, |it| format!("{}\n", it.token))?;
    Ok(Verdict::Good)
}

/// Shows the tokens of the file.
pub(super) fn list(args: &ListTokens, output: &Output) -> Result<Verdict, CtlError> {
    let file = UsersFile::open(&args.entry, false)?;
    let now_ms = Clock::system().wall_ms();
    let tokens = file.check(&file.text)?.tokens();
    let tokens = tokens.into_iter().map(|it| row(&it, now_ms)).collect();
    output.show(&List { tokens }, render)?;
    Ok(Verdict::Good)
}

/// Removes the entry of a token from the file.
pub(super) fn revoke(args: &RevokeToken, output: &Output) -> Result<Verdict, CtlError> {
    let file = UsersFile::open(&args.entry, false)?;
    let text = without_token(&file.text, &args.name).map_err(|why| file.refused(&why))?;
    file.check(&text)?;
    file.replace(&text)?;
    let revoked = Revoked {
        revoked: &args.name,
    };
    output.show(&revoked, |it| {
        format!(
            "`{}` is revoked: servers that read the file refuse it within half a minute, at once after SIGHUP\n",
            printable(it.revoked)
        )
    })?;
    Ok(Verdict::Good)
}

fn row(token: &ListedToken, now_ms: u64) -> Row {
    let identity = &token.identity;
    Row {
        name: identity.user.to_string(),
        role: identity.role.to_string(),
        namespace: identity.namespace.name.to_string(),
        expires: identity.expiry.map(|it| it.to_string()),
        has_expired: identity.has_expired(now_ms),
    }
}

fn render(list: &List) -> String {
    let mut table = Table::new(&["TOKEN", "ROLE", "NAMESPACE", "EXPIRES", ""]);
    for it in &list.tokens {
        table.row([
            it.name.clone(),
            it.role.clone(),
            it.namespace.clone(),
            it.expires.clone().unwrap_or_else(|| "never".to_owned()),
            match it.has_expired {
                true => "expired".to_owned(),
                false => String::new(),
            },
        ]);
    }
    table.render()
}

/// The moment `ttl_ms` after `now_ms`, in whole seconds.
fn expiry(now_ms: u64, ttl_ms: u128) -> Result<Expiry, CtlError> {
    let at_ms = (u128::from(now_ms) + ttl_ms).div_ceil(1000) * 1000;
    let at_ms = u64::try_from(at_ms).unwrap_or(u64::MAX);
    Expiry::from_unix_ms(at_ms).map_err(|error| CtlError::Input(format!("--ttl: {error}")))
}

/// A text that begins with `text` and has the entry of a token besides. The file is only appended
/// to, so that its comments and its order stay, and a reader sees the old text or a longer one.
fn with_token(
    text: &str,
    args: &CreateToken,
    secret: &TokenSecret,
    expiry: Option<Expiry>,
) -> Result<String, String> {
    let mut entry = Entry::new();
    entry.insert("name", value(&args.name));
    entry.insert("hash", value(secret.hash().to_string()));
    entry.insert("namespace", value(&args.namespace));
    let role = match args.role {
        TokenRole::Read => "read",
        TokenRole::ReadWrite => "read-write",
    };
    entry.insert("role", value(role));
    if let Some(expiry) = expiry {
        let moment = expiry.to_string().parse::<toml_edit::Datetime>();
        entry.insert("expires", value(moment.map_err(|error| error.to_string())?));
    }
    let mut tables = ArrayOfTables::new();
    tables.push(entry);
    let mut document = DocumentMut::new();
    document.insert("token", Item::ArrayOfTables(tables));
    let gap = match text {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    Ok(format!("{text}{gap}{document}"))
}

/// The text without the entry of the token `name`.
fn without_token(text: &str, name: &str) -> Result<String, String> {
    let document = text.parse::<DocumentMut>();
    // Only the first line: the others quote the file.
    let mut document = document.map_err(|error| {
        let message = error.message().lines().next().unwrap_or("").to_owned();
        format!("it is no TOML: {message}")
    })?;
    let tables = document.get_mut("token");
    let tables = tables.and_then(Item::as_array_of_tables_mut);
    let is_it = |entry: &Entry| entry.get("name").and_then(Item::as_str) == Some(name);
    match tables {
        Some(tables) if tables.iter().any(is_it) => {
            tables.retain(|entry| !is_it(entry));
            Ok(document.to_string())
        }
        _ => Err(format!(
            "there is no token `{}` in it; `fonnctl token list` shows those that are",
            name.escape_debug()
        )),
    }
}

/// A users file that this process has locked.
struct UsersFile {
    /// As it was named.
    path: PathBuf,
    /// Where it is: a mounted secret is a chain of links.
    target: PathBuf,
    file: File,
    text: String,
}

impl UsersFile {
    /// Opens and locks a file. With `creates` one that is not there is made, for its owner alone.
    fn open(path: &Path, creates: bool) -> Result<Self, CtlError> {
        let opened = Self::open_latest(path, creates);
        opened.map_err(|error| {
            let path = path.display();
            CtlError::Input(format!("--entry {path}: cannot open the file: {error}"))
        })
    }

    fn open_latest(path: &Path, creates: bool) -> io::Result<Self> {
        for _ in 0..OPENS_MAX {
            let mut options = OpenOptions::new();
            options.read(true);
            if creates {
                options.append(true).create(true).mode(0o600);
            }
            let mut file = options.open(path)?;
            file.lock()?;
            let target = path.canonicalize()?;
            let (here, there) = (file.metadata()?, target.metadata()?);
            // Another process replaced it before the lock was there.
            if (here.dev(), here.ino()) != (there.dev(), there.ino()) {
                continue;
            }
            let mut text = String::new();
            file.seek(SeekFrom::Start(0))?;
            (&mut file)
                .take(FILE_LEN_MAX + 1)
                .read_to_string(&mut text)?;
            if text.len() as u64 > FILE_LEN_MAX {
                return Err(io::Error::other(
                    "it is longer than 16 MiB, which no users file is",
                ));
            }
            return Ok(Self {
                path: path.to_owned(),
                target,
                file,
                text,
            });
        }
        Err(io::Error::other("other processes replace it all the time"))
    }

    fn refused(&self, why: &str) -> CtlError {
        CtlError::Input(format!("--entry {}: {why}", self.path.display()))
    }

    fn failed(&self, error: &io::Error) -> CtlError {
        self.refused(&format!("cannot write the file: {error}"))
    }

    /// What a server makes of a text in the place of this file's.
    fn check(&self, text: &str) -> Result<Directory, CtlError> {
        Directory::of_text(text, &self.path).map_err(|error| CtlError::Input(error.to_string()))
    }

    /// Appends what `text` has besides that of the file.
    fn append(&mut self, text: &str) -> Result<(), CtlError> {
        let added = text.get(self.text.len()..).unwrap_or_default();
        let written = append_or_undo(&mut self.file, self.text.len() as u64, |file| {
            file.write_all(added.as_bytes())?;
            file.sync_all()
        });
        written.map_err(|error| self.failed(&error))
    }

    /// Puts a file with another text in its place, at once, with the same owner and permissions.
    fn replace(&self, text: &str) -> Result<(), CtlError> {
        let name = self.target.file_name().unwrap_or_default();
        let mut temporary = name.to_owned();
        temporary.push(format!(".{}.new", std::process::id()));
        let temporary = self.target.with_file_name(temporary);
        let written = self.write_beside(&temporary, text);
        written.map_err(|error| {
            // It is of no use, and may not even be there.
            let _ = std::fs::remove_file(&temporary);
            self.failed(&error)
        })
    }

    fn write_beside(&self, temporary: &Path, text: &str) -> io::Result<()> {
        let replaced = self.file.metadata()?;
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(temporary)?;
        file.write_all(text.as_bytes())?;
        // The servers may read it as members of its group.
        keep_owner(&file, &replaced)?;
        file.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))?;
        file.sync_all()?;
        std::fs::rename(temporary, &self.target)
    }
}

/// Appends to a file of this length. What an error leaves of it is cut off: servers would refuse a
/// file with a part of an entry.
fn append_or_undo(
    file: &mut File,
    len: u64,
    append: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    append(file).inspect_err(|_| {
        // The first error is the one to report.
        let _ = file.set_len(len);
    })
}

/// Gives a new file the owner and the group of the file that it replaces.
fn keep_owner(file: &File, replaced: &Metadata) -> io::Result<()> {
    let owner = |it: &Metadata| (it.uid(), it.gid());
    let (uid, gid) = owner(replaced);
    if owner(&file.metadata()?) == (uid, gid) {
        return Ok(());
    }
    fchown(file, Some(uid), Some(gid)).map_err(|error| {
        let message = format!("its owner {uid} and group {gid} cannot be kept: {error}");
        io::Error::new(error.kind(), message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, entry: &Path) -> CreateToken {
        CreateToken {
            name: name.to_owned(),
            role: TokenRole::ReadWrite,
            namespace: "main".to_owned(),
            ttl: None,
            entry: entry.to_owned(),
        }
    }

    fn quiet() -> Output {
        Output::new(true)
    }

    #[test]
    fn a_token_is_added_to_what_is_there_and_taken_away_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        let first = "# ours\n[[namespace]]\nname = 'main' # the trunk\nquota = '20g'";
        std::fs::write(&path, first).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        for name in ["nightly", "weekly"] {
            create(&wanted(name, &path), &quiet()).unwrap();
        }
        let again = create(&wanted("nightly", &path), &quiet()).unwrap_err();
        assert!(
            again.to_string().contains("another token has the name"),
            "{again}"
        );
        let names = || {
            let directory = Directory::load(&path).unwrap();
            let tokens = directory.tokens().into_iter();
            tokens
                .map(|it| it.identity.user.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(), ["nightly", "weekly"]);
        let of = |name: &str| RevokeToken {
            name: name.to_owned(),
            entry: path.clone(),
            yes: true,
        };
        revoke(&of("nightly"), &quiet()).unwrap();
        assert_eq!(names(), ["weekly"]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(first), "{text}");
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o640);
        let gone = revoke(&of("nightly"), &quiet()).unwrap_err().to_string();
        assert!(gone.contains("there is no token `nightly`"), "{gone}");
        // The last one may go too; nothing but the file is left.
        revoke(&of("weekly"), &quiet()).unwrap();
        assert_eq!(names(), [""; 0], "servers accept the file");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_owner_of_the_file_stays_when_a_token_is_revoked() {
        const OWNER: (u32, u32) = (4711, 4712);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        create(&wanted("a", &path), &quiet()).unwrap();
        // Only root can give a file away.
        let is_root = std::os::unix::fs::chown(&path, Some(OWNER.0), Some(OWNER.1)).is_ok();
        let owner = || {
            let metadata = path.metadata().unwrap();
            (metadata.uid(), metadata.gid())
        };
        let before = owner();
        assert_eq!(before == OWNER, is_root);
        let revoked = RevokeToken {
            name: "a".to_owned(),
            entry: path.clone(),
            yes: true,
        };
        revoke(&revoked, &quiet()).unwrap();
        assert_eq!(owner(), before);
    }

    #[test]
    fn an_entry_that_is_not_written_whole_is_taken_back() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"[[token]]\n").unwrap();
        let full = append_or_undo(&mut file, 10, |file| {
            file.write_all(b"[[tok")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.metadata().unwrap().len(), 10);
    }

    #[test]
    fn a_new_file_is_for_its_owner_alone_and_never_has_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.toml");
        create(&wanted("a", &path), &quiet()).unwrap();
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains("fonn_") && text.contains("sha256:"),
            "{text}"
        );
        let list_args = ListTokens { entry: path };
        assert_eq!(list(&list_args, &quiet()).unwrap(), Verdict::Good);
    }

    #[test]
    fn a_file_that_a_server_would_refuse_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        for bad in ["[[user]]\nname = 'a'\n", "colour = 1\n", "["] {
            std::fs::write(&path, bad).unwrap();
            assert!(create(&wanted("a", &path), &quiet()).is_err(), "{bad}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), bad);
        }
    }

    #[test]
    fn a_token_is_not_revoked_if_servers_would_refuse_the_file_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        std::fs::write(&path, "").unwrap();
        create(&wanted("a", &path), &quiet()).unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        // `main` is there because of the token alone.
        text.push_str("[[namespace]]\nname = 'pull'\nbase = 'main'\n");
        std::fs::write(&path, &text).unwrap();
        let revoked = RevokeToken {
            name: "a".to_owned(),
            entry: path.clone(),
            yes: true,
        };
        let refused = revoke(&revoked, &quiet()).unwrap_err().to_string();
        assert!(
            refused.contains("no user is in namespace `main`"),
            "{refused}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_token_lives_as_long_as_is_said_in_whole_seconds() {
        let at = |now_ms, ttl_ms| expiry(now_ms, ttl_ms).map(Expiry::unix_ms);
        assert_eq!(at(1_500, 2_000).unwrap(), 4_000);
        assert!(at(1_500, u128::from(u64::MAX)).is_err());
    }

    #[test]
    fn an_expired_token_is_told_apart() {
        let row = |name: &str, expires: Option<&str>, has_expired| Row {
            name: name.to_owned(),
            role: "read".to_owned(),
            namespace: "main".to_owned(),
            expires: expires.map(str::to_owned),
            has_expired,
        };
        let tokens = vec![
            row("a", None, false),
            row("b", Some("2026-12-24T17:00:00Z"), true),
        ];
        assert_eq!(
            render(&List { tokens }),
            "\
TOKEN  ROLE  NAMESPACE  EXPIRES
a      read  main       never
b      read  main       2026-12-24T17:00:00Z  expired
"
        );
    }
}
