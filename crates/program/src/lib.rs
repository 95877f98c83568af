//! The frame around the life of node and router: the configuration is checked, the log begins, the
//! program runs, and its end is an exit code. The settings that both have are here too.

mod common;
mod fields;
mod http;
pub mod security;

use std::error::Error;
use std::future::Future;
use std::io::{self, Write as _};
use std::process::ExitCode;

use fonn_auth::Security;
use fonn_base::allocator::{self, Allocator};
use fonn_base::causes::with_causes;
use fonn_base::config::{EXIT_CLEAN, EXIT_CONFIG, EXIT_FAILURE, Early, FileWatch};
use fonn_base::size::ByteCount;
use fonn_base::telemetry::{self, LogControl};

pub use self::common::{CommonConfig, CommonSettings, LogSettings};
pub use self::fields::{HostPort, OrNone, max_value, one_or_many, ram_budget};
pub use self::http::HttpConfig;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// What is there when the program begins.
pub struct Prepared {
    /// Users and certificates, as they were read.
    pub security: Security,
    /// The files that they were read from, watched since before that.
    pub files: FileWatch,
    /// Changes what is logged.
    pub log: LogControl,
}

/// Runs a program on a runtime of the thread that calls it, with at most `blocking_threads` beside
/// it; the whole of `main`. `frame` gives what is in effect before the program runs: the common
/// settings, and the bytes that the allocator is set up for. What goes wrong is one line on
/// standard error.
pub fn run<C, F, E>(
    config: Result<C, Early>,
    frame: fn(&C) -> (&CommonConfig, ByteCount),
    blocking_threads: usize,
    program: impl FnOnce(C, Prepared) -> F,
) -> ExitCode
where
    F: Future<Output = Result<(), E>>,
    E: AsRef<dyn Error>,
{
    let config = match config {
        Ok(config) => config,
        Err(early) => return early.report(),
    };
    let prepared = match prepare(frame(&config)) {
        Ok(prepared) => prepared,
        Err((error, code)) => return fail(&with_causes(&*error), code),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}"), EXIT_FAILURE),
    };
    let result = runtime.block_on(program(config, prepared));
    // What still blocks was given its time.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::from(EXIT_CLEAN),
        Err(error) => fail(&with_causes(error.as_ref()), EXIT_FAILURE),
    }
}

fn prepare(
    (common, ram_budget): (&CommonConfig, ByteCount),
) -> Result<Prepared, (Box<dyn Error>, u8)> {
    // Files that settings name are settings too.
    let files = common.security.watch();
    let security = match common.security.load(common.insecure) {
        Ok(security) => security,
        Err(error) => return Err((Box::new(error), EXIT_CONFIG)),
    };
    allocator::configure(ram_budget.as_usize());
    let log = match telemetry::init(&common.log, common.log_format) {
        Ok(log) => log,
        Err(error) => return Err((Box::new(error), EXIT_FAILURE)),
    };
    // The files were read before there was a log.
    common.security.warn_of_no_logins(&security);
    security::SecurityConfig::warn_of_expiry(&security);
    Ok(Prepared {
        security,
        files,
        log,
    })
}

fn fail(text: &str, code: u8) -> ExitCode {
    // There is no other place to report it when standard error is closed.
    let _ = writeln!(io::stderr(), "error: {text}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use fonn_base::config::ConfigError;

    use super::*;

    #[test]
    fn a_program_without_a_configuration_does_not_run() {
        struct Config;
        let expected = ConfigError::invalid("--x", "y", "z");
        let begun = std::cell::Cell::new(false);
        let code = run(
            Err::<Config, Early>(expected.into()),
            |_| unreachable!("there is no configuration"),
            1,
            |_, _| {
                begun.set(true);
                async { Ok::<(), Box<dyn Error>>(()) }
            },
        );
        assert_eq!(code, ExitCode::from(EXIT_CONFIG));
        assert!(!begun.get());
    }
}
