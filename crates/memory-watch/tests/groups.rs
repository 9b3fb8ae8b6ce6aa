//! Users who share an account, and what of their memory it counts.

mod support;

use memory_watch::Charge;
use memory_watch::Counted;
use memory_watch::Event;
use memory_watch::Killed;
use memory_watch::KilledBy;
use memory_watch::Notifier;
use memory_watch::ProcPoller;
use memory_watch::SlotLimit;
use memory_watch::Watch;
use support::FAR_AWAY;
use support::Hog;
use support::MIB;
use support::eventually;
use support::fault_batch;
use support::notifier;
use support::pages_by_proc;

/// A number that is no user's.
const GROUP: u32 = 0xffff_1234;
/// An exact account that never kills.
const EXACT: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: FAR_AWAY };
const LIMIT: SlotLimit = SlotLimit { soft_pages: 48 * MIB, hard_pages: 64 * MIB };

fn of(uids: &[u32]) -> Charge {
    Charge { uids: uids.to_vec(), counted: Counted::default() }
}

fn limited(uids: &[u32], limit: SlotLimit) -> Option<Notifier> {
    let mut notifier = notifier()?;
    notifier.charge(GROUP, of(uids)).unwrap();
    notifier.set_limit(GROUP, limit).unwrap();
    Some(notifier)
}

/// A hog may take a page or two after its answer, on its way to sleep: hence `eventually`.
fn assert_holds(notifier: &Notifier, account: u32, uids: &[u32]) {
    let behind = fault_batch() * 9;
    eventually("account and /proc agree", || {
        let truth: u64 = uids.iter().map(|uid| pages_by_proc(*uid)).sum();
        let pages = notifier.usage(account).unwrap().pages;
        pages.abs_diff(truth) <= behind || {
            println!("account {pages}, /proc {truth}");
            false
        }
    });
}

fn killed(notifier: &mut Notifier) -> Killed {
    let mut found = None;
    eventually("somebody is killed", || {
        notifier.drain(&mut |event| {
            if let Event::HardCrossed { uid, killed: Some(killed), .. } = event {
                assert_eq!(uid, GROUP);
                found = Some(killed);
            }
        });
        found.is_some()
    });
    found.unwrap()
}

fn can_kill_others() -> bool {
    let can =
        memory_watch::capability::probe(memory_watch::Capability::SendSignalTask).is_present();
    if !can {
        println!("skipped: this kernel has no bpf_send_signal_task (Linux 6.13)");
    }
    can
}

#[test]
fn users_of_a_group_share_one_account_and_nobody_else_is_in_it() {
    let (alice, bob, carol) = (61_601, 61_602, 61_603);
    let Some(notifier) = limited(&[alice, bob], EXACT) else { return };
    let mut hogs = [alice, bob, carol].map(Hog::start);
    for (hog, pages) in hogs.iter_mut().zip([1000, 2000, 4000]) {
        hog.tell(&format!("touch {pages}"));
    }
    assert_holds(&notifier, GROUP, &[alice, bob]);
    assert!(notifier.usage(alice).is_none() && notifier.usage(carol).is_none());
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    let sample = samples.iter().find(|sample| sample.tgid == hogs[1].pid()).unwrap();
    let charged = notifier.charged(sample).unwrap().unwrap();
    assert_eq!((sample.uid, charged.uid), (bob, GROUP));
}

#[test]
fn a_process_that_becomes_another_of_the_group_is_charged_once() {
    let (alice, bob) = (61_604, 61_605);
    let Some(mut notifier) = limited(&[alice, bob], EXACT) else { return };
    // Its effective uid is root's: it can come back.
    let mut hog = Hog::start(0);
    hog.tell("touch 2000");
    for uid in [alice, bob, alice, bob] {
        hog.tell(&format!("realuid {uid}"));
        hog.tell("touch 100");
        assert_holds(&notifier, GROUP, &[alice, bob]);
    }
    drop(hog);
    eventually("the account is empty", || notifier.usage(GROUP).unwrap().pages == 0);
    assert_eq!(notifier.reconcile().unwrap().accounts, 0);
}

#[test]
fn the_largest_of_the_group_dies_in_the_fault_of_another_of_its_users() {
    let (alice, bob) = (61_606, 61_607);
    if !can_kill_others() {
        return;
    }
    let Some(mut notifier) = limited(&[alice, bob], LIMIT) else { return };
    let (mut large, mut small) = (Hog::start(alice), Hog::start(bob));
    large.tell("touch 10000");
    small.tell("touch 7000");
    let killed = killed(&mut notifier);
    assert_eq!((killed.tgid, killed.uid, killed.by), (large.pid(), alice, KilledBy::UnarmedOther));
    assert!(large.was_killed() && small.is_alive());
    eventually("its pages are gone", || notifier.usage(GROUP).unwrap().dying_pages == 0);
    assert_holds(&notifier, GROUP, &[alice, bob]);
}

