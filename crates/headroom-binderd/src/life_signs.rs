//! Signs of life for a service manager that wants them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use headroom_daemon::ServiceManager;

/// Gives one in half the time that the manager waits: one may be late.
pub struct LifeSigns {
    manager: ServiceManager,
    last: Cell<Instant>,
}

impl LifeSigns {
    /// For whoever the environment names. Also what is wrong with that name.
    pub fn for_manager() -> (Self, Option<String>) {
        let (manager, complaint) = ServiceManager::from_environment();
        (Self { manager, last: Cell::new(Instant::now()) }, complaint)
    }

    /// A sign is wanted that often.
    pub fn interval(&self) -> Option<Duration> {
        self.manager.watchdog().map(|wait| wait / 2)
    }

    /// The bus can be used.
    pub fn ready(&self, status: &str) {
        self.manager.ready(status);
    }

    /// The event loop came round. `status` is asked for a line on how things are where it is time
    /// for a sign.
    pub fn came_round(&self, status: impl FnOnce() -> String) {
        let due = self.interval().is_some_and(|interval| self.last.get().elapsed() >= interval / 2);
        if due {
            self.last.set(Instant::now());
            self.manager.alive(&status());
        }
    }

    /// The end, on request.
    pub fn stopping(&self) {
        self.manager.stopping();
    }
}
