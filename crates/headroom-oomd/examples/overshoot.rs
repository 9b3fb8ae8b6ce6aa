//! By how much is a limit exceeded, and how many die for it?
//!
//! So many processes of one user take memory as fast as they can until their sum is above the limit;
//! without one of them it is not. Per case (number of processes) one line of JSON is printed:
//! pages above the limit when it was seen to be broken, pages that all processes touched from then
//! until the signal or the victim's last page, whichever is later, the number of victims, and the
//! microseconds until the signal.
//!
//! The second figure does not come from the daemon: every process writes down when it touched each
//! of its pages.
//!
//! ```text
//! cargo build --release -p headroom-oomd --bin headroom-oomd --example overshoot
//! target/release/examples/overshoot [--runs 20] [--limit-mib 256] [--notifier bpf|proc] [--busy N]
//! ```

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use control::Client;
use control::oomd::{Killer, Outcome, Reply, Request, Why};
use headroom_oomd::clock::{epoch_micros, monotonic_ns};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;
/// Nobody's uid, hopefully.
const UID: u32 = 62900;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Arguments {
    /// Runs of each case
    #[arg(long, default_value_t = 20)]
    runs: usize,
    /// The limit
    #[arg(long, default_value_t = 256)]
    limit_mib: u64,
    /// Cases: numbers of processes
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8])]
    processes: Vec<u64>,
    /// How memory is watched
    #[arg(long, default_value = "auto")]
    notifier: String,
    /// Busy loops beside
    #[arg(long, default_value_t = 0)]
    busy: usize,
    /// The daemon; by default the one that was built beside this program
    #[arg(long)]
    daemon: Option<PathBuf>,
}

/// What one run showed.
struct Run {
    above_at_break: i64,
    touched_after: u64,
    victims: usize,
    micros: u64,
    reclaim_micros: Option<u64>,
    by_kernel: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    anyhow::ensure!(rustix::process::geteuid().is_root(), "needs root");
    let busy: Vec<Reaped> = (0..arguments.busy).map(|_| busy_loop()).collect();
    for &count in &arguments.processes {
        let runs = (0..arguments.runs)
            .map(|_| run(&arguments, count))
            .collect::<anyhow::Result<Vec<Run>>>()?;
        println!("{}", line(&arguments, count, &runs));
    }
    drop(busy);
    Ok(())
}

/// A daemon or a child; killed and reaped on drop.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn busy_loop() -> Reaped {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]);
    Reaped(command.spawn().expect("sh is missing"))
}

fn start_daemon(arguments: &Arguments, dir: &Path) -> anyhow::Result<Reaped> {
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("headroom-oomd"));
    let program = arguments.daemon.clone().or_else(beside).unwrap_or_default();
    anyhow::ensure!(program.exists(), "{} is not built", program.display());
    let config = dir.join("oomd.toml");
    std::fs::write(&config, "")?;
    let daemon = Command::new(program)
        .arg("--socket")
        .arg(dir.join("oomd.sock"))
        .arg("--config")
        .arg(config)
        .args(["--notifier", &arguments.notifier])
        .stderr(if std::env::var_os("HEADROOM_LOG").is_some() {
            Stdio::inherit()
        } else {
            Stdio::null()
        })
        .spawn()?;
    Ok(Reaped(daemon))
}

