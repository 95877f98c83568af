//! Object files and what sccache stores of them, by compiling zstd's C sources, which building this
//! crate has put on the disk.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::sources::Corpus;

/// The corpora `objects` and `sccache`, or as much of them as this machine can make.
pub fn corpora(len: usize) -> Vec<Corpus> {
    let sources = sources();
    if sources.is_empty() {
        eprintln!("objects, sccache: left out, no zstd-sys in cargo's registry (CARGO_HOME)");
        return Vec::new();
    }
    let directory = tempfile::tempdir().unwrap();
    let sccache = Sccache::find(directory.path());
    if sccache.is_none() {
        eprintln!(
            "sccache: left out, there is no sccache: put it on the PATH, or set FONN_BENCH_SCCACHE"
        );
    }
    let mut objects = Vec::new();
    let mut total = 0;
    for (index, source) in sources.iter().enumerate() {
        let object = directory.path().join(format!("{index}.o"));
        let compiler = match &sccache {
            Some(sccache) => sccache.command(["cc"]),
            None => Command::new("cc"),
        };
        let compiled = silent(compiler)
            .args(["-O1", "-g", "-DZSTD_DISABLE_ASM", "-c"])
            .arg(source)
            .arg("-o")
            .arg(&object)
            .status();
        if !compiled.is_ok_and(|status| status.success()) {
            continue;
        }
        let bytes = fs::read(&object).unwrap();
        total += bytes.len();
        objects.push(bytes);
        if total >= len {
            break;
        }
    }
    let mut corpora = Vec::new();
    if objects.is_empty() {
        eprintln!("objects, sccache: left out, nothing could be compiled with cc");
        return corpora;
    }
    let note = "object files with debug information (zstd, cc -O1 -g), each a value";
    corpora.push(Corpus::of("objects", objects, note));
    if let Some(sccache) = sccache {
        let mut entries = Vec::new();
        read_all(&sccache.cache, &mut entries);
        let note = "the entries that sccache stored for them";
        corpora.push(Corpus::of("sccache", entries, note));
    }
    corpora
}

/// An sccache server with a directory of its own, apart from any that the user runs.
struct Sccache {
    program: OsString,
    cache: PathBuf,
    variables: [(&'static str, PathBuf); 3],
}

impl Sccache {
    fn find(directory: &Path) -> Option<Self> {
        let program = std::env::var_os("FONN_BENCH_SCCACHE").unwrap_or_else(|| "sccache".into());
        let cache = directory.join("cache");
        let this = Self {
            program,
            variables: [
                ("SCCACHE_DIR", cache.clone()),
                ("SCCACHE_SERVER_UDS", directory.join("socket")),
                // Does not exist: no configuration of the user's.
                ("SCCACHE_CONF", directory.join("none.toml")),
            ],
            cache,
        };
        let version = silent(this.command(["--version"])).status();
        version.is_ok_and(|status| status.success()).then_some(this)
    }

    fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SCCACHE_") {
                command.env_remove(name);
            }
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(arguments);
        command
    }
}

impl Drop for Sccache {
    fn drop(&mut self) {
        let _ = silent(self.command(["--stop-server"])).status();
    }
}

fn silent(mut command: Command) -> Command {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// zstd's C sources, as cargo unpacked them; a few of each kind come first.
fn sources() -> Vec<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let Some(registry) = home.map(|home| home.join("registry/src")) else {
        return Vec::new();
    };
    let is_zstd = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("zstd-sys-")
    };
    let Some(zstd) = children(&registry)
        .iter()
        .flat_map(|index| children(index))
        .filter(is_zstd)
        .max()
    else {
        return Vec::new();
    };
    let mut sources: Vec<_> = ["decompress", "common", "dictBuilder", "compress", "legacy"]
        .iter()
        .flat_map(|part| children(&zstd.join("zstd/lib").join(part)))
        .filter(|path| path.extension() == Some(OsStr::new("c")))
        .collect();
    // In any order that is not by directory, and the same each time.
    sources.sort_by_key(|path| path.file_name().map(|name| name.to_owned()));
    sources
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn read_all(directory: &Path, into: &mut Vec<Vec<u8>>) {
    for path in children(directory) {
        if path.is_dir() {
            // What sccache notes about included files never leaves the machine.
            if path.file_name() != Some(OsStr::new("preprocessor")) {
                read_all(&path, into);
            }
        } else if let Ok(bytes) = fs::read(&path) {
            into.push(bytes);
        }
    }
}
