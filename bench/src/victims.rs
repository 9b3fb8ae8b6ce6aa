//! Processes that hold memory and are killed, and how fast it is freed.

use std::fs;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::wait;
use headroom_linux::machine_memory::bytes_of;
use reclaim::{Progress, Reaper, Reclaim, Victim};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::affinity::{self, Class};
use crate::control_group::{ControlGroup, Rule};
use crate::memory::{Back, Layout, Memory};
use crate::oomd::PATIENCE;
use crate::peer::{Peer, report_ready};

/// What a peer is.
#[derive(Serialize, Deserialize)]
enum Role {
    Victim(Layout, Condition),
    /// A busy loop of ordinary priority.
    Competitor,
}

impl Role {
    fn start(&self) -> Result<Peer> {
        Peer::start(&[&serde_json::to_string(self)?], Stdio::null(), Stdio::null())
    }
}

static LAST_TOKEN: AtomicU64 = AtomicU64::new(0);
const PAGE: u64 = 4096;
/// Time for competitors and quotas to take effect.
const SETTLE: Duration = Duration::from_millis(20);

/// State of a victim when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Asleep on a core that no other process of the benchmark uses.
    Idle,
    /// `SCHED_IDLE`, beside a busy loop of ordinary priority on the same core.
    SchedIdle,
    /// Nice 19, beside such a busy loop.
    Nice19,
    /// Busy in a control group that has used up its five percent of a CPU.
    Throttled,
    /// Stopped by a signal, as on a terminal.
    Stopped,
    /// In a frozen control group.
    Frozen,
    /// Sixty-four threads, asleep.
    Threads,
    /// As many mappings as possible.
    Mappings,
    /// Eight victims that share the amount, killed together.
    Eight,
}

/// The conditions in their order: name in the results, class, threads, victims.
const CONDITIONS: [(Condition, &str, Class, usize, u64); 9] = [
    (Condition::Idle, "idle core", Class::Nice(0), 1, 1),
    (Condition::SchedIdle, "SCHED_IDLE under competition", Class::Idle, 1, 1),
    (Condition::Nice19, "nice 19 under competition", Class::Nice(19), 1, 1),
    (Condition::Throttled, "throttled to 5 %", Class::Nice(0), 1, 1),
    (Condition::Stopped, "stopped", Class::Nice(0), 1, 1),
    (Condition::Frozen, "frozen", Class::Nice(0), 1, 1),
    (Condition::Threads, "64 threads", Class::Nice(0), 64, 1),
    (Condition::Mappings, "many mappings", Class::Nice(0), 1, 1),
    (Condition::Eight, "8 victims at once", Class::Nice(0), 1, 8),
];

impl Condition {
    /// All conditions.
    pub fn all() -> [Self; CONDITIONS.len()] {
        CONDITIONS.map(|(condition, ..)| condition)
    }

    /// Name in the results.
    pub fn name(self) -> &'static str {
        CONDITIONS[self as usize].1
    }

    /// A condition in which a victim frees nothing, or hardly anything, by the signal alone.
    pub fn is_starved(self) -> bool {
        self.competition() || self == Self::Frozen
    }

    fn competition(self) -> bool {
        matches!(self, Self::SchedIdle | Self::Nice19)
    }

    fn rule(self) -> Option<Rule> {
        match self {
            Self::Throttled => Some(Rule::Throttled),
            Self::Frozen => Some(Rule::Frozen),
            _ => None,
        }
    }
}

/// How a victim is killed and its memory released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMethod {
    /// The signal alone.
    Signal,
    /// The crate `reclaim`, as the daemon uses it.
    Reclaim,
}

/// Result of a kill.
#[derive(Clone, Copy, Debug)]
pub struct Killed {
    /// Freed memory, and the time it took.
    pub back: Back,
    /// Time until all victims had exited; `None`: longer than the patience.
    pub exit: Option<Duration>,
}

/// Main function of a peer.
pub fn serve(words: &[&str]) -> Result<()> {
    match serde_json::from_str(words.first().context("no role")?)? {
        Role::Competitor => affinity::spin(Class::Nice(0)),
        Role::Victim(layout, condition) => be_victim(layout, condition),
    }
}

