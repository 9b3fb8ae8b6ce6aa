//! The accounts against `/proc`, all the time, while a hundred processes of four users take, share,
//! swap out (where the machine has swap or lets us have some) and give back memory, fork, execute,
//! exit and change their users.
//!
//! A look is made while all of them stand still (SIGSTOP, and no process is left that runs), so
//! that both sides see the same moment. `HEADROOM_TRUTH_SECONDS` says for how long; otherwise a few
//! seconds.

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
/// These are above their soft limit, where every page counts at once; the others far from it.
const EXACT: [Uid; 2] = [USERS[0], USERS[1]];
const PROCESSES: usize = 100;
const SHORT: Duration = Duration::from_secs(4);
/// As often as the daemon scans while nobody is near its limit.
const RECONCILE: Duration = Duration::from_secs(2);
/// To stand still, on a machine on which a hundred others want to run.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a user's account may be off by, in parts of what it has.
const TOLERATED: f64 = 0.01;

/// A process group that churns, killed at the latest on drop.
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

/// What `/proc` says of a user: at least, and at most. They differ by processes on their way from
/// one user to another.
#[derive(Clone, Copy, Default)]
struct Truth {
    least: u64,
    most: u64,
    /// Of these, swapped out.
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

/// A look at all processes of our users; `None` while one of them still moves.
fn look(proc: &mut Proc) -> Option<BTreeMap<Uid, Truth>> {
    let mut truths: BTreeMap<Uid, Truth> = BTreeMap::new();
    let (mut pids, mut pids_after) = (Vec::new(), Vec::new());
    proc.pids(&mut pids).expect("list /proc");
    for &pid in &pids {
        // The state first: what is read after it stood still is what it has. Who is gone is
        // nobody's.
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
    // A fork that had begun when the signal came still ends with a child, which is stopped, too.
    proc.pids(&mut pids_after).expect("list /proc");
    let mut new = pids_after.iter().filter(|pid| !pids.contains(pid));
    let ours = |pid: &u32| proc.status(*pid).is_ok_and(|it| it.uid.is_some_and(is_ours));
    (!new.any(ours)).then_some(truths)
}

/// Looks until nobody moves any more.
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

/// The largest error of each user so far, in parts of what it had, and how many looks there were.
#[derive(Default)]
struct Worst {
    error: BTreeMap<Uid, f64>,
    looks: u64,
    /// The most that a user had swapped out, pages.
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
    // Every fifth moves between all users.
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
    // Before Linux 6.2 the kernel itself tells of faults in batches of a thread.
    let batches = if fault_batch() == 0 { 1.0 } else { 10.0 };
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    for (uid, error) in &worst.error {
        // Far from the limit each CPU keeps a few dozen pages of each process for itself: anonymous
        // ones, shared ones, and with swap a third kind.
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
