//! The binder daemon.

use std::process::ExitCode;

fn main() -> ExitCode {
    headroom_binderd::main()
}
