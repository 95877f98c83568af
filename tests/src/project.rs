//! Small projects to compile, generated so that every unit is different.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::process::run;

/// Compiler processes at a time.
const JOBS: usize = 2;

/// A C project of small files.
#[derive(Debug)]
pub struct CProject {
    dir: PathBuf,
    files: usize,
}

impl CProject {
    /// Writes `files` sources below `dir`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn generate(dir: &Path, files: usize) -> Result<Self> {
        fs::create_dir_all(dir)?;
        fs::write(
            dir.join("common.h"),
            "#include <stddef.h>\nstruct item { size_t len; };\n",
        )?;
        for number in 0..files {
            let mut source = String::from("#include \"common.h\"\n");
            for function in 0..20 {
                writeln!(
                    source,
                    "size_t f{number}_{function}(struct item *it, size_t by) {{\n\
                     \x20   for (size_t at = 0; at < it->len; at++) by = by * {} + at;\n\
                     \x20   return by;\n}}",
                    number * 31 + function + 3
                )?;
            }
            fs::write(dir.join(format!("unit{number}.c")), source)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            files,
        })
    }

    /// Number of sources.
    #[must_use]
    pub const fn files(&self) -> usize {
        self.files
    }

    /// Removes what was compiled.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn clean(&self) -> Result<()> {
        for number in 0..self.files {
            let object = self.object(number);
            if object.exists() {
                fs::remove_file(object)?;
            }
        }
        Ok(())
    }

    /// Compiles everything, two files at a time; `before` is called with how many files were
    /// begun before each one.
    ///
    /// # Errors
    /// When a compiler fails, or leaves no object.
    pub fn build(
        &self,
        compiler: impl Fn() -> Command + Sync,
        before: impl Fn(usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            let jobs: Vec<_> = (0..JOBS)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        loop {
                            let number = next.fetch_add(1, Ordering::Relaxed);
                            if number >= self.files {
                                return Ok(());
                            }
                            before(number)?;
                            let mut command = compiler();
                            command.current_dir(&self.dir).args(["-O1", "-c"]);
                            command
                                .arg(format!("unit{number}.c"))
                                .arg("-o")
                                .arg(self.object(number));
                            run(&mut command)?;
                        }
                    })
                })
                .collect();
            jobs.into_iter()
                .try_for_each(|job| job.join().map_err(|_| anyhow!("a job panicked"))?)
        })?;
        for number in 0..self.files {
            let object = self.object(number);
            fs::metadata(&object).with_context(|| format!("no {}", object.display()))?;
        }
        Ok(())
    }

    fn object(&self, number: usize) -> PathBuf {
        self.dir.join(format!("unit{number}.o"))
    }
}

/// A Rust workspace of three libraries that need nothing from a registry.
#[derive(Debug)]
pub struct RustProject {
    dir: PathBuf,
}

impl RustProject {
    /// Libraries of the project; sccache does not cache programs.
    pub const LIBRARIES: usize = 3;

    /// Writes the sources below `dir`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn generate(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        fs::write(
            dir.join("Cargo.toml"),
            "[workspace]\nresolver = \"2\"\nmembers = [\"base\", \"middle\", \"top\"]\n",
        )?;
        for (name, needs) in [("base", ""), ("middle", "base"), ("top", "middle")] {
            let library = dir.join(name);
            fs::create_dir_all(library.join("src"))?;
            let dependency = match needs {
                "" => String::new(),
                needs => format!("{needs} = {{ path = \"../{needs}\" }}\n"),
            };
            fs::write(
                library.join("Cargo.toml"),
                format!(
                    "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n\
                     [dependencies]\n{dependency}"
                ),
            )?;
            let inner = match needs {
                "" => "n".to_owned(),
                needs => format!("{needs}::work(n)"),
            };
            let source =
                format!("pub fn work(n: u64) -> u64 {{ {inner}.rotate_left(7) ^ 0x5a }}\n");
            fs::write(library.join("src/lib.rs"), source)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Removes what was compiled.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn clean(&self) -> Result<()> {
        let target = self.dir.join("target");
        if target.exists() {
            fs::remove_dir_all(target)?;
        }
        Ok(())
    }

    /// Compiles everything with `wrapper` in front of the compiler.
    ///
    /// # Errors
    /// When a compiler fails, or leaves no object.
    pub fn build(&self, wrapper: &Path, environment: &[(String, String)]) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .current_dir(&self.dir)
            .args(["build", "--offline", "--quiet"]);
        command.arg("--target-dir").arg(self.dir.join("target"));
        command
            .env("RUSTC_WRAPPER", wrapper)
            .env("CARGO_INCREMENTAL", "0");
        command
            .env_remove("CARGO_BUILD_RUSTC_WRAPPER")
            .env_remove("CARGO_TARGET_DIR");
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        run(&mut command).map(drop)
    }
}
