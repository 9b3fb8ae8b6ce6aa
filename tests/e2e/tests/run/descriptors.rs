//! `headroom run --fd-passing`: files passed by seccomp, and the effects on processes under the
//! filter.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{
    NOBODY, Outcome, Session, TOKEN, expect_no_process_with, headroom, kill, outcome, process_with,
    program, skipped,
};

fn files_service(action: &str) -> String {
    let uid = rustix::process::geteuid().as_raw();
    let uid = if uid == 0 { NOBODY } else { uid };
    format!("{} /dev/binder {action} {uid}", program("peer"))
}

fn send_files(how: &str, service: &str) -> Outcome {
    let peer = program("peer");
    let args = ["run", "--fd-passing", how, "--service-manager", service, "--", &peer];
    outcome(headroom().args(args).args(["/dev/binder", "files-cost", "100"]))
}

#[test]
fn files_reach_clients_by_seccomp_and_by_ptrace() {
    if skipped() {
        return;
    }
    for how in ["seccomp", "ptrace", "auto"] {
        for action in ["files", "files-interrupted"] {
            let ended = send_files(how, &files_service(action));
            assert_eq!(ended.code, Some(0), "{how}, {action}: {ended:?}");
            assert!(ended.out.contains("with one: median"), "{how}, {action}: {ended:?}");
            assert_eq!(ended.err, "ready\n", "the service manager alone: {how}, {action}");
        }
    }
}

#[test]
fn a_client_under_a_debugger_gets_its_files_by_seccomp() {
    if skipped() {
        return;
    }
    let ended = send_files("seccomp", &files_service("files-traced"));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let ended = send_files("ptrace", &files_service("files-traced"));
    assert_eq!(ended.code, Some(1), "there it gets none: {ended:?}");
}

/// The daemon of a session may not suspend a filter.
#[test]
fn a_sandboxed_receiver_in_a_session_gets_no_files_by_ptrace_and_lives() {
    if skipped() {
        return;
    }
    let service = files_service("files-sandboxed");
    let (peer, call) = (program("peer"), "/dev/binder");
    let script = format!(
        "{peer} {call} files-cost 1; echo with files: $?; \
         {peer} {call} calls 3 && echo it serves calls"
    );
    let args = ["run", "--no-ring", "--fd-passing", "ptrace", "--service-manager", &service];
    let ended = outcome(headroom().args(args).args(["--", "sh", "-c", &script]));
    assert!(ended.out.contains("with files: 1\n"), "{ended:?}");
    assert!(ended.out.contains("it serves calls\n"), "{ended:?}");
}

#[test]
fn a_nested_session_with_a_filter_falls_back_to_ptrace_and_reports_it() {
    if skipped() {
        return;
    }
    let (ours, peer, service) = (program("headroom"), program("peer"), files_service("files"));
    let inner = [&ours, "run", "--fd-passing", "seccomp", "--service-manager", &service, "--"];
    let mut command = headroom();
    command.args(["run", "--fd-passing", "seccomp", "--"]).args(inner);
    let ended = outcome(command.args([&peer, "/dev/binder", "files-cost", "100"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains("using ptrace"), "{ended:?}");
}

/// Results of callers whose daemon is killed: while they wait for it, while they are trapped, and
/// later.
fn callers_of_a_killed_daemon(how: &str, delay: Duration) -> Outcome {
    let token = format!("descriptors-{how}-{}-{delay:?}", std::process::id());
    let peer = program("peer");
    let manager = format!("{peer} /dev/binder manager 2");
    let callers = (0..4).map(|n| format!("{peer} /dev/binder caller manager 100000000 {n} & "));
    let script = format!("{} wait; echo over", callers.collect::<String>());
    let mut command = headroom();
    command.args(["run", "--fd-passing", how, "--service-manager", &manager]);
    command.args(["--", "sh", "-c", &script]).env(TOKEN, &token);
    let mut session = Session::of(command);
    // They also print the number of their calls.
    let mut ready = 0;
    while ready < 4 {
        ready += u32::from(session.line() == "ready");
    }
    std::thread::sleep(delay);
    kill(process_with(&token, "headroom-binderd"), Signal::KILL);
    let ended = session.end();
    expect_no_process_with(&token);
    ended
}

#[test]
fn a_killed_daemon_leaves_no_thread_in_the_trap() {
    if skipped() {
        return;
    }
    for round in 0..10 {
        let ended = callers_of_a_killed_daemon("seccomp", Duration::from_micros(round * 3700));
        assert!(ended.out.ends_with("over\n"), "{ended:?}");
        assert!(ended.err.contains(" is gone while the command runs"), "{ended:?}");
        let not_implemented = std::io::Error::from_raw_os_error(libc::ENOSYS).to_string();
        assert!(!ended.err.contains(&not_implemented), "as without a filter: {ended:?}");
        assert!(!ended.err.contains("ENOSYS"), "as without a filter: {ended:?}");
    }
    let ended = callers_of_a_killed_daemon("ptrace", Duration::ZERO);
    assert!(ended.out.ends_with("over\n"), "{ended:?}");
}

#[test]
fn nothing_is_left_when_headroom_is_killed_with_a_filter() {
    if skipped() {
        return;
    }
    let token = format!("descriptors-killed-{}", std::process::id());
    let peer = program("peer");
    let manager = format!("{peer} /dev/binder manager 1");
    let mut command = headroom();
    command.args(["run", "--fd-passing", "seccomp", "--service-manager", &manager]);
    command.args(["--", &peer, "/dev/binder", "caller", "manager", "100000000", "1"]);
    command.env(TOKEN, &token);
    let mut session = Session::of(command);
    assert_eq!(session.line(), "ready");
    kill(session.child.id(), Signal::KILL);
    expect_no_process_with(&token);
}
