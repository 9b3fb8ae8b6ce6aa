//! The client that is not involved in an attack, and functions that start attackers.

use std::path::Path;

use binder_client::{Client, Options, Payload, Session};
use control::Uid;
use e2e::attacker::INNOCENT;
use e2e::{Bus, Peer};

/// Starts a process of an ordinary user, and waits until it is ready.
pub fn attacker(bus: &Bus, device: &str, uid: Uid, action: &[&str]) -> Peer {
    let uid = uid.to_string();
    let words = [&["as", &uid], action].concat();
    let peer = Peer::start_on(bus, Path::new(env!("CARGO_BIN_EXE_peer")), device, &words);
    peer.expect("ready");
    peer
}

/// A service on `hwbinder`, and its client.
pub struct Innocent {
    _service: Peer,
    client: Client,
}

impl Innocent {
    pub fn new(bus: &Bus) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_peer"));
        let service = Peer::start_on(
            bus,
            program,
            "hwbinder",
            &["as", &INNOCENT.to_string(), "manager", "1"],
        );
        service.expect("ready");
        let client = Client::open(bus.device("hwbinder"), &Options::default()).unwrap();
        Self { _service: service, client }
    }

    /// Makes `count` calls. A call that never returns fails when the bus is ended
    /// ([`Bus::limit_time`]).
    pub fn makes_calls(&self, count: usize) {
        let mut session = Session::new(&self.client);
        for number in 0..count {
            let data = number.to_ne_bytes();
            let reply = session.call(0, 1, Payload::bytes(&data)).unwrap();
            assert_eq!(reply.data().unwrap(), data);
            session.free(reply);
        }
        session.flush().unwrap();
    }

    /// Makes calls of a client that opens the device only now.
    pub fn newcomer_makes_calls(&self, bus: &Bus) {
        let client = Client::open(bus.device("hwbinder"), &Options::default()).unwrap();
        let mut session = Session::new(&client);
        let reply = session.call(0, 1, Payload::bytes(b"new")).unwrap();
        assert_eq!(reply.data().unwrap(), b"new");
        session.free(reply);
        session.flush().unwrap();
    }
}
