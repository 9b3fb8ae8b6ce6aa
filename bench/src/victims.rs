//! Processes that hold memory and are killed, and how fast it comes back.

use std::fs;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::ptr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use reclaim::{Identity, Progress, Reaper, Reclaim, Victim};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

use crate::affinity::{self, Class};
use crate::oomd::PATIENCE;
use crate::peer::{Peer, say_ready};

/// The word that turns a peer into a victim: `peer victim MIB small|huge THREADS CLASS`.
pub const VICTIM: &str = "victim";
/// The word that turns a peer into a busy loop.
pub const BUSY: &str = "busy";
/// A victim that gets no help has so long; then what came back is counted.
pub const UNAIDED: Duration = Duration::from_secs(3);
const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// How a victim is when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Asleep on a core that nobody else of ours uses.
    Idle,
    /// `SCHED_IDLE`, beside a busy loop of ordinary priority on the same core.
    SchedIdle,
    /// Nice 19, beside the same.
    Nice19,
    /// Stopped by a signal, as on a terminal.
    Stopped,
    /// Sixty-four threads, asleep.
    Threads,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Idle, Self::SchedIdle, Self::Nice19, Self::Stopped, Self::Threads];

    /// Its name in the results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle core",
            Self::SchedIdle => "SCHED_IDLE under competition",
            Self::Nice19 => "nice 19 under competition",
            Self::Stopped => "stopped",
            Self::Threads => "64 threads",
        }
    }

    fn threads(self) -> usize {
        if self == Self::Threads { 64 } else { 1 }
    }

    fn competition(self) -> bool {
        matches!(self, Self::SchedIdle | Self::Nice19)
    }

    fn class(self) -> &'static str {
        match self {
            Self::SchedIdle => "idle",
            Self::Nice19 => "nice 19",
            Self::Idle | Self::Stopped | Self::Threads => "nice 0",
        }
    }
}

/// Of what pages the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB.
    Small,
    /// Transparent huge pages.
    Huge,
}

/// Who sees to it that the memory comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Killer {
    /// A signal, and nothing else.
    Signal,
    /// The crate `reclaim`, as the daemon uses it.
    Headroom,
}

/// What came back, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Back {
    /// Bytes.
    pub bytes: u64,
    /// From the signal on, seconds.
    pub seconds: f64,
}

impl Back {
    /// 10^6 bytes a second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.seconds
    }
}

/// Memory of our own.
struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: plain memory without ties to a thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps, but does not touch, `mib` MiB, as pages of that kind.
    fn map(mib: u64, pages: Pages) -> Result<Self> {
        let len = (mib as usize) << 20;
        let whole = len + HUGE_PAGE;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let advice = match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // SAFETY: a new mapping, whose ends beyond the aligned middle are given back. The advice
        // changes no content. A kernel without huge pages refuses it and gives small ones anyway.
        unsafe {
            let start = mmap_anonymous(ptr::null_mut(), whole, prot, flags);
            let start = start.context("no memory")?.cast::<u8>();
            let before = start.align_offset(HUGE_PAGE);
            let at = start.add(before);
            if before > 0 {
                munmap(start.cast(), before).context("munmap")?;
            }
            if before < HUGE_PAGE {
                munmap(at.add(len).cast(), HUGE_PAGE - before).context("munmap")?;
            }
            let _ = madvise(at.cast(), len, advice);
            Ok(Self { at, len })
        }
    }

    /// Touches one of so many equal parts.
    fn touch(&self, part: usize, of: usize) {
        let pages = self.len / PAGE;
        for page in pages * part / of..pages * (part + 1) / of {
            // SAFETY: inside the mapping; no two threads write to the same part.
            unsafe { self.at.add(page * PAGE).write_volatile(1) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, as long as this, and not used after.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}

/// The physical limit: how fast this process gives such memory back itself.
pub fn munmap_back(mib: u64, pages: Pages) -> Result<Back> {
    let memory = Memory::map(mib, pages)?;
    memory.touch(0, 1);
    let start = Instant::now();
    drop(memory);
    Ok(Back { bytes: mib << 20, seconds: start.elapsed().as_secs_f64() })
}

/// A peer's main function, by its words after `peer`; `None` for another kind of peer.
pub fn serve(words: &[String]) -> Option<Result<()>> {
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [BUSY] => Some(be_busy()),
        [VICTIM, mib, pages, threads, class] => Some(be_victim(mib, pages, threads, class)),
        _ => None,
    }
}

fn be_busy() -> Result<()> {
    Class::Nice(0).take()?;
    say_ready();
    loop {
        std::hint::spin_loop();
    }
}

fn be_victim(mib: &str, pages: &str, threads: &str, class: &str) -> Result<()> {
    // Not the eager class of who started us.
    Class::Nice(0).take()?;
    // If memory does run out, this is the one to go.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let pages = if pages == "huge" { Pages::Huge } else { Pages::Small };
    let memory = Memory::map(mib.parse().context("how many MiB?")?, pages)?;
    let threads: usize = threads.parse().context("how many threads?")?;
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
        if class == "idle" {
            let parameter = libc::sched_param { sched_priority: 0 };
            // SAFETY: the kernel reads the structure, which is ours.
            let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) };
            anyhow::ensure!(done == 0, "SCHED_IDLE: {}", std::io::Error::last_os_error());
        } else {
            Class::parse(class)?.take()?;
        }
        say_ready();
        loop {
            std::thread::park();
        }
    })
}

