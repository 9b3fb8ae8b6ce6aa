//! Callers that could be mistaken for another process.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use binder_client::{Answer, Client, Options, Received, Served, Session};
use e2e::attacker::{ATTACKER, INNOCENT};
use e2e::{Bus, Peer};

use crate::innocent::attacker;

crate::attacks! {
    an_open_of_an_exited_opener_has_no_owner
    calls_on_an_open_whose_opener_runs_a_setuid_program_are_not_roots
    calls_on_an_open_whose_opener_is_stopped_in_a_setuid_program_are_not_roots
}

fn an_open_of_an_exited_opener_has_no_owner(bus: &Bus) {
    let program = Path::new(env!("CARGO_BIN_EXE_peer"));
    let service = Peer::start_on(bus, program, "binder", &["who"]);
    service.expect("ready");
    for _ in 0..20 {
        let mut attack = attacker(bus, "binder", ATTACKER, &["inherited-open"]);
        let opener = service.line();
        assert!(opener.is_some_and(|line| line != "called by 0"));
        service.expect("called by 0");
        attack.expect("no reply");
        attack.wait_for_success();
    }
}

fn calls_on_an_open_whose_opener_runs_a_setuid_program_are_not_roots(bus: &Bus) {
    calls_of_a_setuid_opener_are_not_roots(bus, "0");
}

fn calls_on_an_open_whose_opener_is_stopped_in_a_setuid_program_are_not_roots(bus: &Bus) {
    calls_of_a_setuid_opener_are_not_roots(bus, &libc::SIGSTOP.to_string());
}

/// `signal`: what the setuid program gets; 0: nothing.
fn calls_of_a_setuid_opener_are_not_roots(bus: &Bus, signal: &str) {
    let folder = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir()
        .unwrap();
    let program = folder.path().join("sleep");
    std::fs::copy("/usr/bin/sleep", &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let service = Client::open(bus.device("binder"), &Options::default()).unwrap();
    service.become_context_manager().unwrap();
    let mut session = Session::new(&service);
    session.enter_looper().unwrap();
    let words = [
        "setuid-opener",
        signal,
        &ATTACKER.to_string(),
        &INNOCENT.to_string(),
        program.to_str().unwrap(),
    ];
    let peer = Path::new(env!("CARGO_BIN_EXE_peer"));
    let mut attack = Peer::start_on(bus, peer, "binder", &words);
    let mut seen = Vec::new();
    let mut note = |_: &mut Session<'_>, incoming: &Received<'_>| {
        seen.push(incoming.transaction().sender_euid);
        Answer::Echo
    };
    let mut calls = 0;
    while calls < 3 {
        calls += usize::from(session.serve_one(&mut note).unwrap() == Served::Transaction);
    }
    assert_eq!(seen, [ATTACKER.0; 3]);
    session.flush().unwrap();
    attack.wait_for_success();
}
