//! The node.

use std::process::ExitCode;

fn main() -> ExitCode {
    fonn_node::cli::main()
}
