//! A storage helper of ccache (4.13 and later) that keeps entries in Fonn.
//!
//! ccache starts the program `ccache-storage-fonn` for a URL `fonn://HOST:PORT/PREFIX` and speaks
//! to it over a Unix socket. All ccache processes of a build share the helper, and so its
//! connections to the server. The helper ends when ccache has been idle, or says so.
//!
//! It is not a cache: it keeps no entry. Its invariants:
//! - The build goes on. A server that is slow, refuses or is unreachable costs hits, within the
//!   deadline. Malformed settings too are told over the socket, because ccache waits ten seconds in
//!   each compilation for a helper that ended.
//! - An entry reaches ccache whole or not at all.
//! - Connections, requests, values, memory and time are bounded.

mod clock;
#[doc(hidden)]
pub mod fuzzing;
mod protocol;
mod server;
mod service;
mod session;
mod settings;

use std::io::Write as _;
use std::process::ExitCode;

use self::server::Listening;
use self::service::Service;
use self::settings::Settings;

/// Runs the helper; the whole of `main`.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // ccache connects the standard error of a helper to nothing; a shell shows it.
            let _ = writeln!(std::io::stderr(), "ccache-storage-fonn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listening = Listening::bind(&settings.endpoint)?;
        let service = Service::new(settings.target);
        listening.serve(service, settings.idle_timeout).await;
        Ok(())
    })
}
