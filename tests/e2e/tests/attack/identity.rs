//! Callers that could be mistaken for another process.

use std::path::Path;

use e2e::attacker::ATTACKER;
use e2e::{Bus, Peer};

use crate::innocent::attacker;

crate::attacks! {
    an_open_of_an_exited_opener_has_no_owner
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
