//! The fallback that reads `/proc` on a timer.

#[path = "../../../tests/contracts/watch.rs"]
mod contract;
mod support;

use memory_ledger::{Count, Uid};
use memory_watch::process::Proc;
use memory_watch::{Event, ProcPoller, SlotLimit, Watch};
use support::{Hog, MIB, eventually};

#[test]
fn polling_reports_both_crossings_without_kills() {
    if !test_support::privileged() {
        return;
    }
    let uid = Uid(61_201);
    let mut poller = ProcPoller::new().unwrap();
    let limit = SlotLimit { soft_pages: 16 * MIB, hard_pages: 24 * MIB };
    poller.set_limit(uid.into(), limit).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 5000");
    let mut events = Vec::new();
    eventually("the soft crossing", || {
        poller.drain(&mut |event| events.push(event));
        matches!(events[..], [Event::SoftCrossed { account, .. }] if account == uid.into())
    });
    hog.execute("touch 2000");
    eventually("the hard crossing", || {
        poller.drain(&mut |event| events.push(event));
        matches!(events[..], [_, Event::HardCrossed { killed: None, .. }])
    });
    assert!(hog.is_alive());
    let mut samples = Vec::new();
    poller.processes(&mut samples).unwrap();
    let sample = samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog");
    assert_eq!(poller.usage(uid.into()).unwrap().pages, sample.counted_pages(Count::default()));

    assert!(poller.take_latch(uid.into()).unwrap());
    poller.count_dying(uid.into(), sample.id()).unwrap();
    assert!(!poller.take_latch(uid.into()).unwrap());
    assert_eq!(poller.usage(uid.into()).unwrap().live_pages(), 0);
    drop(hog);
    poller.reconcile().unwrap();
    poller.release_latch(uid.into());
    assert_eq!(poller.usage(uid.into()).unwrap().pages, 0);
    poller.clear_limit(uid.into()).unwrap();
    assert!(poller.usage(uid.into()).is_none());
}

/// Checks what every watch does, with a process of a user of its own.
fn check_contract(watch: &mut dyn Watch, uid: Uid) {
    contract::check_limits(watch, uid.into());
    let mut hog = Hog::start(uid);
    hog.execute("touch 300");
    let far_away = SlotLimit { soft_pages: support::FAR_AWAY, hard_pages: support::FAR_AWAY };
    watch.set_limit(uid.into(), far_away).unwrap();
    let mut samples = Vec::new();
    watch.processes(&mut samples).unwrap();
    let member = samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog");
    contract::check_latch(watch, uid.into(), member.id());
    contract::check_charge(watch, uid.into(), member.id());
    assert!(hog.is_alive());
}

#[test]
fn the_poller_fulfils_the_contract() {
    if test_support::privileged() {
        check_contract(&mut ProcPoller::new().unwrap(), Uid(61_210));
    }
}

#[test]
fn the_notifier_fulfils_the_contract() {
    if let Some(mut notifier) = support::notifier() {
        check_contract(&mut notifier, Uid(61_211));
    }
}

#[test]
fn polling_and_the_notifier_see_the_same_processes() {
    let Some(notifier) = support::notifier() else { return };
    let poller = ProcPoller::new().unwrap();
    let uid = Uid(61_202);
    let mut hog = Hog::start(uid);
    hog.execute("touch 300");
    let (mut in_kernel, mut in_proc) = (Vec::new(), Vec::new());
    notifier.processes(&mut in_kernel).unwrap();
    poller.processes(&mut in_proc).unwrap();
    let find = |samples: &[memory_watch::ProcessSample]| {
        *samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog")
    };
    let (mut kernel, proc) = (find(&in_kernel), find(&in_proc));
    // The poller cannot read it.
    kernel.mm_id = 0;
    assert_eq!(kernel, proc);
}

#[test]
fn a_process_whose_main_thread_has_exited_is_counted_and_can_be_chosen() {
    if !test_support::privileged() {
        return;
    }
    let uid = Uid(61_203);
    let mut hog = Hog::start(uid);
    hog.execute("touch 700");
    hog.execute("memfd 64");
    hog.execute("leaderexit");
    let mut poller = ProcPoller::new().unwrap();
    let limit = SlotLimit { soft_pages: 1000 * MIB, hard_pages: 2000 * MIB };
    poller.set_limit(uid.into(), limit).unwrap();
    let pages = poller.usage(uid.into()).unwrap().pages;
    assert!(pages >= 700, "{pages} pages counted");
    let mut samples = Vec::new();
    poller.processes(&mut samples).unwrap();
    let sample = samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog");
    assert!(!sample.exiting && sample.counted_pages(Count::default()) == pages);
    let (held, _) = Proc::default().held_files(hog.pid(), 1000).unwrap();
    let held = held.iter().filter(|file| file.owner == uid && file.bytes == 64 << 10);
    assert_eq!(held.count(), 1, "its memfd");
}
