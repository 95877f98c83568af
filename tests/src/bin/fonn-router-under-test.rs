//! The router as the suites start it: Cargo builds this package's programs before its tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_router::cli::main_as(&fonn_tests::release::under_test())
}
