//! Compares the account of a user with `/proc`, whatever its processes do.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use memory_ledger::Uid;
use memory_watch::{Notifier, ProcPoller, SlotLimit, SpaceState, Watch};
use support::blocked_read::BlockedRead;
use support::{FAR_AWAY, Hog, eventually, fault_batch, notifier, pages_by_proc};
use test_support::hung::Hung;

/// An exact account (the soft limit is exceeded from the start) that never kills.
const EXACT: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: FAR_AWAY };
const BATCHED: SlotLimit = SlotLimit { soft_pages: FAR_AWAY, hard_pages: FAR_AWAY };

fn pages(notifier: &Notifier, uid: Uid) -> u64 {
    notifier.usage(uid.into()).expect("the user has a limit").pages
}

/// Limits `uid` so that its account is exact from the first page on.
fn exact_notifier(uid: Uid) -> Option<Notifier> {
    let mut notifier = notifier()?;
    notifier.set_limit(uid.into(), EXACT).unwrap();
    Some(notifier)
}

/// A hog may touch a page or two after its reply, before it sleeps: hence `eventually`.
fn assert_agrees(notifier: &Notifier, uid: Uid) {
    let (mut account, mut truth) = (0, 0);
    let behind = fault_batch() * notifier.account_count().unwrap() as u64 * 3;
    eventually("account and /proc agree", || {
        (account, truth) = (pages(notifier, uid), pages_by_proc(uid));
        account.abs_diff(truth) <= behind || {
            println!("uid {uid}: account {account}, /proc {truth}");
            false
        }
    });
}

/// After the last process has exited no page and no account may be left.
fn assert_empty(notifier: &mut Notifier, uid: Uid) {
    eventually("the accounts are gone", || notifier.account_count().unwrap() == 0);
    assert_eq!(pages(notifier, uid), 0);
    assert_eq!(notifier.usage(uid.into()).unwrap().lost, 0);
}

#[test]
fn anonymous_pages_are_charged_one_by_one() {
    let uid = Uid(61_001);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    assert_agrees(&notifier, uid);
    let before = pages(&notifier, uid);
    hog.execute("touch 1000");
    let grown = pages(&notifier, uid) - before;
    assert!((1000 - fault_batch()..1010 + fault_batch()).contains(&grown), "grew by {grown}");
    assert_agrees(&notifier, uid);
    hog.execute("free");
    assert_agrees(&notifier, uid);
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn memory_released_long_before_the_exit_leaves_no_charge() {
    let uid = Uid(61_030);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), BATCHED).unwrap();
    // The kernel ends with a remainder in one CPU's counter and its negative in the batched one. No
    // event at the end is about shared memory any more.
    for pages in [200, 230, 300, 330] {
        let mut hog = Hog::start(uid);
        hog.execute(&format!("shmem {pages}"));
        hog.execute("pieces 9");
        drop(hog);
        assert_empty(&mut notifier, uid);
    }
}

