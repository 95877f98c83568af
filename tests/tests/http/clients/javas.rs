//! Gradle, and Maven with its build cache extension.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use tempfile::TempDir;

use fonn_tests::component::{present, program};

use super::scripts::{remove, said, write};
use super::{Build, Endpoint, Found, Tool};

/// The tools of this file that are installed.
///
/// # Errors
/// In CI, when one is missing.
pub(super) fn all() -> Result<Vec<Box<dyn Tool>>> {
    let mut tools: Vec<Box<dyn Tool>> = Vec::new();
    if let Some(program) = program("gradle")? {
        tools.push(Box::new(Gradle::new(program)?));
    }
    if let Some(program) = program("maven")? {
        let repository = program.with_file_name("maven-repository");
        let repository = present(
            "the repository of maven",
            repository.is_dir().then_some(repository),
        )?;
        if let Some(repository) = repository {
            tools.push(Box::new(Maven::new(program, repository)?));
        }
    }
    Ok(tools)
}

/// A project of Gradle with one task, which tells the time. The daemon of Gradle ends with it.
struct Gradle {
    program: PathBuf,
    dir: TempDir,
}

impl Gradle {
    fn new(program: PathBuf) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let task = "task make {\n    outputs.file 'out'\n    outputs.cacheIf { true }\n    \
                    doLast { file('out').text = System.nanoTime() }\n}\n";
        let files = [
            ("p/build.gradle", task),
            (
                "home/gradle.properties",
                "org.gradle.daemon.idletimeout=60000\n",
            ),
        ];
        write(dir.path(), &files)?;
        Ok(Self { program, dir })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-g").arg(self.dir.path().join("home"));
        command.current_dir(self.dir.path().join("p"));
        command
    }
}

impl Drop for Gradle {
    fn drop(&mut self) {
        // Else it ends by itself after a minute.
        let _ = self.command().arg("--stop").output();
    }
}

impl Tool for Gradle {
    fn name(&self) -> String {
        "Gradle".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let project = self.dir.path().join("p");
        remove(&project, &[".gradle", "out"])?;
        remove(&self.dir.path().join("home"), &["caches/build-cache-1"])?;
        // The local cache of Gradle would answer first.
        let lines = at.lines("Gradle")?;
        let settings = format!("{lines}\nbuildCache {{ local {{ enabled = false }} }}\n");
        fs::write(project.join("settings.gradle"), settings)?;
        let mut command = self.command();
        command.args(["--build-cache", "--console=plain", "make"]);
        let said = said(&mut command)?;
        Ok(Build {
            found: Found::all_if(said.contains(":make FROM-CACHE")),
            output: fs::read(project.join("out"))?,
            said,
        })
    }
}

/// A project of Maven with one class. What Maven needs of a repository is in one beside the
/// program.
struct Maven {
    program: PathBuf,
    repository: PathBuf,
    dir: TempDir,
}

impl Maven {
    fn new(program: PathBuf, repository: PathBuf) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let files = [
            ("p/pom.xml", include_str!("maven/pom.xml")),
            (
                "p/.mvn/extensions.xml",
                include_str!("maven/extensions.xml"),
            ),
            ("p/src/main/java/A.java", "class A {}\n"),
        ];
        write(dir.path(), &files)?;
        Ok(Self {
            program,
            repository,
            dir,
        })
    }
}

impl Tool for Maven {
    fn name(&self) -> String {
        "Maven".to_owned()
    }

    fn build(&self, at: &Endpoint) -> Result<Build> {
        let project = self.dir.path().join("p");
        remove(self.dir.path(), &["cache", "p/target"])?;
        // The times in a jar are of two seconds, so two of them can be equal. The jar takes this
        // file along, which is no input of the cache.
        let stamp = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        write(&project, &[("target/classes/stamp", &stamp.to_string())])?;
        let blocks = at.blocks("Maven")?;
        let remote = blocks.first().context("no element of the remote cache")?;
        let configuration = format!("<cache><configuration>{remote}</configuration></cache>");
        let file = project.join(".mvn/maven-build-cache-config.xml");
        fs::write(file, configuration)?;
        let mut servers = String::new();
        if at.token.is_some() {
            let server = blocks.last().context("no element of the server")?;
            servers = format!("<servers>{server}</servers>");
        }
        let settings = self.dir.path().join("settings.xml");
        fs::write(&settings, format!("<settings>{servers}</settings>"))?;
        let of = |name: &str, path: &PathBuf| format!("-D{name}={}", path.display());
        let mut command = Command::new(&self.program);
        command
            .args(["--batch-mode", "--offline", "--settings"])
            .arg(&settings);
        command.arg(of("maven.repo.local", &self.repository));
        command.arg(of(
            "maven.build.cache.location",
            &self.dir.path().join("cache"),
        ));
        // A start of Java that compiles little of itself is a shorter one.
        command.env("MAVEN_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC");
        let said = said(command.arg("package").current_dir(&project))?;
        let jar = project.join("target/a-1.jar");
        let jar = fs::read(&jar).with_context(|| format!("no {}:\n{said}", jar.display()))?;
        Ok(Build {
            found: Found::all_if(said.contains("Skipping plugin execution (cached): jar:jar")),
            output: jar,
            said,
        })
    }
}
