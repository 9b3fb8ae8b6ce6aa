//! Watchdog notifications to a service manager that requires them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use headroom_daemon::ServiceManager;

/// Notifies in half the watchdog's interval, so that one notification may be late.
pub struct LifeSigns {
    manager: ServiceManager,
    last: Cell<Instant>,
}

impl LifeSigns {
    /// Reads the service manager's address from the environment; also returns an error in that.
    pub fn for_manager() -> (Self, Option<String>) {
        let (manager, error) = ServiceManager::from_environment();
        (Self { manager, last: Cell::new(Instant::now()) }, error)
    }

    /// Maximum time between two calls of [`came_round`](Self::came_round).
    pub fn interval(&self) -> Option<Duration> {
        self.manager.watchdog().map(|wait| wait / 2)
    }

    /// Reports that the bus is ready.
    pub fn ready(&self, status: &str) {
        self.manager.ready(status);
    }

    /// Called once per turn of the event loop; `status` is called for a status line if a
    /// notification is due.
    pub fn came_round(&self, status: impl FnOnce() -> String) {
        let due = self.interval().is_some_and(|interval| self.last.get().elapsed() >= interval / 2);
        if due {
            self.last.set(Instant::now());
            self.manager.alive(&status());
        }
    }

    /// Reports that the daemon is stopping on request.
    pub fn stopping(&self) {
        self.manager.stopping();
    }
}
