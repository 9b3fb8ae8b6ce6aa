//! `headroom run`: a bus for one command, as a user without any privilege.

mod descriptors;
mod endings;
mod musl;
mod places;
mod programs;
mod raw_client;
mod support;
mod terminal;
mod upgrade;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use support::{NOBODY, RING_LIBRARY, Session, headroom, outcome, program, run_script, skipped};

#[test]
fn clients_find_the_bus_where_they_look_and_call_each_other() {
    if skipped() {
        return;
    }
    let peer = program("peer");
    let manager = format!("{peer} /dev/binder manager 1");
    let script = format!(
        "{peer} /dev/binderfs/binder echo service & \
         {peer} $HEADROOM_BINDER/binder caller service 200 1 && {peer} /dev/binder call service"
    );
    let args = ["run", "--service-manager", &manager, "--", "sh", "-c", &script];
    let ended = outcome(headroom().args(args));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.ends_with("answered\n"), "{ended:?}");
}

/// Calls of a session; the result says whether its service has a ring.
fn has_ring(options: &[&str], program_of_calls: &str) -> bool {
    let script = format!(
        "{program_of_calls} /dev/binder echo service & \
         {program_of_calls} /dev/binder caller service 200 1 && \
         grep -c memfd:binder-ring /proc/$!/maps; echo the end"
    );
    let manager = format!("{} /dev/binder manager 1", program("peer"));
    let mut command = headroom();
    command.args(["run", "--service-manager", &manager]).args(options);
    let ended = outcome(command.args(["--", "sh", "-c", &script]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.ends_with("the end\n"), "{ended:?}");
    assert_eq!(ended.err, "ready\n", "{ended:?}");
    !ended.out.ends_with("\n0\nthe end\n")
}

#[test]
fn calls_use_rings_unless_told_otherwise() {
    if skipped() {
        return;
    }
    let peer = program("peer");
    assert!(has_ring(&[], &peer));
    assert!(!has_ring(&["--no-ring"], &peer));
    // As in the environment of another bus.
    let attach = format!("env -u LD_PRELOAD {} binder attach", program("headroom"));
    let named = format!("{attach} --library {} -- {peer}", program(RING_LIBRARY));
    let attach = format!("{attach} -- {peer}");
    assert!(has_ring(&[], &attach));
    assert!(has_ring(&[], &named));
    assert!(!has_ring(&["--no-ring"], &attach));
}

#[test]
fn programs_that_check_the_order_of_their_libraries_start() {
    if skipped() {
        return;
    }
    let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir();
    let folder = folder.unwrap();
    let (source, program) = (folder.path().join("main.c"), folder.path().join("main"));
    fs::write(&source, "int main(void) { return 7; }").unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.arg("-fsanitize=address").arg(&source).arg("-o").arg(&program);
    assert!(cc.status().unwrap().success());
    // An option of the user's stays.
    for (options, code) in [("", 7), ("verify_asan_link_order=1", 1)] {
        let mut command = headroom();
        command.arg("run").arg("--").arg(&program).env("ASAN_OPTIONS", options);
        let ended = outcome(&mut command);
        assert_eq!(ended.code, Some(code), "{options}: {ended:?}");
    }
}

#[test]
fn files_are_passed_between_clients_of_a_session() {
    if skipped() {
        return;
    }
    let (peer, uid) = (program("peer"), rustix::process::geteuid().as_raw());
    let uid = if uid == 0 { NOBODY } else { uid };
    let manager = format!("{peer} /dev/binder files {uid}");
    let args =
        ["run", "--service-manager", &manager, "--", &peer, "/dev/binder", "files-cost", "20"];
    let ended = outcome(headroom().args(args));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.contains("with one: median"), "{ended:?}");
}

#[test]
fn the_command_keeps_its_uid_and_has_no_privilege() {
    if skipped() {
        return;
    }
    let before = outcome(std::process::Command::new("id").arg("-u"));
    let ended =
        run_script("id -u; id -g; grep CapEff: /proc/self/status; grep CapAmb: /proc/self/status");
    let uid = if before.out == "0\n" { format!("{NOBODY}") } else { before.out.trim().to_owned() };
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[0], uid, "{ended:?}");
    assert_eq!(lines[2..], ["CapEff:\t0000000000000000", "CapAmb:\t0000000000000000"], "{ended:?}");
}