fn be_victim(layout: Layout, condition: Condition) -> Result<()> {
    // Not the raised priority of the parent.
    Class::Nice(0).take()?;
    // If memory does run out, the kernel kills this process first.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let memory = Memory::map((layout.mib as usize) << 20, layout.pages)?;
    let (_, _, class, threads, _) = CONDITIONS[condition as usize];
    let all_touched = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| -> Result<()> {
        for part in 1..threads {
            let (memory, all_touched) = (&memory, &all_touched);
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, move || {
                memory.touch(part, threads);
                all_touched.wait();
                loop {
                    std::thread::park();
                }
            })?;
        }
        memory.touch(0, threads);
        all_touched.wait();
        if layout.many_mappings {
            memory.split(layout.pages)?;
        }
        if condition == Condition::Throttled {
            return affinity::spin(class);
        }
        class.take()?;
        report_ready();
        loop {
            std::thread::park();
        }
    })
}

/// A victim and its process.
struct One {
    // Killed on drop.
    _peer: Peer,
    victim: Victim,
    bytes: u64,
}

impl One {
    fn start(layout: Layout, condition: Condition, core: usize) -> Result<Self> {
        let peer = Role::Victim(layout, condition).start()?;
        affinity::pin_process(peer.pid(), core)?;
        let victim = Victim::open(peer.pid())?;
        if condition == Condition::Stopped {
            stop(peer.pid())?;
        }
        Ok(Self { _peer: peer, victim, bytes: layout.mib << 20 })
    }
}

/// Resident memory of a process by its `statm`, bytes; 0 if it has none any more.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm"));
    let pages = text.ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE
}

/// Victims that are ready to be killed, and whatever delays their exit. All are killed on drop.
pub struct Ready {
    victims: Vec<One>,
    busy: Option<Peer>,
    group: Option<ControlGroup>,
}

impl Ready {
    /// Starts victims on `core`, whose memory in total is as in `layout`.
    pub fn start(layout: Layout, condition: Condition, core: usize) -> Result<Self> {
        let (.., victims) = CONDITIONS[condition as usize];
        let layout = Layout { mib: layout.mib / victims, ..layout };
        let victims = (0..victims).map(|_| One::start(layout, condition, core));
        let victims = victims.collect::<Result<Vec<_>>>()?;
        let group = condition.rule().map(ControlGroup::create).transpose()?;
        if let Some(group) = &group {
            victims.iter().try_for_each(|one| group.take(one.victim.pid()))?;
        }
        let mut busy = None;
        if condition.competition() {
            let competitor = Role::Competitor.start()?;
            affinity::pin_process(competitor.pid(), core)?;
            busy = Some(competitor);
        }
        if busy.is_some() || condition == Condition::Throttled {
            std::thread::sleep(SETTLE);
        }
        Ok(Self { victims, busy, group })
    }

    /// The share of their memory in huge pages, from `smaps_rollup`.
    pub fn huge_share(&self) -> f64 {
        let of = |one: &One| {
            let path = format!("/proc/{}/smaps_rollup", one.victim.pid());
            let text = fs::read_to_string(path).unwrap_or_default();
            bytes_of(&text, "AnonHugePages").unwrap_or(0)
        };
        self.victims.iter().map(of).sum::<u64>() as f64 / self.bytes() as f64
    }

    fn bytes(&self) -> u64 {
        self.victims.iter().map(|one| one.bytes).sum()
    }