#[test]
fn the_armed_victim_of_a_group_dies_whosever_it_is() {
    let (alice, bob) = (61_608, 61_609);
    if !can_kill_others() {
        return;
    }
    let Some(mut notifier) = limited(&[alice, bob], LIMIT) else { return };
    let (mut idle, mut grower) = (Hog::start(alice), Hog::start(bob));
    idle.tell("touch 9000");
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    let armed = samples.iter().find(|sample| sample.tgid == idle.pid()).unwrap().as_victim();
    notifier.arm(GROUP, Some(armed)).unwrap();
    grower.tell("touch 8000");
    let killed = killed(&mut notifier);
    assert_eq!((killed.tgid, killed.by), (idle.pid(), KilledBy::ArmedOther));
    assert!(idle.was_killed() && grower.is_alive());
}

#[test]
fn who_joins_is_charged_at_once_and_who_leaves_is_no_more() {
    let (alice, bob, carol) = (61_610, 61_611, 61_612);
    let Some(mut notifier) = limited(&[alice, bob], EXACT) else { return };
    notifier.set_limit(carol, EXACT).unwrap();
    let mut hogs = [alice, bob, carol].map(Hog::start);
    for hog in &mut hogs {
        hog.tell("touch 3000");
    }
    assert_holds(&notifier, GROUP, &[alice, bob]);
    // Carol's own account is empty now, though it is there.
    notifier.charge(GROUP, of(&[alice, carol])).unwrap();
    assert_holds(&notifier, GROUP, &[alice, carol]);
    assert_eq!(notifier.usage(carol).unwrap().pages, 0);
    notifier.clear_limit(carol).unwrap();
    assert_holds(&notifier, GROUP, &[alice, carol]);
    hogs[1].tell("touch 100");
    assert_holds(&notifier, GROUP, &[alice, carol]);
    notifier.charge(GROUP, of(&[])).unwrap();
    assert_eq!(notifier.usage(GROUP).unwrap().pages, 0);
    assert_eq!(notifier.account_count().unwrap(), 0);
    notifier.set_limit(alice, EXACT).unwrap();
    assert_holds(&notifier, alice, &[alice]);
}

#[test]
fn what_is_counted_is_charged_and_nothing_else() {
    let uid = 61_613;
    let Some(mut notifier) = notifier() else { return };
    let mut hog = Hog::start(uid);
    for command in ["touch 2000", "shmem 3000", "file"] {
        hog.tell(command);
    }
    let kinds = [Counted::ANON, Counted::SHMEM, Counted::FILE, Counted::FILE.and(Counted::ANON)];
    for (at, counted) in kinds.into_iter().enumerate() {
        // Before the limit, and while there is one.
        notifier.charge(uid, Charge { uids: vec![uid], counted }).unwrap();
        if at == 0 {
            notifier.set_limit(uid, EXACT).unwrap();
        }
        hog.tell("touch 10");
        hog.tell("shmem 10");
        eventually("exactly that is charged", || {
            let mut samples = Vec::new();
            notifier.processes(&mut samples).unwrap();
            let sample = samples.iter().find(|sample| sample.tgid == hog.pid()).unwrap();
            let pages = notifier.usage(uid).unwrap().pages;
            pages.abs_diff(sample.counted_pages(counted)) <= fault_batch() * 3 && pages > 100
        });
    }
    drop(hog);
    eventually("the account is empty", || notifier.usage(uid).unwrap().pages == 0);
    eventually("and gone", || notifier.account_count().unwrap() == 0);
}

#[test]
fn whoever_takes_what_is_not_counted_is_not_killed_for_it() {
    let uid = 61_614;
    let Some(mut notifier) = notifier() else { return };
    notifier.charge(uid, Charge { uids: vec![uid], counted: Counted::ANON }).unwrap();
    notifier.set_limit(uid, LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.tell("shmem 20000");
    assert!(hog.is_alive());
    assert_eq!(notifier.usage(uid).unwrap().hard_crossings, 0);
    hog.begin("touch 40000");
    assert!(hog.was_killed());
}

#[test]
fn polling_adds_a_group_up_as_well() {
    let (alice, bob) = (61_615, 61_616);
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to start processes of other users");
        return;
    }
    let mut poller = ProcPoller::new().unwrap();
    poller.charge(GROUP, of(&[bob, alice])).unwrap();
    poller.set_limit(GROUP, EXACT).unwrap();
    let mut hogs = [alice, bob].map(Hog::start);
    hogs[0].tell("touch 1000");
    hogs[1].tell("shmem 2000");
    eventually("account and /proc agree", || {
        poller.reconcile().unwrap();
        let truth = pages_by_proc(alice) + pages_by_proc(bob);
        truth > 3000 && poller.usage(GROUP).unwrap().pages == truth
    });
    let counted = Counted::SHMEM;
    poller.charge(GROUP, Charge { uids: vec![alice, bob], counted }).unwrap();
    assert_eq!(poller.usage(GROUP).unwrap().pages, 2000);
    poller.charge(alice, Charge::of_user(alice)).unwrap();
    poller.reconcile().unwrap();
    let mut samples = Vec::new();
    poller.processes(&mut samples).unwrap();
    let of_hog = |pid| samples.iter().find(|sample| sample.tgid == pid).unwrap();
    assert_eq!(poller.charged(of_hog(hogs[0].pid())).unwrap(), None, "alice has no limit");
    let charged = poller.charged(of_hog(hogs[1].pid())).unwrap().unwrap();
    assert_eq!((charged.uid, charged.pages), (GROUP, 2000));
}
