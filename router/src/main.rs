//! The router.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_router::cli::main()
}
