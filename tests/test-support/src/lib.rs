//! Code that only tests share. No shipped program depends on it.

pub mod allocations;
mod decision;
pub mod documents;
pub mod helper;
pub mod hung;
pub mod lingering;
pub mod programs;

use std::fmt;
use std::thread::JoinHandle;

use control::Uid;
pub use decision::decision;

/// Name of the variable that forbids skips: `all`, which `.ci/run` sets.
const REQUIRE: &str = "HEADROOM_TESTS_REQUIRE";

/// Whether the test has root privileges. Otherwise reports that it is skipped, and the caller
/// returns.
pub fn privileged() -> bool {
    // SAFETY: geteuid has no requirements and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skip("needs root");
    }
    root
}

/// Starts a thread with the credentials of another user, which needs root. Credentials are per
/// thread; those of the test's other threads stay the same.
pub fn spawn_as<T: Send + 'static>(
    uid: Uid,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        // SAFETY: integers only. The raw call changes the calling thread only.
        let failed = unsafe { libc::syscall(libc::SYS_setresuid, uid.0, uid.0, uid.0) };
        assert_eq!(failed, 0, "setresuid({uid}): {}", std::io::Error::last_os_error());
        work()
    })
}

/// Reports that this machine lacks a feature that a test needs; the caller returns after it. If
/// every test is required, that is a failure: a skipped test hides a regression.
pub fn skip(reason: impl fmt::Display) {
    match std::env::var_os(REQUIRE) {
        Some(value) if value == "all" => {
            panic!("{REQUIRE}=all, and this test cannot run: {reason}")
        }
        _ => eprintln!("skipped: {reason}"),
    }
}
