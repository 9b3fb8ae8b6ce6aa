//! A daemon for a test, and processes that allocate memory.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod cgroup;
pub mod daemon;
pub mod directory;
pub mod helper;
pub mod hog;
pub mod journal;
pub mod leaser;
pub mod place;
pub mod reclaimer;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub use test_support::privileged;

/// Timeout of each wait.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// One MiB.
pub const MIB: u64 = 1 << 20;

/// Retries until there is a result; panics with `what` after the timeout.
pub fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "in {PATIENCE:?} it did not happen that {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Compiles a C file of this folder, with further arguments of the compiler.
pub fn compile(source: &str, output: &Path, arguments: &[impl AsRef<OsStr>]) {
    let done = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(output)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(source))
        .args(arguments)
        .output()
        .expect("a C compiler");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Makes the program that holds memory, for all users. A machine of the lab has no compiler.
pub fn make_holder(output: &Path) {
    match std::env::var_os("HEADROOM_HOLDER") {
        Some(built) => drop(std::fs::copy(built, output).unwrap()),
        None => compile("holder.c", output, &["-std=gnu11", "-O1", "-pthread"]),
    }
}