/// One request, as soon as somebody answers.
fn ask(dir: &Path, request: &Request) -> anyhow::Result<Reply> {
    let start = Instant::now();
    loop {
        match Client::connect(&dir.join("oomd.sock")) {
            Ok(mut client) => return Ok(client.call(request)?),
            Err(error) if start.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Memory that parent and children share: the start signal, and a time for each page of each child.
struct Board {
    words: &'static [AtomicU64],
    pages_each: usize,
}

impl Board {
    fn new(count: u64, pages_each: usize) -> anyhow::Result<Self> {
        let words = 1 + count as usize * pages_each;
        // A file, not shared anonymous memory: its pages are not charged to the user.
        // SAFETY: O_TMPFILE gives a new descriptor, or an error that is looked at.
        let file = unsafe {
            let fd = libc::open(c"/var/tmp".as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
            anyhow::ensure!(fd >= 0, "/var/tmp: {}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        rustix::fs::ftruncate(&file, (words * 8) as u64)?;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping of the file's length, never unmapped; atomics may be shared with
        // the children.
        let words = unsafe {
            let at = mmap(std::ptr::null_mut(), words * 8, prot, flags, &file, 0)?;
            std::slice::from_raw_parts(at.cast::<AtomicU64>(), words)
        };
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        Ok(Self { words, pages_each })
    }

    fn go(&self) -> &AtomicU64 {
        &self.words[0]
    }

    fn of(&self, child: u64) -> &'static [AtomicU64] {
        let from = 1 + child as usize * self.pages_each;
        &self.words[from..from + self.pages_each]
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let at = self.words.as_ptr().cast_mut().cast();
        // SAFETY: the mapping made in `new`; nothing refers to it after the board.
        let _ = unsafe { rustix::mm::munmap(at, std::mem::size_of_val(self.words)) };
    }
}

/// A child that touches its pages when the board says go, and then waits to be killed.
fn start_child(board: &Board, child: u64) -> anyhow::Result<libc::pid_t> {
    let times = board.of(child);
    let len = times.len() * PAGE;
    let parent = std::process::id() as i32;
    // SAFETY: this program has one thread, so the child may go on as it likes; it never returns.
    let pid = unsafe { libc::fork() };
    anyhow::ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid > 0 {
        return Ok(pid);
    }
    // SAFETY: plain system calls with integers, and writes into a new mapping of that length.
    unsafe {
        libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        if libc::setresuid(UID, UID, UID) != 0 {
            libc::_exit(3);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(5);
        }
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let Ok(memory) = mmap_anonymous(std::ptr::null_mut(), len, prot, flags) else {
            libc::_exit(4)
        };
        // Also charges the child to its user: its account begins with the first change.
        memory.cast::<u8>().write_volatile(1);
        times[0].store(1, Ordering::Relaxed);
        while board.go().load(Ordering::Acquire) == 0 {
            libc::sched_yield();
        }
        for (page, time) in times.iter().enumerate().skip(1) {
            memory.cast::<u8>().add(page * PAGE).write_volatile(1);
            time.store(monotonic_ns(), Ordering::Relaxed);
        }
        loop {
            libc::pause();
        }
    }
}

fn run(arguments: &Arguments, count: u64) -> anyhow::Result<Run> {
    let dir = tempfile::tempdir()?;
    let _daemon = start_daemon(arguments, dir.path())?;
    let hard_bytes = arguments.limit_mib * MIB;
    let request = Request::SetLimit { uid: UID, hard_bytes, soft_bytes: None };
    let reply = ask(dir.path(), &request)?;
    anyhow::ensure!(reply == Reply::Done, "{reply:?}");

    // All together a sixteenth above the limit; one less is below it. One alone goes on to twice.
    let share = hard_bytes / PAGE as u64 / count;
    let pages = if count == 1 { share * 2 } else { share + share / 16 };
    let board = Board::new(count, pages as usize)?;
    let children: Vec<libc::pid_t> =
        (0..count).map(|child| start_child(&board, child)).collect::<anyhow::Result<_>>()?;
    let start = Instant::now();
    while (0..count).any(|child| board.of(child)[0].load(Ordering::Relaxed) == 0) {
        anyhow::ensure!(start.elapsed() < PATIENCE, "the children do not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    board.go().store(1, Ordering::Release);
    let result = first_kill_ended(dir.path());
    // Whoever was not killed goes on to its last page, which must not cost another one its life.
    let victims = if result.is_ok() { count_victims(&board, &children) } else { 0 };
    for pid in &children {
        // SAFETY: our own children, not waited for yet: the pids are still theirs.
        unsafe {
            libc::kill(*pid, libc::SIGKILL);
            libc::waitpid(*pid, std::ptr::null_mut(), 0);
        }
    }
    evaluate(&board, &children, &result?, victims)
}

fn first_kill_ended(dir: &Path) -> anyhow::Result<Why> {
    let start = Instant::now();
    loop {
        if let Reply::Why { records } = ask(dir, &Request::Why { last: 1000 })?
            && let Some(first) = records.last()
            && first.outcome != Outcome::Dying
        {
            return Ok(first.clone());
        }
        anyhow::ensure!(start.elapsed() < PATIENCE, "nobody was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Children that have been killed once all others have touched all of their pages.
fn count_victims(board: &Board, children: &[libc::pid_t]) -> usize {
    let start = Instant::now();
    loop {
        let dead = |pid: libc::pid_t| {
            // SAFETY: all zero bytes are a siginfo_t; waitid fills it and leaves the child unwaited.
            unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags);
                info.si_pid() == pid
            }
        };
        let ended = |child: usize| {
            board.of(child as u64).last().is_some_and(|time| time.load(Ordering::Relaxed) > 0)
        };
        let victims = children.iter().filter(|pid| dead(**pid)).count();
        let all = (0..children.len()).all(|child| ended(child) || dead(children[child]));
        if all || start.elapsed() > PATIENCE {
            return victims;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn evaluate(
    board: &Board,
    children: &[libc::pid_t],
    why: &Why,
    victims: usize,
) -> anyhow::Result<Run> {
    let victim = why.victim.as_ref().ok_or_else(|| anyhow::anyhow!("no victim: {why:?}"))?;
    let child = children.iter().position(|pid| *pid as u32 == victim.pid);
    let child = child.ok_or_else(|| anyhow::anyhow!("a stranger died: {why:?}"))?;
    // The record has the time of the signal on the other clock.
    let offset_micros = epoch_micros() as i64 - (monotonic_ns() / 1000) as i64;
    let micros = why.decide_micros.unwrap_or_default();
    let broken_ns = (why.at_micros as i64 - offset_micros - micros as i64) as u64 * 1000;
    let times = |child: usize| board.of(child as u64).iter().skip(1);
    let signalled_ns = broken_ns + micros * 1000;
    let last = times(child).map(|time| time.load(Ordering::Relaxed)).max().unwrap_or(0);
    let end = last.max(signalled_ns);
    let between = |time: &AtomicU64| (broken_ns..=end).contains(&time.load(Ordering::Relaxed));
    let touched_after =
        (0..children.len()).map(|child| times(child).filter(|t| between(t)).count() as u64).sum();
    Ok(Run {
        above_at_break: (why.used_bytes as i64 - why.hard_bytes as i64) / PAGE as i64,
        touched_after,
        victims,
        micros,
        reclaim_micros: match why.outcome {
            Outcome::Reclaimed { micros, .. } => Some(micros),
            _ => None,
        },
        by_kernel: why.killer == Some(Killer::Kernel),
    })
}

/// Median and maximum.
fn middle_and_most(values: impl Iterator<Item = i64>) -> (i64, i64) {
    let mut values: Vec<i64> = values.collect();
    values.sort_unstable();
    let at = |i: usize| values.get(i).copied().unwrap_or_default();
    (at(values.len() / 2), at(values.len().saturating_sub(1)))
}

fn line(arguments: &Arguments, count: u64, runs: &[Run]) -> String {
    let above = middle_and_most(runs.iter().map(|run| run.above_at_break));
    let after = middle_and_most(runs.iter().map(|run| run.touched_after as i64));
    let sum = middle_and_most(runs.iter().map(|run| run.above_at_break + run.touched_after as i64));
    let micros = middle_and_most(runs.iter().map(|run| run.micros as i64));
    let back = middle_and_most(runs.iter().filter_map(|run| run.reclaim_micros.map(|m| m as i64)));
    let victims = middle_and_most(runs.iter().map(|run| run.victims as i64));
    serde_json::json!({
        "benchmark": "overshoot",
        "processes": count,
        "runs": runs.len(),
        "limit_mib": arguments.limit_mib,
        "notifier": arguments.notifier,
        "busy_loops": arguments.busy,
        "pages_above_at_break": { "median": above.0, "max": above.1 },
        "pages_touched_after_break": { "median": after.0, "max": after.1 },
        "pages_above_in_all": { "median": sum.0, "max": sum.1 },
        "victims": { "median": victims.0, "max": victims.1 },
        "runs_with_one_victim": runs.iter().filter(|run| run.victims == 1).count(),
        "micros_break_to_signal": { "median": micros.0, "max": micros.1 },
        "micros_signal_to_memory_back": { "median": back.0, "max": back.1 },
        "killed_in_kernel": runs.iter().filter(|run| run.by_kernel).count(),
    })
    .to_string()
}
