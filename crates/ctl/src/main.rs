//! The admin command.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_ctl::main()
}
