//! Ends of sessions: by exit, by signals, by SIGKILL.

use e2e::wait;
use rustix::process::Signal;

use crate::support::{
    Session, expect_no_process_with, headroom, kill, outcome, process_with, processes_with,
    program, run_script, skipped,
};

/// A token that is unique to a test.
fn token(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    if skipped() {
        return;
    }
    for (script, code) in
        [("true", 0), ("exit 7", 7), ("kill -SEGV $$", 139), ("kill -KILL $$", 137)]
    {
        assert_eq!(run_script(script).code, Some(code), "{script}");
    }
    let missing = outcome(headroom().args(["run", "--", "no-such-program-anywhere"]));
    assert_eq!(missing.code, Some(127), "{missing:?}");
    assert!(missing.err.contains("no-such-program-anywhere"), "{missing:?}");
    let folder = outcome(headroom().args(["run", "--", "/etc"]));
    assert_eq!(folder.code, Some(126), "{folder:?}");
    assert_eq!(outcome(headroom().args(["run", "--"])).code, Some(2), "usage");
}

#[test]
fn signals_are_passed_on_to_the_command() {
    if skipped() {
        return;
    }
    for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("USR1", Signal::USR1)] {
        let script = format!(
            "trap 'echo received; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut session = Session::start(&script, &token("signals"));
        assert_eq!(session.line(), "ready");
        kill(session.child.id(), signal);
        let ended = session.end();
        assert_eq!((ended.code, ended.out.as_str()), (Some(9), "received\n"), "{name}: {ended:?}");
    }
    let mut session = Session::start("echo ready; exec sleep 1000", &token("default"));
    assert_eq!(session.line(), "ready");
    kill(session.child.id(), Signal::TERM);
    assert_eq!(session.end().code, Some(143), "the default action counts too");
}

#[test]
fn processes_left_by_the_command_are_ended() {
    if skipped() {
        return;
    }
    let token = token("left");
    // A process that ignores SIGTERM, in a separate session and so outside of every process group.
    let script = "trap '' TERM; setsid sleep 1000 >/dev/null 2>&1 & echo left";
    let mut session = Session::start(script, &token);
    assert_eq!(session.line(), "left");
    assert_eq!(session.end().code, Some(0));
    assert_eq!(processes_with(&token), [], "gone when `headroom run` is");
}

#[test]
fn nothing_is_left_when_headroom_is_killed() {
    if skipped() {
        return;
    }
    let token = token("killed");
    let mut session = Session::start("setsid sleep 1000 & echo ready; exec sleep 1000", &token);
    assert_eq!(session.line(), "ready");
    // During an exec a process has no environment for a moment.
    let all = wait::until(wait::PATIENCE, || (processes_with(&token).len() >= 5).then_some(()));
    assert!(all.is_some(), "{:?}", processes_with(&token));
    kill(session.child.id(), Signal::KILL);
    expect_no_process_with(&token);
}

#[test]
fn nothing_is_left_when_the_session_is_killed() {
    if skipped() {
        return;
    }
    let token = token("init");
    let mut session = Session::start("setsid sleep 1000 & echo ready; exec sleep 1000", &token);
    assert_eq!(session.line(), "ready");
    let us = session.child.id();
    // The guardian has the same command line, and another name.
    let is_session = |(pid, _): &(u32, String)| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        *pid != us && name == "headroom\n"
    };
    let (pid, _) = processes_with(&token).into_iter().find(is_session).expect("the session");
    kill(pid, Signal::KILL);
    let ended = session.end();
    assert_eq!(ended.code, Some(137), "{ended:?}");
    assert!(ended.err.contains("killed by signal 9"), "{ended:?}");
    expect_no_process_with(&token);
}

