//! Users that share an account, and the kinds of their memory that it counts.

mod support;

use memory_ledger::{AccountId, Count, GroupId, Uid};
use memory_watch::{Charge, Event, Killed, KilledBy, Notifier, ProcPoller, SlotLimit, Watch};
use support::{FAR_AWAY, Hog, MIB, confirm, eventually, fault_batch, notifier, pages_by_proc};

fn group() -> AccountId {
    AccountId::Group(GroupId::new(0x1234).unwrap())
}

/// An exact account that never kills.
const EXACT: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: FAR_AWAY };
const LIMIT: SlotLimit = SlotLimit { soft_pages: 48 * MIB, hard_pages: 64 * MIB };

fn of(uids: &[Uid]) -> Charge {
    Charge { uids: uids.to_vec(), count: Count::default() }
}

fn limited(uids: &[Uid], limit: SlotLimit) -> Option<Notifier> {
    let mut notifier = notifier()?;
    notifier.charge(group(), of(uids)).unwrap();
    notifier.set_limit(group(), limit).unwrap();
    Some(notifier)
}

/// A hog may touch a page or two after its reply, before it sleeps: hence `eventually`.
fn assert_holds(notifier: &Notifier, account: AccountId, uids: &[Uid]) {
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
    eventually("a process is killed", || {
        notifier.drain(&mut |event| {
            if let Event::HardCrossed { account, killed: Some(killed), .. } = event {
                assert_eq!(account, group());
                found = Some(killed);
            }
        });
        found.is_some()
    });
    found.unwrap()
}

fn can_kill_others() -> bool {
    let can = memory_watch::Capability::SendSignalTask.probe().is_ok();
    if !can {
        test_support::skip("this kernel has no bpf_send_signal_task (Linux 6.13)");
    }
    can
}

#[test]
fn users_of_a_group_share_one_account_without_others() {
    let (alice, bob, carol) = (Uid(61_601), Uid(61_602), Uid(61_603));
    let Some(notifier) = limited(&[alice, bob], EXACT) else { return };
    let mut hogs = [alice, bob, carol].map(Hog::start);
    for (hog, pages) in hogs.iter_mut().zip([1000, 2000, 4000]) {
        hog.execute(&format!("touch {pages}"));
    }
    assert_holds(&notifier, group(), &[alice, bob]);
    assert!(notifier.usage(alice.into()).is_none() && notifier.usage(carol.into()).is_none());
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    let sample = samples.iter().find(|sample| sample.tgid == hogs[1].pid()).unwrap();
    let charged = notifier.charged(sample).unwrap().unwrap();
    assert_eq!((sample.uid, charged.account), (bob, group()));
}

#[test]
fn a_process_that_becomes_another_of_the_group_is_charged_once() {
    let (alice, bob) = (Uid(61_604), Uid(61_605));
    let Some(mut notifier) = limited(&[alice, bob], EXACT) else { return };
    // Its effective uid is root's: it can change back.
    let mut hog = Hog::start(Uid::ROOT);
    hog.execute("touch 2000");
    for uid in [alice, bob, alice, bob] {
        hog.execute(&format!("realuid {uid}"));
        hog.execute("touch 100");
        assert_holds(&notifier, group(), &[alice, bob]);
    }
    drop(hog);
    eventually("the account is empty", || notifier.usage(group()).unwrap().pages == 0);
    assert_eq!(notifier.reconcile().unwrap().accounts, 0);
}

#[test]
fn the_largest_of_the_group_dies_in_the_fault_of_another_of_its_users() {
    let (alice, bob) = (Uid(61_606), Uid(61_607));
    if !can_kill_others() {
        return;
    }
    let Some(mut notifier) = limited(&[alice, bob], LIMIT) else { return };
    let (mut large, mut small) = (Hog::start(alice), Hog::start(bob));
    confirm(&mut notifier, group());
    large.execute("touch 10000");
    small.execute("touch 7000");
    let killed = killed(&mut notifier);
    assert_eq!(
        (killed.id.pid, killed.uid, killed.by),
        (large.pid(), alice, KilledBy::UnarmedOther)
    );
    assert!(large.was_killed() && small.is_alive());
    eventually("its pages are gone", || notifier.usage(group()).unwrap().dying_pages == 0);
    assert_holds(&notifier, group(), &[alice, bob]);
}

#[test]
fn the_armed_victim_of_a_group_dies_for_any_member() {
    let (alice, bob) = (Uid(61_608), Uid(61_609));
    if !can_kill_others() {
        return;
    }
    let Some(mut notifier) = limited(&[alice, bob], LIMIT) else { return };
    let (mut idle, mut grower) = (Hog::start(alice), Hog::start(bob));
    confirm(&mut notifier, group());
    idle.execute("touch 9000");
    let mut samples = Vec::new();
    notifier.processes(&mut samples).unwrap();
    let armed = samples.iter().find(|sample| sample.tgid == idle.pid()).unwrap().id();
    notifier.arm(group(), Some(armed)).unwrap();
    grower.execute("touch 8000");
    let killed = killed(&mut notifier);
    assert_eq!((killed.id.pid, killed.by), (idle.pid(), KilledBy::ArmedOther));
    assert!(idle.was_killed() && grower.is_alive());
}