/// A victim, ready to be killed, and its competitor. Both are killed on drop.
pub struct Ready {
    peer: Peer,
    busy: Option<Peer>,
    victim: Victim,
    bytes: u64,
}

impl Ready {
    /// Starts a victim of `mib` MiB on `core`.
    pub fn start(mib: u64, pages: Pages, condition: Condition, core: usize) -> Result<Self> {
        let kind = if pages == Pages::Huge { "huge" } else { "small" };
        let [size, threads] = [mib.to_string(), condition.threads().to_string()];
        let words = [VICTIM, &size, kind, &threads, condition.class()];
        let peer = Peer::start(&words, Stdio::null(), Stdio::null())?;
        affinity::pin_process(peer.pid(), core)?;
        let pid = peer.pid();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start_ticks = start_ticks(&stat).context("no start time in /proc/PID/stat")?;
        let uid = rustix::process::getuid().as_raw();
        let victim = Victim::open(Identity { pid, uid, start_ticks })?;
        if condition == Condition::Stopped {
            stop(pid)?;
        }
        let busy = if condition.competition() {
            let busy = Peer::start(&[BUSY], Stdio::null(), Stdio::null())?;
            affinity::pin_process(busy.pid(), core)?;
            // Until it has the core, there is no competition.
            std::thread::sleep(Duration::from_millis(20));
            Some(busy)
        } else {
            None
        };
        Ok(Self { peer, busy, victim, bytes: mib << 20 })
    }

    /// The share of its memory that is in huge pages, as the kernel tells.
    pub fn huge_share(&self) -> f64 {
        let path = format!("/proc/{}/smaps_rollup", self.peer.pid());
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        (kib.unwrap_or(0) << 10) as f64 / self.bytes as f64
    }

    /// Kills it. Returns once its memory is back, or when it has had [`UNAIDED`] and got no help.
    pub fn kill(mut self, killer: Killer, reaper: &Reaper) -> Result<Back> {
        let free = free_bytes();
        let start = Instant::now();
        let signalled_ns = monotonic_ns();
        self.victim.kill().context("the victim")?;
        let in_time = match killer {
            Killer::Signal => wait_readable(&self.victim, UNAIDED)?,
            Killer::Headroom => self.reclaim(signalled_ns, reaper)?,
        };
        let seconds = start.elapsed().as_secs_f64();
        let left = if in_time { self.resident() } else { self.left_after(free) };
        let back = Back { bytes: self.bytes.saturating_sub(left), seconds };
        // Whatever it still has must not meet the next one.
        drop(self.busy.take());
        anyhow::ensure!(wait_readable(&self.victim, PATIENCE)?, "the victim does not die");
        Ok(back)
    }

    /// As the daemon does it: false when its help did not do either.
    fn reclaim(&self, signalled_ns: u64, reaper: &Reaper) -> Result<bool> {
        let mut reclaim = Reclaim::new(self.victim.clone(), self.bytes, signalled_ns);
        loop {
            let now = monotonic_ns();
            let mut progress = reclaim.step(now, reaper, 0);
            reaper.drain(|_, result| progress = reclaim.released(result));
            if progress != Progress::Pending {
                return Ok(true);
            }
            let end = signalled_ns + UNAIDED.as_nanos() as u64;
            if now >= end {
                return Ok(false);
            }
            let until = reclaim.next_deadline_ns().unwrap_or(end).min(end);
            let mut fds = [
                PollFd::new(&reclaim, PollFlags::IN),
                PollFd::from_borrowed_fd(reaper.as_fd(), PollFlags::IN),
            ];
            let timeout = timespec(Duration::from_nanos(until.saturating_sub(monotonic_ns())));
            poll(&mut fds, Some(&timeout)).context("poll")?;
        }
    }

    /// What it has, by its own account; 0 once it has none.
    fn resident(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.peer.pid()));
        let pages = text.ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        pages.unwrap_or(0) * PAGE as u64
    }

    /// What it has though it may be past having an account: its exit has begun, but not ended.
    fn left_after(&self, free_before: u64) -> u64 {
        match self.resident() {
            0 => self.bytes.saturating_sub(free_bytes().saturating_sub(free_before)),
            resident => resident,
        }
    }
}

fn stop(pid: u32) -> Result<()> {
    let raw = Pid::from_raw(pid as i32).context("no pid")?;
    kill_process(raw, Signal::STOP).context("SIGSTOP")?;
    let start = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
            return Ok(());
        }
        anyhow::ensure!(start.elapsed() < PATIENCE, "process {pid} does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_readable(victim: &Victim, patience: Duration) -> Result<bool> {
    let mut fds = [PollFd::new(victim, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timespec(patience))).context("poll")? > 0)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Free memory of the machine.
fn free_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.freeram * u64::from(info.mem_unit)
}

/// Field 22 of `/proc/PID/stat`: the start time in clock ticks.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let stat = "7 (a) R 1 (b) S 1 7 7 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 1 0 4242 0 0\n";
        assert_eq!(start_ticks(stat), Some(4242));
        assert_eq!(start_ticks("7 (a"), None);
    }

    #[test]
    fn memory_is_whole_and_aligned_whatever_its_size() {
        for mib in [1, 3, 8] {
            let memory = Memory::map(mib, Pages::Huge).unwrap();
            assert_eq!((memory.at as usize % HUGE_PAGE, memory.len), (0, (mib as usize) << 20));
            (0..3).for_each(|part| memory.touch(part, 3));
        }
        assert!(munmap_back(8, Pages::Small).unwrap().mb_per_s() > 0.0);
    }
}