    /// Kills them. Returns when all have exited, or when `patience` is over.
    pub fn kill(
        mut self,
        method: KillMethod,
        reaper: &Reaper,
        patience: Duration,
    ) -> Result<Killed> {
        let free = free_bytes();
        let start = Instant::now();
        let until = start + patience;
        let (back, exited);
        let mut left = None;
        match method {
            KillMethod::Signal => {
                exited = self.signal(until)?.then(Instant::now);
                back = exited;
            }
            KillMethod::Reclaim => {
                back = self.reclaim(reaper, until)?.then(Instant::now);
                left = Some(self.resident());
                exited = self.wait_for_all(until)?.then(Instant::now);
            }
        }
        let resident = left.unwrap_or_else(|| self.resident());
        let left = match (back, resident) {
            // No memory is accounted to them: their exit has begun, but not ended. Use the growth
            // of the machine's free memory.
            (None, 0) => self.bytes().saturating_sub(free_bytes().saturating_sub(free)),
            _ => resident,
        };
        let seconds = back.unwrap_or_else(Instant::now) - start;
        let bytes = self.bytes().saturating_sub(left);
        let back = Back { bytes, seconds: seconds.as_secs_f64() };
        // Memory that they still have must not affect the next victims.
        drop(self.busy.take());
        if let Some(group) = &self.group {
            group.open();
        }
        let gone = self.wait_for_all(Instant::now() + PATIENCE)?;
        anyhow::ensure!(gone, "the victim does not die");
        Ok(Killed { back, exit: exited.map(|exited| exited - start) })
    }

    fn resident(&self) -> u64 {
        self.victims.iter().map(|one| resident(one.victim.pid())).sum()
    }

    /// Sends the signal alone. False if they have not exited in time.
    fn signal(&self, until: Instant) -> Result<bool> {
        for one in &self.victims {
            one.victim.send_kill().context("the victim")?;
        }
        self.wait_for_all(until)
    }

    fn wait_for_all(&self, until: Instant) -> Result<bool> {
        for one in &self.victims {
            let mut fds = [PollFd::new(&one.victim, PollFlags::IN)];
            let left = until.saturating_duration_since(Instant::now());
            if poll(&mut fds, Some(&timespec(left))).context("poll")? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Kills as the daemon does. False if the memory was not back in time.
    fn reclaim(&self, reaper: &Reaper, until: Instant) -> Result<bool> {
        let mut reclaims = Vec::with_capacity(self.victims.len());
        // The tokens are unique, so that late results of other victims match nothing.
        let first = LAST_TOKEN.fetch_add(self.victims.len() as u64, Ordering::Relaxed);
        for (token, one) in (first..).zip(&self.victims) {
            one.victim.send_kill().context("the victim")?;
            let mut reclaim = Reclaim::new(one.victim.clone());
            reclaim.step(reaper, token);
            reclaims.push(reclaim);
        }
        loop {
            for (token, reclaim) in (first..).zip(&mut reclaims) {
                reclaim.step(reaper, token);
            }
            reaper.drain(|token, done| {
                let at = token.checked_sub(first).map(|at| at as usize);
                if let Some(reclaim) = at.and_then(|at| reclaims.get_mut(at)) {
                    reclaim.helped(done);
                }
            });
            let pending: Vec<&Reclaim> =
                reclaims.iter().filter(|r| r.progress() == Progress::Pending).collect();
            let left = until.saturating_duration_since(Instant::now());
            if pending.is_empty() || left.is_zero() {
                return Ok(pending.is_empty());
            }
            let mut fds: Vec<PollFd> =
                pending.iter().map(|r| PollFd::new(*r, PollFlags::IN)).collect();
            fds.push(PollFd::from_borrowed_fd(reaper.as_fd(), PollFlags::IN));
            poll(&mut fds, Some(&timespec(left))).context("poll")?;
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // A frozen process would never exit.
        if let Some(group) = &self.group {
            group.open();
        }
    }
}

fn stop(pid: u32) -> Result<()> {
    let raw = Pid::from_raw(pid as i32).context("no pid")?;
    kill_process(raw, Signal::STOP).context("SIGSTOP")?;
    let stopped = wait::until(PATIENCE, || (wait::state(pid) == Some('T')).then_some(()));
    stopped.with_context(|| format!("process {pid} does not stop"))
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Free memory of the machine.
fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram * u64::from(info.mem_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_condition_has_its_own_place() {
        assert!((0..).zip(Condition::all()).all(|(at, condition)| condition as usize == at));
    }
}
