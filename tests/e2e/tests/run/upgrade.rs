//! Upgrades of a session's daemon.

use crate::support::{NOBODY, Outcome, headroom, outcome, program, skipped};

/// Runs a session whose daemon is upgraded by its user while files are passed in it.
fn upgraded(fd_passing: &str) -> Outcome {
    let (peer, uid) = (program("peer"), rustix::process::geteuid().as_raw());
    let uid = if uid == 0 { NOBODY } else { uid };
    let manager = format!("{peer} /dev/binder files {uid}");
    let script = format!(
        "{peer} /dev/binder files-cost 200 & client=$!
         for upgrade in 1 2 3; do {} binder upgrade || exit; done
         wait $client",
        program("headroom")
    );
    let args = ["run", "--fd-passing", fd_passing, "--service-manager", &manager, "--"];
    outcome(headroom().args(args).args(["sh", "-c", &script]))
}

#[test]
fn the_user_of_a_session_upgrades_its_daemon_which_keeps_its_capabilities() {
    if skipped() {
        return;
    }
    let ended = upgraded("ptrace");
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("with one: median"), "files are passed: {ended:?}");
    let upgrades = ended.out.lines().filter(|line| line.starts_with("upgraded from "));
    assert_eq!(upgrades.count(), 3, "{ended:?}");
}

#[test]
fn a_daemon_that_serves_seccomp_filters_is_not_upgraded() {
    if skipped() {
        return;
    }
    let ended = upgraded("seccomp");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("clients run under seccomp filters"), "{ended:?}");
}
