//! Compares the accounts with `/proc` while a hundred processes of four users allocate, share, swap
//! out (where the machine has swap or allows the test to add some) and free memory, fork, execute,
//! exit and change their users.
//!
//! Each comparison is made while all of them are stopped (SIGSTOP, and no process is left that
//! runs), so that both sides see the same moment. `HEADROOM_TRUTH_SECONDS` sets the duration;
//! otherwise a few seconds.

mod support;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use memory_ledger::Uid;
use memory_watch::process::Proc;
use memory_watch::{Notifier, SlotLimit, Watch};
use support::swap::Swap;
use support::{FAR_AWAY, PAGE, eventually, fault_batch, notifier};

const USERS: [Uid; 4] = [Uid(61_401), Uid(61_402), Uid(61_403), Uid(61_404)];
/// These users are above their soft limit, where every page counts at once; the others are far
/// below.
const EXACT: [Uid; 2] = [USERS[0], USERS[1]];
const PROCESSES: usize = 100;
const SHORT: Duration = Duration::from_secs(4);
/// Scan interval of the daemon while no user is near its limit.
const RECONCILE: Duration = Duration::from_secs(2);
/// Maximum wait until all are stopped, on a machine with a hundred other runnable processes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tolerated error of a user's account, as a fraction of its usage.
const TOLERATED: f64 = 0.01;

/// A process group that churns memory, killed at the latest on drop.
struct Churner(Child);

impl Churner {
    fn start(seed: usize, users: &[Uid]) -> Self {
        let child = Command::new(test_support::programs::memory_hog())
            .args(["churn", &seed.to_string()])
            .args(users.iter().map(Uid::to_string))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("start a churner");
        Self(child)
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: integers only; a process group of our own child, which was not waited for.
        unsafe { libc::kill(-(self.0.id() as i32), signal) };
    }
}

