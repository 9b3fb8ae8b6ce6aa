//! Upgrades of a binder daemon to its own program, in a loop, while clients use it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use control::binderd::{Reply, Request, Upgraded};

/// End of the reply to an upgrade that the daemon refuses, for example because calls take too long.
const REFUSED: &str = "the running program continues";
/// Shortest time in which clients run between two upgrades.
const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// A thread that upgrades a daemon until it is stopped. Clients run four times as long as they are
/// paused.
pub struct Upgrades {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<(), String>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Locked during an upgrade.
    report: Mutex<Report>,
}

impl Shared {
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upgrades {
    /// Starts to upgrade the daemon with this control socket.
    pub fn start(socket: &Path) -> Self {
        let shared = Arc::new(Shared::default());
        let (socket, of_thread) = (socket.to_owned(), Arc::clone(&shared));
        Self { shared, thread: spawn(move || upgrade_until_stopped(&socket, &of_thread)) }
    }

    /// Number of upgrades so far. An error: one has failed, and there will be no more.
    pub fn count(&self) -> Result<usize, String> {
        if self.thread.is_finished() {
            return Err("an upgrade has failed".to_owned());
        }
        Ok(self.shared.report().pauses.len())
    }

    /// Runs a closure between two upgrades: an upgrade closes connections to the control socket.
    pub fn between<T>(&self, run: impl FnOnce() -> T) -> T {
        let _report = self.shared.report();
        run()
    }

    /// Ends the upgrades. An error: one has failed.
    pub fn stop(self) -> Result<Report, String> {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| "the thread of the upgrades has panicked")??;
        Ok(std::mem::take(&mut *self.shared.report()))
    }
}

fn upgrade_until_stopped(socket: &Path, shared: &Shared) -> Result<(), String> {
    while !shared.stop.load(Ordering::Acquire) {
        let pause = shared.report().upgrade(socket)?;
        sleep(MIN_INTERVAL.max(4 * pause));
    }
    Ok(())
}

/// The upgrades that took place.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// As the daemon has measured them.
    pauses: Vec<Duration>,
    /// Number of refusals, by reason.
    refused: BTreeMap<String, u32>,
}

impl Report {
    /// Upgrades the daemon once; returns the pause.
    fn upgrade(&mut self, socket: &Path) -> Result<Duration, String> {
        let mut client = control::Client::connect(socket).map_err(|error| error.to_string())?;
        let reply = client.call(&Request::Upgrade { program: None });
        match reply.map_err(|error| error.to_string())? {
            Reply::Upgraded(Upgraded { pause_us, .. }) => {
                let pause = Duration::from_micros(pause_us);
                self.pauses.push(pause);
                Ok(pause)
            }
            Reply::Error { message } if message.ends_with(REFUSED) => {
                *self.refused.entry(message).or_default() += 1;
                Ok(Duration::ZERO)
            }
            other => Err(format!("no upgrade: {other:?}")),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pauses = self.pauses.clone();
        pauses.sort_unstable();
        let ms = |pause: Option<&Duration>| pause.map_or(0.0, |pause| pause.as_secs_f64() * 1000.0);
        let median = ms(pauses.get(pauses.len() / 2));
        let (count, maximum) = (pauses.len(), ms(pauses.last()));
        write!(f, "{count} upgrades: pause median {median:.1} ms, maximum {maximum:.1} ms")?;
        for (reason, count) in &self.refused {
            write!(f, "\n{count} refused: {reason}")?;
        }
        Ok(())
    }
}
