//! Processes that attack the daemon, and a list of attacks that last until they are ended.

use std::path::Path;

use control::Uid;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Bus, Peer};

/// Uid of the attackers of tests, and of the first attack of [`ATTACKS`]; the others have those
/// after it. No other process has any of them.
pub const ATTACKER: Uid = Uid(61_300);
/// Uid of clients that are not involved in an attack.
pub const INNOCENT: Uid = Uid(61_299);
/// The devices of a bus on which all of [`ATTACKS`] can run at the same time.
pub const DEVICES: &str = "signals,late,ioctls,areas,files,innocent";
/// The one of them that no attacker opens.
pub const INNOCENT_DEVICE: &str = "innocent";

/// An attack that lasts until it is ended.
pub struct Attack {
    /// Name in tables.
    pub name: &'static str,
    /// Of its processes.
    uid: Uid,
    device: &'static str,
    /// The actions of its processes, in the order of their start.
    actions: &'static [Action],
}

enum Action {
    /// Of an ordinary user.
    Ordinary(&'static [&'static str]),
    /// 64 areas that never answer, of clients in 17 subordinate uids of an ordinary user.
    LateClients,
}

/// One attack by each means: signals, memory that never answers, long ioctls, address spaces with
/// many areas, and files whose close blocks.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "signals",
        uid: ATTACKER,
        device: "signals",
        actions: &[Action::Ordinary(&["signalled-receivers", "24"])],
    },
    Attack {
        name: "late memory",
        uid: Uid(ATTACKER.0 + 1),
        device: "late",
        actions: &[Action::LateClients],
    },
    Attack {
        name: "long ioctls",
        uid: Uid(ATTACKER.0 + 2),
        device: "ioctls",
        actions: &[Action::Ordinary(&["long-ioctls", "8"])],
    },
    Attack {
        name: "many areas",
        uid: Uid(ATTACKER.0 + 3),
        device: "areas",
        actions: &[
            Action::Ordinary(&["many-areas", "60000"]),
            Action::Ordinary(&["failing-calls"]),
        ],
    },
    Attack {
        name: "lingering files",
        uid: Uid(ATTACKER.0 + 4),
        device: "files",
        actions: &[Action::Ordinary(&["file-sink"]), Action::Ordinary(&["lingering-files", "20"])],
    },
];

impl Attack {
    /// Starts its processes in the uid of this attack.
    pub fn start(&self, bus: &Bus, program: &Path) -> Vec<Attacker> {
        let start = |action: &Action| match action {
            Action::Ordinary(words) => Attacker::start(bus, program, self.device, self.uid, words),
            Action::LateClients => {
                let words = ["late-clients", &self.uid.to_string(), "64", "17"];
                Attacker::start_as_root(bus, program, self.device, &words)
            }
        };
        self.actions.iter().map(start).collect()
    }
}

/// A process that attacks.
pub struct Attacker {
    peer: Peer,
    /// To be killed first: a thread that waits for its filesystem cannot be killed, whichever
    /// process it belongs to.
    accomplice: Option<Pid>,
}

impl Attacker {
    /// Starts a `peer` as an ordinary user, and waits until it is ready.
    pub fn start(bus: &Bus, program: &Path, device: &str, uid: Uid, action: &[&str]) -> Self {
        Self::start_as_root(bus, program, device, &[&["as", &uid.to_string()], action].concat())
    }

    fn start_as_root(bus: &Bus, program: &Path, device: &str, action: &[&str]) -> Self {
        let peer = Peer::start_on(bus, program, device, action);
        let mut accomplice = None;
        loop {
            let line = peer.line().unwrap_or_else(|| panic!("{} has exited", action.join(" ")));
            match line.split_once(' ') {
                Some(("accomplice", pid)) => {
                    accomplice = pid.parse().ok().and_then(Pid::from_raw);
                    assert!(accomplice.is_some(), "{line}");
                }
                Some(("clients", _)) => {}
                _ => break assert_eq!(line, "ready", "{}", action.join(" ")),
            }
        }
        Self { peer, accomplice }
    }

    /// Kills it and waits until it has exited.
    pub fn kill(&mut self) {
        if let Some(accomplice) = self.accomplice.take() {
            kill_process(accomplice, Signal::KILL)
                .unwrap_or_else(|error| panic!("accomplice {accomplice:?}: {error}"));
        }
        self.peer.kill();
    }
}