impl Drop for Churner {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Lower and upper bound of a user's usage according to `/proc`. They differ by processes that are
/// changing from one user to another.
#[derive(Clone, Copy, Default)]
struct Truth {
    least: u64,
    most: u64,
    /// Part of `most` that is swapped out.
    swapped: u64,
}

impl Truth {
    fn error(&self, pages: u64) -> u64 {
        self.least.saturating_sub(pages).max(pages.saturating_sub(self.most))
    }
}

fn is_ours(uid: Uid) -> bool {
    USERS.contains(&uid)
}

/// Reads all processes of the test's users; `None` if one of them is not stopped.
fn look(proc: &mut Proc) -> Option<BTreeMap<Uid, Truth>> {
    let mut truths: BTreeMap<Uid, Truth> = BTreeMap::new();
    let (mut pids, mut pids_after) = (Vec::new(), Vec::new());
    proc.pids(&mut pids).expect("list /proc");
    for &pid in &pids {
        // The state is read first: values read after a process has stopped do not change. A process
        // that has exited is not counted.
        let Ok(stat) = proc.stat(pid) else { continue };
        let Ok(status) = proc.status(pid) else { continue };
        let Some(uid) = status.uid else { continue };
        let moving = stat.comm.starts_with(b"moving");
        if !is_ours(uid) && !moving {
            continue;
        }
        if !matches!(stat.state, b'T' | b't' | b'Z' | b'X') {
            return None;
        }
        let pages = status.charged_bytes().unwrap_or(0) / PAGE;
        let swapped = status.swap_bytes.unwrap_or(0) / PAGE;
        for user in USERS.into_iter().filter(|user| *user == uid || moving) {
            let truth = truths.entry(user).or_default();
            truth.least += if moving { 0 } else { pages };
            truth.most += pages;
            truth.swapped += swapped;
        }
    }
    // A fork that had begun when the signal arrived still creates a child, which is stopped, too.
    proc.pids(&mut pids_after).expect("list /proc");
    let mut new = pids_after.iter().filter(|pid| !pids.contains(pid));
    let ours = |pid: &u32| proc.status(*pid).is_ok_and(|it| it.uid.is_some_and(is_ours));
    (!new.any(ours)).then_some(truths)
}

/// Reads until all processes are stopped.
fn look_at_the_still(proc: &mut Proc) -> BTreeMap<Uid, Truth> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(truths) = look(proc) {
            return truths;
        }
        assert!(Instant::now() < deadline, "after {PATIENCE:?} churners still move");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Largest relative error of each user so far, and the number of comparisons.
#[derive(Default)]
struct Worst {
    error: BTreeMap<Uid, f64>,
    looks: u64,
    /// Maximum of a user's swapped-out pages.
    swapped: u64,
}

impl Worst {
    fn compare(&mut self, notifier: &Notifier, truths: &BTreeMap<Uid, Truth>) {
        self.looks += 1;
        for uid in USERS {
            let truth = truths.get(&uid).copied().unwrap_or_default();
            let pages = notifier.usage(uid.into()).expect("the user has a limit").pages;
            self.swapped = self.swapped.max(truth.swapped);
            let error = truth.error(pages) as f64 / truth.most.max(1) as f64;
            let worst = self.error.entry(uid).or_default();
            *worst = worst.max(error);
        }
    }
}

#[test]
fn accounts_follow_a_hundred_churning_processes_within_a_percent() {
    let Some(mut notifier) = notifier() else { return };
    let seconds = std::env::var("HEADROOM_TRUTH_SECONDS").ok().and_then(|text| text.parse().ok());
    let duration = seconds.map_or(SHORT, Duration::from_secs);
    let swap = Swap::on();
    for uid in USERS {
        let soft_pages = if EXACT.contains(&uid) { 1 } else { FAR_AWAY };
        notifier.set_limit(uid.into(), SlotLimit { soft_pages, hard_pages: FAR_AWAY }).unwrap();
    }
    // Every fifth process changes between all users.
    let users = |seed: usize| if seed % 5 == 4 { &USERS[..] } else { &USERS[seed % 5..=seed % 5] };
    let churners: Vec<Churner> =
        (0..PROCESSES).map(|seed| Churner::start(seed + 1, users(seed))).collect();
    let mut proc = Proc::default();
    let mut worst = Worst::default();
    let (start, mut reconciled) = (Instant::now(), Instant::now());
    while start.elapsed() < duration {
        std::thread::sleep(Duration::from_millis(50));
        notifier.drain(&mut |_| ());
        if reconciled.elapsed() >= RECONCILE {
            notifier.reconcile().unwrap();
            reconciled = Instant::now();
        }
        churners.iter().for_each(|churner| churner.signal(libc::SIGSTOP));
        let truths = look_at_the_still(&mut proc);
        worst.compare(&notifier, &truths);
        churners.iter().for_each(|churner| churner.signal(libc::SIGCONT));
    }
    let Worst { looks, swapped, .. } = worst;
    assert!(looks > 0);
    assert!(swap.is_none() || swapped > 0, "there is swap, and nothing was swapped out");
    // Before Linux 6.2 the kernel itself reports faults in batches per thread.
    let batches = if fault_batch() == 0 { 1.0 } else { 10.0 };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    for (uid, error) in &worst.error {
        // Far from the limit each CPU keeps a few dozen pages of each process in its own counters:
        // anonymous ones, shared ones, and with swap a third kind.
        let kinds = if swap.is_some() { 1.5 } else { 1.0 };
        let far = if EXACT.contains(uid) { 1.0 } else { cpus.max(2) as f64 * kinds };
        let tolerated = TOLERATED * batches * far;
        assert!(*error <= tolerated, "the account of uid {uid} was off by {:.2} %", error * 100.0);
    }
    drop(churners);
    eventually("the accounts are gone", || notifier.account_count().unwrap() == 0);
    for uid in USERS {
        let usage = notifier.usage(uid.into()).unwrap();
        assert_eq!((usage.pages, usage.lost), (0, 0), "uid {uid} after the last process");
    }
}
