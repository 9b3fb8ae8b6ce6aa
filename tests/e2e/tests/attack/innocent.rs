//! The client that has nothing to do with an attack, and how attackers are started.

use std::path::Path;

use binder_client::{Client, Options, Payload, Session};
use control::Uid;
use e2e::{Bus, Peer};

/// Users whose processes attack; nobody else is one of them.
pub const ATTACKER: Uid = Uid(61_300);
/// The user that the innocent service belongs to.
pub const INNOCENT: Uid = Uid(61_299);

/// Starts a process of an ordinary user, and waits until it is ready.
pub fn attacker(bus: &Bus, device: &str, uid: Uid, action: &[&str]) -> Peer {
    let peer = unready_attacker(bus, device, uid, action);
    peer.expect("ready");
    peer
}

/// An attacker with memory that never answers while its accomplice lives.
pub struct Silent {
    peer: Peer,
    accomplice: u32,
}

impl Silent {
    /// Starts it, and waits until it is ready.
    pub fn start(bus: &Bus, device: &str, uid: Uid, action: &[&str]) -> Self {
        let peer = unready_attacker(bus, device, uid, action);
        let line = peer.line().unwrap();
        let accomplice = line.strip_prefix("accomplice ").unwrap().parse().unwrap();
        peer.expect("ready");
        Self { peer, accomplice }
    }

    /// Kills the accomplice first: a thread that waits for its filesystem cannot be killed, whoever
    /// that thread belongs to.
    pub fn kill(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.accomplice as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        self.peer.kill();
    }
}

/// The same as [`attacker`] without waiting.
pub fn unready_attacker(bus: &Bus, device: &str, uid: Uid, action: &[&str]) -> Peer {
    let uid = uid.to_string();
    let words = [&["as", &uid], action].concat();
    Peer::start_on(bus, Path::new(env!("CARGO_BIN_EXE_peer")), device, &words)
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

    /// Makes so many calls. One that never ends fails when the bus is torn down
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

    /// Calls of a client that was not there before.
    pub fn newcomer_makes_calls(&self, bus: &Bus) {
        let client = Client::open(bus.device("hwbinder"), &Options::default()).unwrap();
        let mut session = Session::new(&client);
        let reply = session.call(0, 1, Payload::bytes(b"new")).unwrap();
        assert_eq!(reply.data().unwrap(), b"new");
        session.free(reply);
        session.flush().unwrap();
    }
}