#[test]
fn shared_memory_is_charged_like_anonymous() {
    let uid = Uid(61_002);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    let before = pages(&notifier, uid);
    hog.execute("shmem 500");
    let grown = pages(&notifier, uid) - before;
    assert!((500 - fault_batch()..510 + fault_batch()).contains(&grown), "grew by {grown}");
    assert_agrees(&notifier, uid);
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn huge_pages_count_with_all_their_pages() {
    let uid = Uid(61_003);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    let before = pages(&notifier, uid);
    hog.execute("huge 4");
    assert_agrees(&notifier, uid);
    let grown = pages(&notifier, uid) - before;
    // A touch allocates a huge page if one is free, and otherwise a small one.
    let plausible = (0..=4).map(|huge| 512 * huge + (4 - huge));
    assert!(plausible.into_iter().any(|p| (p..p + 16).contains(&grown)), "grew by {grown}");
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn threads_of_a_process_share_one_account() {
    let uid = Uid(61_004);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    hog.execute("threads 8 300");
    assert_agrees(&notifier, uid);
    assert_eq!(notifier.account_count().unwrap(), 1);
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn a_forked_child_is_charged_before_it_runs_and_gone_when_it_dies() {
    let uid = Uid(61_005);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    hog.execute("touch 2000");
    let alone = pages(&notifier, uid);
    let child: i32 = hog.request("fork").parse().unwrap();
    assert_eq!(notifier.account_count().unwrap(), 2);
    assert!(pages(&notifier, uid) >= alone + 2000, "the child shares 2000 pages and is charged");
    assert_agrees(&notifier, uid);
    kill(child);
    hog.execute("reap");
    assert_agrees(&notifier, uid);
    eventually("the child's account is gone", || notifier.account_count().unwrap() == 1);
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn exec_starts_a_new_account_and_ends_the_old_one() {
    let uid = Uid(61_006);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    hog.execute("touch 3000");
    assert_eq!(hog.request("exec"), "ready");
    assert!(pages(&notifier, uid) < 3000, "the old memory is not charged any more");
    assert_agrees(&notifier, uid);
    assert_eq!(notifier.account_count().unwrap(), 1);
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn a_change_of_uid_moves_the_charge() {
    let (from, to) = (Uid(61_007), Uid::ROOT);
    let Some(mut notifier) = exact_notifier(from) else { return };
    let mut hog = Hog::start(Uid::ROOT);
    hog.execute("touch 1500");
    assert_eq!(pages(&notifier, from), 0, "root has no limit and no account");
    hog.execute(&format!("setuid {from}"));
    hog.execute("touch 100");
    assert!(pages(&notifier, from) >= 1500, "charged in full at its first fault");
    assert_agrees(&notifier, from);
    drop(hog);
    assert_empty(&mut notifier, from);
    assert!(notifier.usage(to.into()).is_none());
}

#[test]
fn a_change_of_uid_between_two_limited_users_moves_the_charge() {
    let (from, to) = (Uid(61_008), Uid(61_009));
    let Some(mut notifier) = exact_notifier(from) else { return };
    notifier.set_limit(to.into(), EXACT).unwrap();
    let mut hog = Hog::start(Uid::ROOT);
    hog.execute(&format!("realuid {from}"));
    hog.execute("touch 800");
    assert!(pages(&notifier, from) >= 800);
    hog.execute(&format!("realuid {to}"));
    hog.execute("touch 100");
    assert_eq!(pages(&notifier, from), 0);
    assert!(pages(&notifier, to) >= 800);
    assert_agrees(&notifier, to);
    let held = pages(&notifier, to);
    hog.execute("realuid 0");
    hog.execute("touch 1000");
    let since = pages(&notifier, to) - held;
    assert!(since < 100, "root has no limit, so new memory is charged to no account: {since}");
    notifier.reconcile().unwrap();
    assert_eq!(pages(&notifier, to), 0, "a scan ends the charge");
    drop(hog);
    assert_empty(&mut notifier, to);
}

/// Otherwise a process that can change the uid of one thread could have its memory charged to
/// another user, whose processes would be killed for it.
#[test]
fn a_thread_that_changes_its_uid_alone_moves_no_charge() {
    let (own, other) = (Uid(61_018), Uid(61_019));
    let Some(mut notifier) = exact_notifier(own) else { return };
    notifier.set_limit(other.into(), EXACT).unwrap();
    let mut hog = Hog::start(Uid::ROOT);
    hog.execute(&format!("realuid {own}"));
    hog.execute("touch 800");
    for uid in [other, Uid::ROOT] {
        let before = pages(&notifier, own);
        hog.execute(&format!("threaduid {uid} 700"));
        assert_eq!(pages(&notifier, other), 0, "no other account is charged");
        let grown = pages(&notifier, own).saturating_sub(before);
        assert!(grown + fault_batch() >= 700, "uid {uid}: grew by {grown}");
        notifier.reconcile().unwrap();
        assert_agrees(&notifier, own);
    }
    drop(hog);
    assert_empty(&mut notifier, own);
}

/// Between `vfork` and `exec` a child of another user uses its parent's memory, like a service that
/// starts a user's program.
#[test]
fn a_child_that_shares_its_parents_memory_does_not_take_it_over() {
    let (own, other) = (Uid(61_020), Uid(61_021));
    let Some(mut notifier) = exact_notifier(own) else { return };
    notifier.set_limit(other.into(), EXACT).unwrap();
    let mut hog = Hog::start(Uid::ROOT);
    hog.execute(&format!("realuid {own}"));
    hog.execute("touch 800");
    hog.execute(&format!("vforkuid {other} 700"));
    assert_eq!(notifier.usage(other.into()).unwrap().peak_pages, 0, "no other account is charged");
    assert_agrees(&notifier, own);
    drop(hog);
    assert_empty(&mut notifier, own);
}

#[test]
fn processes_that_live_when_the_limit_is_set_are_charged_at_once() {
    let uid = Uid(61_010);
    let Some(mut notifier) = notifier() else { return };
    let mut hogs: Vec<Hog> = (0..5).map(|_| Hog::start(uid)).collect();
    for hog in &mut hogs {
        hog.execute("touch 400");
    }
    notifier.set_limit(uid.into(), EXACT).unwrap();
    assert!(pages(&notifier, uid) >= 2000);
    assert_agrees(&notifier, uid);
    for hog in &mut hogs {
        hog.execute("touch 10");
    }
    assert_agrees(&notifier, uid);
    drop(hogs);
    assert_empty(&mut notifier, uid);
}

#[test]
fn a_process_whose_main_thread_has_exited_is_still_seen() {
    let uid = Uid(61_011);
    let Some(mut notifier) = notifier() else { return };
    let mut hog = Hog::start(uid);
    hog.execute("touch 700");
    hog.execute("leaderexit");
    notifier.set_limit(uid.into(), EXACT).unwrap();
    assert!(pages(&notifier, uid) >= 700, "charged {}", pages(&notifier, uid));
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    let own: Vec<_> = samples.iter().filter(|sample| sample.uid == uid).collect();
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].tgid, hog.pid());
    drop(hog);
    assert_empty(&mut notifier, uid);
}

#[test]
fn memory_that_a_system_call_uses_counts_after_its_process_has_exited() {
    let uid = Uid(61_031);
    let Some(mut notifier) = exact_notifier(uid) else { return };
    let mut hog = Hog::start(uid);
    hog.execute("touch 700");
    let listed = |notifier: &Notifier| {
        let mut samples = Vec::new();
        notifier.processes(&mut samples).unwrap();
        samples.iter().map(|sample| sample.mm_id).collect::<HashSet<u64>>()
    };
    let unlisted =
        |notifier: &Notifier| notifier.unlisted_spaces(uid.into(), &listed(notifier)).unwrap();
    assert_eq!(unlisted(&notifier), []);
    let read = BlockedRead::start(hog.pid()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(hog);
    eventually("the process is gone", || !unlisted(&notifier).is_empty());
    let found = unlisted(&notifier);
    assert!(found.len() == 1 && found[0].pages >= 700, "{found:?}");
    assert_eq!(found[0].state, SpaceState::Used);
    // Scans drop an account of an address space that is gone after two seconds.
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        notifier.reconcile().unwrap();
    }
    assert!(pages(&notifier, uid) >= 700, "charged {}", pages(&notifier, uid));
    drop(read);
    assert_empty(&mut notifier, uid);
}

#[test]
fn the_account_of_a_churning_user_is_exact() {
    for (uid, count, steps) in [(61_012, 1, 400), (61_013, 20, 100), (61_014, 100, 40)] {
        let uid = Uid(uid);
        let Some(mut notifier) = exact_notifier(uid) else { return };
        let hogs = churn(uid, count, steps);
        assert_agrees(&notifier, uid);
        let found = notifier.reconcile().unwrap();
        assert_eq!((found.drift_pages, found.added, found.dropped), (0, 0, 0), "{found:?}");
        assert_eq!(found.accounts, count as u64);
        drop(hogs);
        assert_empty(&mut notifier, uid);
    }
}

/// Processes that have churned and are asleep now.
fn churn(uid: Uid, count: usize, steps: usize) -> Vec<Hog> {
    let mut hogs: Vec<Hog> = (0..count).map(|_| Hog::start(uid)).collect();
    for (seed, hog) in hogs.iter_mut().enumerate() {
        hog.begin(&format!("churn {} {steps}", seed + 1));
    }
    for hog in &mut hogs {
        assert_eq!(hog.answer(), "ok");
    }
    hogs
}

#[test]
fn a_user_far_from_its_limits_is_charged_in_batches_and_corrected_by_a_scan() {
    let uid = Uid(61_015);
    let Some(mut notifier) = notifier() else { return };
    notifier.set_limit(uid.into(), BATCHED).unwrap();
    let hogs = churn(uid, 20, 60);
    let (account, truth) = (pages(&notifier, uid), pages_by_proc(uid));
    // Each process may hide less than a batch (32 here, more with many CPUs) per CPU and member.
    let batch = 32.max(2 * cpus());
    let bound = 20 * 3 * batch * cpus();
    assert!(account.abs_diff(truth) <= bound, "{account} against {truth}");
    let found = notifier.reconcile().unwrap();
    assert!(found.drift_pages >= account.abs_diff(truth), "{found:?}");
    assert_agrees(&notifier, uid);
    drop(hogs);
    assert_empty(&mut notifier, uid);
}

fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

#[test]
fn the_snapshot_agrees_with_proc() {
    let uid = Uid(61_016);
    let Some(notifier) = notifier() else { return };
    let mut hog = Hog::start(uid);
    hog.execute("touch 123");
    hog.execute("shmem 45");
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    let sample = samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog");
    let mut proc = memory_watch::process::Proc::default();
    let (stat, status) = (proc.stat(hog.pid()).unwrap(), proc.status(hog.pid()).unwrap());
    assert_eq!(Some(sample.anon_pages * 4096), status.anon_bytes);
    assert_eq!(Some(sample.file_pages * 4096), status.file_bytes);
    assert_eq!(Some(sample.shmem_pages * 4096), status.shmem_bytes);
    let pidfd = headroom_linux::pidfd::open(hog.pid()).unwrap();
    let start_ns = stat.start_time_ns();
    let start = headroom_linux::pidfd::number(pidfd);
    assert_eq!(start.unwrap_or(sample.start_number), sample.start_number);
    assert!(start.is_some() || sample.start_number.abs_diff(start_ns) < 10_000_000);
    assert_eq!((sample.uid, sample.parent.tgid), (uid, std::process::id()));
    assert_eq!(sample.comm, stat.comm);
    assert!(sample.mm_id != 0 && !sample.exiting);
    assert!(samples.windows(2).all(|pair| pair[0].tgid < pair[1].tgid), "each once, sorted");
}

/// The dump waits for a thread that does not exit, for as long as the test wants.
#[test]
fn a_process_that_dumps_core_is_not_exiting() {
    let Some(notifier) = notifier() else { return };
    let mut hog = Hog::start(Uid(0));
    let pid = rustix::process::Pid::from_raw(hog.pid() as i32);
    // It dumps core, and the file is too large.
    let limit = rustix::process::Rlimit { current: Some(2), maximum: Some(2) };
    rustix::process::prlimit(pid, rustix::process::Resource::Core, limit).unwrap();
    let Some(hung) = Hung::mount() else { return test_support::skip("no FUSE") };
    hog.execute(&format!("hangthread {}/anything", hung.path().display()));
    eventually("a thread waits for the file system", || hung.is_waited_for());
    send(hog.pid() as i32, libc::SIGQUIT);
    let mut proc = memory_watch::process::Proc::default();
    eventually("it dumps core", || proc.status(hog.pid()).unwrap().dumps_core);
    let (poller, mut samples) = (ProcPoller::new().unwrap(), Vec::new());
    let exiting = |samples: &[memory_watch::ProcessSample]| {
        let sample = samples.iter().find(|sample| sample.tgid == hog.pid());
        sample.expect("the hog").exiting
    };
    notifier.processes(&mut samples).unwrap();
    assert!(!exiting(&samples), "by the notifier");
    poller.processes(&mut samples).unwrap();
    assert!(!exiting(&samples), "by /proc");
    send(hog.pid() as i32, libc::SIGKILL);
    drop(hung);
    hog.signal();
}

#[test]
fn without_a_limit_nothing_is_attached() {
    let (uid, second) = (Uid(61_017), Uid(61_018));
    let Some(mut notifier) = notifier() else { return };
    assert_eq!((notifier.is_attached(), links(&notifier)), (false, 0));
    notifier.set_limit(uid.into(), EXACT).unwrap();
    notifier.set_limit(second.into(), EXACT).unwrap();
    assert_eq!((notifier.is_attached(), links(&notifier)), (true, 1));
    let mut hog = Hog::start(uid);
    hog.execute("touch 100");
    eventually("the hog is charged", || pages(&notifier, uid) > 0);
    notifier.clear_limit(uid.into()).unwrap();
    assert!(notifier.is_attached(), "another user still has a limit");
    assert!(notifier.usage(uid.into()).is_none());
    assert_eq!(notifier.account_count().unwrap(), 0);
    notifier.clear_limit(second.into()).unwrap();
    assert!(!notifier.is_attached());
    eventually("the kernel has no link to the program", || links(&notifier) == 0);
    notifier.clear_limit(second.into()).unwrap();
    // The same user again, with a new limit.
    notifier.set_limit(uid.into(), EXACT).unwrap();
    assert_agrees(&notifier, uid);
    drop(hog);
    assert_empty(&mut notifier, uid);
}

/// Number of links that attach the notifier's program to the tracepoint, according to the kernel.
fn links(notifier: &Notifier) -> usize {
    let program = notifier.run_stats().unwrap().program_id;
    libbpf_rs::query::LinkInfoIter::default().filter(|link| link.prog_id == program).count()
}

fn kill(pid: i32) {
    send(pid, libc::SIGKILL);
}

fn send(pid: i32, signal: i32) {
    // SAFETY: integers only; our own hog, or a child of it.
    unsafe { libc::kill(pid, signal) };
}
