//! Callers that could be mistaken for another process.

use std::path::Path;

use e2e::{Bus, Peer};

use crate::innocent::{ATTACKER, attacker};

crate::attacks! {
    an_open_whose_opener_has_exited_is_nobodys
}

fn an_open_whose_opener_has_exited_is_nobodys(bus: &Bus) {
    let program = Path::new(env!("CARGO_BIN_EXE_peer"));
    let service = Peer::start_on(bus, program, "binder", &["who"]);
    service.expect("ready");
    for _ in 0..20 {
        let mut attack = attacker(bus, "binder", ATTACKER, &["inherited-open"]);
        attack.expect("seen as Some(0)");
        attack.wait_for_success();
    }
}
