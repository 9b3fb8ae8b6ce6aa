//! Processes of other users that allocate memory with tmalloc.

use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use control::Uid;
use test_support::helper::Helper;
use test_support::programs::built;

use super::eventually;
use super::helper::Program;

/// A client of the daemon's leases.
pub struct Leaser {
    helper: Helper,
    _program: Arc<Program>,
}

impl Leaser {
    /// Starts a process that leases from the daemon at `socket` and has its first page already.
    pub fn start(uid: Uid, socket: &Path) -> Self {
        static PROGRAM: Mutex<Weak<Program>> = Mutex::new(Weak::new());
        let program = Program::shared(&PROGRAM, &built("e2e", "lease_client"), "leaser");
        let environment = [("HEADROOM_LEASE_SOCKET", socket.to_str().unwrap())];
        Self { helper: program.start(uid, &environment), _program: program }
    }

    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }

    /// Sends an order without waiting for the answer.
    pub fn order(&mut self, order: &str) {
        self.helper.begin(order);
    }

    /// The answer to an order; `None`: the process has exited.
    pub fn answer(&mut self) -> Option<String> {
        self.helper.answer()
    }

    /// Sends an order and waits for its answer, a number.
    pub fn request(&mut self, order: &str) -> u64 {
        self.order(order);
        let answer = self.answer();
        let answer = answer
            .unwrap_or_else(|| panic!("it died over {order:?}: {:?}", self.helper.child.wait()));
        answer.parse().unwrap()
    }

    pub fn is_alive(&mut self) -> bool {
        self.helper.is_alive()
    }

    /// Kills the process and waits for its exit.
    pub fn kill(&mut self) {
        self.helper.child.kill().unwrap();
        eventually("it dies", || (!self.helper.is_alive()).then_some(()));
        assert_eq!(self.helper.signal(), Some(9));
    }
}