#[test]
fn joining_users_are_charged_at_once_and_leaving_ones_are_not() {
    let (alice, bob, carol) = (Uid(61_610), Uid(61_611), Uid(61_612));
    let Some(mut notifier) = limited(&[alice, bob], EXACT) else { return };
    notifier.set_limit(carol.into(), EXACT).unwrap();
    let mut hogs = [alice, bob, carol].map(Hog::start);
    for hog in &mut hogs {
        hog.execute("touch 3000");
    }
    assert_holds(&notifier, group(), &[alice, bob]);
    // Carol's own account is empty now, but still exists.
    notifier.charge(group(), of(&[alice, carol])).unwrap();
    assert_holds(&notifier, group(), &[alice, carol]);
    assert_eq!(notifier.usage(carol.into()).unwrap().pages, 0);
    notifier.clear_limit(carol.into()).unwrap();
    assert_holds(&notifier, group(), &[alice, carol]);
    hogs[1].execute("touch 100");
    assert_holds(&notifier, group(), &[alice, carol]);
    notifier.charge(group(), of(&[])).unwrap();
    assert_eq!(notifier.usage(group()).unwrap().pages, 0);
    assert_eq!(notifier.account_count().unwrap(), 0);
    notifier.set_limit(alice.into(), EXACT).unwrap();
    assert_holds(&notifier, alice.into(), &[alice]);
}

#[test]
fn only_counted_kinds_are_charged() {
    let uid = Uid(61_613);
    let Some(mut notifier) = notifier() else { return };
    let mut hog = Hog::start(uid);
    for command in ["touch 2000", "shmem 3000", "file"] {
        hog.execute(command);
    }
    let kinds: [&[&str]; 4] = [&["anon"], &["shmem"], &["file"], &["file", "anon"]];
    for (at, names) in kinds.into_iter().enumerate() {
        let count = Count::of(names.iter().copied());
        // Before the limit is set, and after.
        notifier.charge(uid.into(), Charge { uids: vec![uid], count }).unwrap();
        if at == 0 {
            notifier.set_limit(uid.into(), EXACT).unwrap();
        }
        hog.execute("touch 10");
        hog.execute("shmem 10");
        eventually("exactly that is charged", || {
            let mut samples = Vec::new();
            notifier.processes(&mut samples).unwrap();
            let sample = samples.iter().find(|sample| sample.tgid == hog.pid()).unwrap();
            let pages = notifier.usage(uid.into()).unwrap().pages;
            pages.abs_diff(sample.counted_pages(count)) <= fault_batch() * 3 && pages > 100
        });
    }
    drop(hog);
    eventually("the account is empty", || notifier.usage(uid.into()).unwrap().pages == 0);
    eventually("and gone", || notifier.account_count().unwrap() == 0);
}

#[test]
fn uncounted_kinds_of_memory_kill_no_process() {
    let uid = Uid(61_614);
    let Some(mut notifier) = notifier() else { return };
    notifier.charge(uid.into(), Charge { uids: vec![uid], count: Count::of(["anon"]) }).unwrap();
    notifier.set_limit(uid.into(), LIMIT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("shmem 20000");
    assert!(hog.is_alive());
    assert_eq!(notifier.usage(uid.into()).unwrap().hard_crossings, 0);
    hog.begin("touch 40000");
    assert!(hog.was_killed());
}

#[test]
fn polling_adds_a_group_up_as_well() {
    let (alice, bob) = (Uid(61_615), Uid(61_616));
    if !test_support::privileged() {
        return;
    }
    let mut poller = ProcPoller::new().unwrap();
    poller.charge(group(), of(&[bob, alice])).unwrap();
    poller.set_limit(group(), EXACT).unwrap();
    let mut hogs = [alice, bob].map(Hog::start);
    hogs[0].execute("touch 1000");
    hogs[1].execute("shmem 2000");
    eventually("account and /proc agree", || {
        poller.reconcile().unwrap();
        let truth = pages_by_proc(alice) + pages_by_proc(bob);
        truth > 3000 && poller.usage(group()).unwrap().pages == truth
    });
    let count = Count::of(["shmem"]);
    poller.charge(group(), Charge { uids: vec![alice, bob], count }).unwrap();
    assert_eq!(poller.usage(group()).unwrap().pages, 2000);
    poller.charge(alice.into(), Charge::of(alice.into())).unwrap();
    poller.reconcile().unwrap();
    let mut samples = Vec::new();
    poller.processes(&mut samples).unwrap();
    let of_hog = |pid| samples.iter().find(|sample| sample.tgid == pid).unwrap();
    assert_eq!(poller.charged(of_hog(hogs[0].pid())).unwrap(), None, "alice has no limit");
    let charged = poller.charged(of_hog(hogs[1].pid())).unwrap().unwrap();
    assert_eq!((charged.account, charged.pages), (group(), 2000));
}
