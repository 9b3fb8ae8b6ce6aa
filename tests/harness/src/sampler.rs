//! Held memory over time, and the daemon's response times meanwhile.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::memory::{self, Held};
use crate::memory_group::MemoryGroup;
use crate::users::User;

/// Interval of memory measurements.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval of readings of a charge: programs grow by up to 500 MiB/s.
const CHARGE_PAUSE: Duration = Duration::from_millis(10);
/// Interval of requests.
const REQUEST_PAUSE: Duration = Duration::from_millis(25);
/// Time after which a request counts as unanswered.
const PATIENCE: Duration = Duration::from_secs(5);
/// Duration for which memory must be held to count as held.
const SUSTAINED: Duration = Duration::from_secs(1);

/// Priority of a thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Priority {
    /// That of the program that starts the thread.
    Ordinary,
    /// Above programs that keep all CPUs busy.
    High,
}

/// Calls a closure repeatedly until it is stopped, and keeps its results.
struct Repeated<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<T>>,
}

impl<T: Send + 'static> Repeated<T> {
    fn start(
        pause: Duration,
        priority: Priority,
        mut work: impl FnMut() -> T + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            if priority == Priority::High {
                raise_priority();
            }
            let mut found = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                found.push(work());
                std::thread::sleep(pause);
            }
            found
        });
        Self { stop, thread }
    }

    fn end(self) -> Vec<T> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Measures a user's memory repeatedly.
pub struct MemorySampler(Repeated<(Instant, Held)>);

impl MemorySampler {
    /// Starts the thread. The user's programs may have a control group.
    pub fn start(user: User, group: Option<Arc<MemoryGroup>>) -> Self {
        Self(Repeated::start(PAUSE, Priority::High, move || {
            let charge = group.as_ref().map(|group| group.charge()).unwrap_or_default();
            let charged = charge.anonymous + charge.shared;
            (Instant::now(), Held { charged, ..memory::held_by(user) })
        }))
    }

    /// Starts the thread for a user whose programs are all in the group; see
    /// [`memory::charged_to`].
    pub fn by_charge(user: User, group: Arc<MemoryGroup>) -> Self {
        Self(Repeated::start(CHARGE_PAUSE, Priority::High, move || {
            (Instant::now(), memory::charged_to(&group, user))
        }))
    }

    /// Stops the thread; returns the measurements.
    pub fn end(self) -> MemoryHistory {
        MemoryHistory(self.0.end())
    }
}

/// Raises the priority of the calling thread. Programs that it starts would inherit it.
fn raise_priority() {
    // SAFETY: the call takes integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -15) };
}

/// Measurements, in order.
pub struct MemoryHistory(Vec<(Instant, Held)>);

impl MemoryHistory {
    /// The sample with the highest total.
    pub fn peak(&self) -> Held {
        self.0.iter().map(|(_, held)| *held).max_by_key(Held::total).unwrap_or_default()
    }

    /// Maximum held for more than a second, bytes, by this measure.
    pub fn sustained(&self, measure: fn(&Held) -> u64) -> u64 {
        let ends = self.0.iter().enumerate().filter_map(|(first, (from, _))| {
            let later = self.0[first..].iter();
            let within = later.clone().take_while(|(at, _)| *at - *from <= SUSTAINED);
            let whole = self.0.last().is_some_and(|(last, _)| *last - *from > SUSTAINED);
            whole.then(|| within.map(|(_, held)| measure(held)).min().unwrap_or(0))
        });
        ends.max().unwrap_or(0)
    }

    /// Total time in which more than this was held.
    pub fn time_above(&self, bytes: u64) -> Duration {
        let pairs = self.0.windows(2).filter(|pair| pair[0].1.total() > bytes);
        pairs.map(|pair| pair[1].0 - pair[0].0).sum()
    }

    /// Number of measurements.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Sends requests as root repeatedly.
pub struct RequestSampler(Repeated<Option<Duration>>);

impl RequestSampler {
    /// Starts the thread: a connection and a `status` request each time, as `headroom status` does.
    pub fn start(socket: PathBuf) -> Self {
        Self(Repeated::start(REQUEST_PAUSE, Priority::Ordinary, move || {
            let begun = Instant::now();
            let answer = Client::connect(&socket, PATIENCE)
                .and_then(|client| client.call(&json!({"request": "status"})));
            answer.is_ok_and(|answer| answer["reply"] == "status").then(|| begun.elapsed())
        }))
    }

    /// Stops the thread; returns the durations of the requests.
    pub fn end(self) -> Latencies {
        let all = self.0.end();
        let mut answered: Vec<Duration> = all.iter().flatten().copied().collect();
        answered.sort_unstable();
        Latencies { unanswered: all.len() - answered.len(), answered }
    }
}

/// Durations of requests.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Sorted durations of the answered requests.
    pub answered: Vec<Duration>,
    /// Requests that were refused, or not answered in time.
    pub unanswered: usize,
}

impl Latencies {
    /// The duration that this percentage of the requests did not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.answered.len().saturating_sub(1);
        self.answered.get(last * percent / 100).copied().unwrap_or(PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(levels: &[u64]) -> MemoryHistory {
        let begun = Instant::now();
        let sample = |(at, bytes): (usize, &u64)| {
            let held = Held { anonymous: *bytes, ..Held::default() };
            (begun + Duration::from_millis(at as u64 * 300), held)
        };
        MemoryHistory(levels.iter().enumerate().map(sample).collect())
    }

    #[test]
    fn a_short_peak_is_no_sustained_one() {
        let short = history(&[1, 1, 9, 9, 1, 1, 1, 1, 1, 1]);
        assert_eq!((short.peak().total(), short.sustained(Held::total)), (9, 1));
        let long = history(&[1, 1, 9, 8, 9, 9, 9, 1, 1, 1]);
        assert_eq!((long.peak().total(), long.sustained(Held::total)), (9, 8));
        assert_eq!(long.time_above(1), Duration::from_millis(1500));
    }
}