#[test]
fn the_command_line_tools_find_the_daemon_of_the_session() {
    if skipped() {
        return;
    }
    let script =
        format!("{} binder ls && {} --json status", program("headroom"), program("headroom"));
    let ended = run_script(&script);
    assert!(ended.out.starts_with("binder  no context manager, 0 processes\n"), "{ended:?}");
    assert!(ended.out.contains("notify-store"), "{ended:?}");
    assert_eq!(ended.err, "", "nothing is missing that a session could have");
}

#[test]
fn sessions_do_not_see_each_other() {
    if skipped() {
        return;
    }
    let peer = program("peer");
    let manager = format!("{peer} /dev/binder manager 1");
    let with = |command: &[&str]| {
        let mut run = headroom();
        run.args(["run", "--service-manager", &manager, "--"]).args(command);
        run
    };
    let mut first = Session::of(with(&["sh", "-c", "echo ready; exec sleep 1000"]));
    assert_eq!(first.line(), "ready");
    let ended = run_script(&format!("{} binder ls", program("headroom")));
    assert!(ended.out.starts_with("binder  no context manager, 0 processes\n"), "{ended:?}");
    drop(first);
    let nested = [&program("headroom"), "run", "--service-manager", &manager, "--", "true"];
    let ended = outcome(&mut with(&nested));
    assert_eq!(ended.code, Some(0), "a session in a session: {ended:?}");
}

#[test]
fn a_service_manager_that_ends_at_once_is_reported() {
    if skipped() {
        return;
    }
    let args = ["run", "--service-manager", "echo no rules >&2; exit 3", "--", "true"];
    let ended = outcome(headroom().args(args));
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(ended.err.starts_with("no rules\n") && ended.err.contains("exit code 3"), "{ended:?}");
    let ended = outcome(headroom().args(["run", "--service-manager", "no_such_hub", "--", "true"]));
    assert_eq!(ended.code, Some(125), "{ended:?}");
    assert!(
        ended.err.contains("is it installed? `--service-manager` without a value"),
        "{ended:?}"
    );
}

#[test]
fn forbidden_user_namespaces_are_reported_with_the_setting() {
    if skipped() {
        return;
    }
    // In a namespace in which the limit of nested ones is 0, without the privilege that makes one
    // unnecessary.
    let script = format!(
        "echo 0 >/proc/sys/user/max_user_namespaces && \
         exec setpriv --bounding-set -sys_admin {} run -- true",
        program("headroom")
    );
    let mut command = std::process::Command::new("unshare");
    let ended = outcome(command.args(["--user", "--map-root-user", "sh", "-c", &script]));
    assert_eq!(ended.code, Some(125), "{ended:?}");
    let remedy =
        "user.max_user_namespaces is 0: `sysctl user.max_user_namespaces=10000` as root allows it";
    assert!(ended.err.contains(remedy), "{ended:?}");
}

#[test]
fn root_gets_the_fast_mapping_and_no_user_namespace() {
    if skipped() || !test_support::privileged() {
        return;
    }
    let mut command = std::process::Command::new(program("headroom"));
    let script = format!("readlink /proc/self/ns/user; {} status", program("headroom"));
    let ended = outcome(command.args(["run", "--", "sh", "-c", &script]));
    let ours = fs::read_link("/proc/self/ns/user").unwrap();
    assert!(ended.out.starts_with(ours.to_str().unwrap()), "{ended:?}");
    assert!(ended.out.contains("mapping: "), "{ended:?}");
}

#[test]
fn root_of_a_container_that_may_do_less_has_a_bus_too() {
    if skipped() || !test_support::privileged() {
        return;
    }
    let (peer, headroom) = (program("peer"), program("headroom"));
    let manager = format!("{peer} /dev/binder manager 1");
    for lacking in ["-sys_ptrace", "-sys_admin,-sys_ptrace"] {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--bounding-set", lacking, &headroom, "run", "--service-manager", &manager]);
        let ended = outcome(command.args(["--", &peer, "/dev/binder", "call", "manager"]));
        assert_eq!(ended.code, Some(0), "{lacking}: {ended:?}");
        assert_eq!(ended.out, "ready\nanswered\n", "{lacking}");
    }
}
