//! The data of one update, its growth since earlier ones, and a thread that requests it.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use control::oomd::{AccountRef, Reply, Request, Status, UserLimit, Why};
use headroom_linux::machine_memory::Meminfo;
use headroom_linux::machine_memory::pressure::{Pressure, Resource};

use crate::helpers::client::{call_on, call_oomd, connect, unexpected};

/// Number of decisions to request.
const DECISIONS: u32 = 20;
/// Period over which growth is averaged: shorter ones make it fluctuate, longer ones delay it.
const WINDOW: Duration = Duration::from_secs(5);
/// Forecasts beyond this are not shown, seconds.
const FAR: u64 = 24 * 3600;
/// Maximum of snapshots that wait to be shown.
const WAITING: usize = 4;

/// The state of the daemon and the machine at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Time of the requests.
    pub at: Instant,
    /// Status of the daemon.
    pub status: Status,
    /// Limits that this user may see; by uid.
    pub limits: Vec<UserLimit>,
    /// The latest decisions, newest first.
    pub decisions: Vec<Why>,
    /// `/proc/meminfo`.
    pub memory: Meminfo,
    /// `/proc/pressure/memory`, where the kernel has it.
    pub pressure: Option<Pressure>,
}

/// Queries the daemon and reads the machine's state.
pub fn take(socket: &Path) -> anyhow::Result<Snapshot> {
    let mut client = connect("headroom-oomd", socket)?;
    let status = match call_on(&mut client, &Request::Status)? {
        Reply::Status(status) => status,
        reply => return Err(unexpected(&reply)),
    };
    let limits = match call_on(&mut client, &Request::ListLimits)? {
        Reply::Limits { limits } => limits,
        reply => return Err(unexpected(&reply)),
    };
    let decisions = match call_on(&mut client, &Request::Why { last: DECISIONS })? {
        Reply::Why { records } => records,
        reply => return Err(unexpected(&reply)),
    };
    let proc = Path::new("/proc");
    Ok(Snapshot {
        at: Instant::now(),
        status,
        limits,
        decisions,
        memory: Meminfo::read(proc)?,
        pressure: Pressure::read(proc, Resource::Memory).ok(),
    })
}

/// Usage in the last snapshots.
#[derive(Debug, Default)]
pub struct Growth {
    seen: HashMap<AccountRef, VecDeque<(Instant, u64)>>,
}

impl Growth {
    /// Adds a snapshot. Users that are missing in it are removed.
    pub fn look(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at;
        self.seen
            .retain(|account, _| snapshot.limits.iter().any(|limit| limit.account == *account));
        for limit in &snapshot.limits {
            let seen = self.seen.entry(limit.account).or_default();
            seen.push_back((at, limit.used_bytes));
            // One sample that is older than the window stays, so that the window is covered
            // completely.
            while seen.get(1).is_some_and(|(then, _)| at.duration_since(*then) >= WINDOW) {
                seen.pop_front();
            }
        }
    }

    /// Growth, bytes per second; `None` before the second snapshot.
    pub fn of(&self, account: AccountRef) -> Option<i64> {
        let seen = self.seen.get(&account)?;
        let (first, last) = (seen.front()?, seen.back()?);
        let micros = i128::try_from(last.0.duration_since(first.0).as_micros()).ok()?;
        let grown = i128::from(last.1) - i128::from(first.1);
        i64::try_from((grown * 1_000_000).checked_div(micros)?).ok()
    }
}

/// Seconds until `left` bytes are used up at this rate; `None`: it shrinks, or that is far away.
pub fn forecast(left: u64, bytes_per_s: i64) -> Option<u64> {
    let rate = u64::try_from(bytes_per_s).ok()?;
    left.checked_div(rate).filter(|seconds| *seconds <= FAR)
}

/// Results of the thread's requests.
pub enum Update {
    /// A new snapshot.
    Snapshot(Box<Snapshot>),
    /// The daemon does not answer.
    Lost(String),
    /// Result of a request that the user made.
    Done(Result<String, String>),
}

/// A thread that requests a snapshot at each interval, until dropped, so that a slow reply does not
/// delay the keys.
pub struct Collector {
    /// The results.
    pub updates: Receiver<Update>,
    requests: Sender<Request>,
}

impl Collector {
    /// Starts the thread.
    pub fn start(socket: PathBuf, interval: Duration) -> Self {
        let (results, updates) = sync_channel(WAITING);
        let (requests, pending) = channel();
        std::thread::spawn(move || {
            let mut due = Instant::now() + interval;
            loop {
                let wait = due.saturating_duration_since(Instant::now());
                let sent = match pending.recv_timeout(wait) {
                    Ok(request) => {
                        // Show the effect of the request immediately.
                        due = Instant::now();
                        results.send(Update::Done(execute(&socket, &request)))
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        due = Instant::now() + interval;
                        results.send(match take(&socket) {
                            Ok(snapshot) => Update::Snapshot(Box::new(snapshot)),
                            Err(error) => Update::Lost(format!("{error:#}")),
                        })
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        Self { updates, requests }
    }

    /// Sends a request; its result arrives as [`Update::Done`].
    pub fn send(&self, request: Request) {
        // The thread exits only after this value is dropped.
        let _ = self.requests.send(request);
    }
}

fn execute(socket: &Path, request: &Request) -> Result<String, String> {
    match call_oomd(socket, request) {
        Ok(Reply::Done) => Ok("done".to_owned()),
        Ok(reply) => Err(format!("{:#}", unexpected(&reply))),
        Err(error) => Err(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use control::Uid;

    use super::super::view::tests::snapshot;
    use super::*;

    #[test]
    fn growth_is_an_average_over_the_last_seconds() {
        let of_user = |growth: &Growth, uid| growth.of(AccountRef::user(Uid(uid)));
        let mut growth = Growth::default();
        let start = Instant::now();
        assert_eq!(of_user(&growth, 7), None);
        for second in 0..10u64 {
            let mut seen = snapshot(&[(7, 100 + second * second, 1000)]);
            seen.at = start + Duration::from_secs(second);
            growth.look(&seen);
        }
        assert_eq!(of_user(&growth, 7), Some((81 - 16) / 5));
        growth.look(&snapshot(&[(8, 1, 2)]));
        assert_eq!((of_user(&growth, 7), of_user(&growth, 8)), (None, None));
    }

    #[test]
    fn only_growing_users_have_a_forecast() {
        assert_eq!(forecast(100, 10), Some(10));
        assert_eq!(forecast(100, 0), None);
        assert_eq!(forecast(100, -10), None);
        assert_eq!(forecast(u64::MAX, 1), None);
        assert_eq!(forecast(0, 1), Some(0));
    }
}