#[test]
fn where_proc_is_masked_a_session_has_no_pid_namespace_and_reports_it() {
    if skipped() || !test_support::privileged() {
        return;
    }
    let token = token("hidden");
    let session = "setsid sleep 1000 & test -d /proc/$$ && ls /dev/binderfs | head -n 1; exit 5";
    // As container engines do it.
    let script = format!(
        "mount -t tmpfs none /proc/irq && cd / && exec setpriv --reuid {uid} --regid {uid} \
         --clear-groups {headroom} run -- sh -c '{session}'",
        uid = crate::support::NOBODY,
        headroom = crate::support::program("headroom"),
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let ended = outcome(command.env(crate::support::TOKEN, &token));
    assert_eq!((ended.code, ended.out.as_str()), (Some(5), "binder\n"), "{ended:?}");
    assert!(ended.err.starts_with("headroom: no pid namespace with its own /proc"), "{ended:?}");
    assert_eq!(processes_with(&token), [], "what was left in the background is ended all the same");
}

#[test]
fn the_death_of_the_daemon_is_reported_and_the_command_goes_on() {
    if skipped() {
        return;
    }
    let token = token("daemon");
    let script = "echo ready; read line </dev/binderfs/features/extended_error; \
                  while read line </dev/binderfs/features/extended_error; do sleep 0.05; done \
                  2>/dev/null; exit 4";
    let mut session = Session::start(script, &token);
    assert_eq!(session.line(), "ready");
    kill(process_with(&token, "headroom-binderd"), Signal::KILL);
    let ended = session.end();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.err.contains("headroom-binderd is gone while the command runs"), "{ended:?}");
    expect_no_process_with(&token);
}

#[test]
fn clients_that_wait_in_a_call_end_with_the_daemon_or_the_session() {
    if skipped() {
        return;
    }
    let (token, peer) = (token("waiting"), crate::support::program("peer"));
    let script = format!("{peer} /dev/binder manager 4 & sleep 1000 & wait");
    for victim in ["headroom run", "headroom-binderd"] {
        let mut session = Session::start(&script, &token);
        assert_eq!(session.line(), "ready");
        if victim == "headroom-binderd" {
            kill(process_with(&token, victim), Signal::KILL);
            let is_client = |(_, line): &(u32, String)| line.starts_with(&peer);
            let gone = || (!processes_with(&token).iter().any(is_client)).then_some(());
            assert!(e2e::wait::until(e2e::wait::PATIENCE, gone).is_some(), "the client hangs");
        }
        kill(session.child.id(), Signal::KILL);
        expect_no_process_with(&token);
    }
}

/// A script whose clients have passed opens of the bus to the daemon, and block; then it prints
/// `ready`.
fn with_opens_in_flight(then: &str) -> String {
    let peer = program("peer");
    format!(
        "d=$HEADROOM_BINDER/binder; {peer} $d deaf & deaf=$!; {peer} $d passes-itself & sender=$!; \
         {then}"
    )
}

#[test]
fn a_session_killed_with_opens_of_its_bus_in_flight_leaves_nothing() {
    if skipped() {
        return;
    }
    let token = token("in-flight");
    for _ in 0..3 {
        let script = with_opens_in_flight("sleep 1000");
        let mut session = Session::start(&script, &token);
        assert_eq!([session.line(), session.line()], ["ready", "ready"]);
        kill(session.child.id(), Signal::KILL);
        session.end();
        expect_no_process_with(&token);
    }
}

#[test]
fn a_daemon_killed_with_opens_of_its_bus_in_flight_hangs_no_process() {
    if skipped() {
        return;
    }
    let token = token("daemon-in-flight");
    let script = with_opens_in_flight("wait $sender; kill $deaf; echo over");
    let mut session = Session::start(&script, &token);
    assert_eq!([session.line(), session.line()], ["ready", "ready"]);
    let daemon = process_with(&token, "headroom-binder");
    kill(daemon, Signal::KILL);
    let ended = session.end();
    assert!(ended.out.contains("over"), "{ended:?}");
    expect_no_process_with(&token);
}
