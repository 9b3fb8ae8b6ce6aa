//! A process that changes to a subordinate uid in a user namespace stays charged to the owner of
//! the namespace.

mod support;

use memory_ledger::Uid;
use memory_watch::{KilledBy, Notifier, ProcPoller, ProcessSample, SlotLimit, Watch};
use support::{FAR_AWAY, Hog, MIB, eventually, notifier};

const EXACT: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: FAR_AWAY };

/// `None`: users may not create namespaces on this machine.
fn may_unshare() -> Option<()> {
    let most = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let allowed = std::fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone");
    if most.trim() == "0" || allowed.is_ok_and(|allowed| allowed.trim() == "0") {
        test_support::skip("users may make no user namespaces here");
        return None;
    }
    Some(())
}

/// Makes the hog create a namespace in which uid 5 is `base` + 5, as `newuidmap` would, and change
/// to that uid.
fn move_to_subordinate(hog: &mut Hog, outside: Uid, base: u32) {
    hog.execute("unshare");
    let map = format!("0 {outside} 1\n1 {} 100\n", base + 1);
    write_maps(hog, &map);
    hog.execute("setuid 5");
}

fn write_maps(hog: &Hog, uids: &str) {
    let file = |name: &str| format!("/proc/{}/{name}", hog.pid());
    std::fs::write(file("uid_map"), uids).unwrap();
    std::fs::write(file("gid_map"), "0 0 1\n").unwrap();
}

fn sample(watch: &dyn Watch, hog: &Hog) -> ProcessSample {
    let mut samples = Vec::new();
    watch.processes(&mut samples).unwrap();
    *samples.iter().find(|sample| sample.tgid == hog.pid()).expect("the hog is listed")
}

fn pages(notifier: &Notifier, uid: Uid) -> u64 {
    notifier.usage(uid.into()).unwrap().pages
}

#[test]
fn a_process_with_a_subordinate_uid_is_charged_to_the_owner_of_its_namespace() {
    let uid = Uid(61_701);
    let (Some(mut notifier), Some(())) = (notifier(), may_unshare()) else { return };
    notifier.set_limit(uid.into(), EXACT).unwrap();
    let mut hog = Hog::start(uid);
    hog.execute("touch 2000");
    move_to_subordinate(&mut hog, uid, 300_000);
    hog.execute("touch 3000");
    assert!(pages(&notifier, uid) > 5000, "{} pages", pages(&notifier, uid));
    let found = sample(&notifier, &hog);
    assert_eq!((found.uid, found.namespace_owner), (Uid(300_005), uid));
    assert_eq!(notifier.charged(&found).unwrap().unwrap().account, uid.into());
    // A nested namespace does not change that, nor does a limit for the subordinate uid.
    hog.execute("unshare");
    notifier.set_limit(Uid(300_005).into(), EXACT).unwrap();
    hog.execute("touch 1000");
    notifier.reconcile().unwrap();
    assert!(pages(&notifier, uid) > 6000, "{} pages", pages(&notifier, uid));
    assert_eq!(pages(&notifier, Uid(300_005)), 0);
    drop(hog);
    eventually("the account is empty", || pages(&notifier, uid) == 0);
}

#[test]
fn memory_from_before_the_limit_is_charged_to_the_owner() {
    let uid = Uid(61_702);
    let (Some(mut notifier), Some(())) = (notifier(), may_unshare()) else { return };
    let mut hog = Hog::start(uid);
    move_to_subordinate(&mut hog, uid, 301_000);
    hog.execute("touch 3000");
    // A limit for the subordinate uid alone holds until its owner has one.
    notifier.set_limit(Uid(301_005).into(), EXACT).unwrap();
    assert!(pages(&notifier, Uid(301_005)) > 3000);
    notifier.set_limit(uid.into(), EXACT).unwrap();
    assert!(pages(&notifier, uid) > 3000 && pages(&notifier, Uid(301_005)) == 0);
}

#[test]
fn a_process_with_a_subordinate_uid_dies_for_its_owners_limit() {
    let uid = Uid(61_703);
    let (Some(mut notifier), Some(())) = (notifier(), may_unshare()) else { return };
    notifier
        .set_limit(uid.into(), SlotLimit { soft_pages: 48 * MIB, hard_pages: 64 * MIB })
        .unwrap();
    for armed in [false, true] {
        let mut hog = Hog::start(uid);
        move_to_subordinate(&mut hog, uid, 302_000);
        let victim = armed.then(|| sample(&notifier, &hog).id());
        notifier.arm(uid.into(), victim).unwrap();
        hog.begin("touch 40000");
        assert!(hog.was_killed(), "armed: {armed}");
        let mut killed = None;
        notifier.drain(&mut |event| {
            if let memory_watch::Event::HardCrossed { killed: Some(it), .. } = event {
                killed = Some(it);
            }
        });
        let by = if armed { KilledBy::ArmedSelf } else { KilledBy::UnarmedSelf };
        let killed = killed.expect("the kill is reported");
        assert_eq!((killed.id.pid, killed.uid, killed.by), (hog.pid(), Uid(302_005), by));
        eventually("its pages are gone", || pages(&notifier, uid) == 0);
        notifier.release_latch(uid.into());
    }
}

#[test]
fn a_namespace_of_root_is_charged_to_the_accounts_of_its_uids() {
    let (Some(mut notifier), Some(())) = (notifier(), may_unshare()) else { return };
    notifier.set_limit(Uid(303_005).into(), EXACT).unwrap();
    let mut hog = Hog::start(Uid::ROOT);
    move_to_subordinate(&mut hog, Uid::ROOT, 303_000);
    hog.execute("touch 2000");
    assert!(pages(&notifier, Uid(303_005)) > 2000);
    let found = sample(&notifier, &hog);
    assert_eq!((found.uid, found.namespace_owner), (Uid(303_005), Uid::ROOT));
}

#[test]
fn polling_charges_the_owner_of_a_namespace_too() {
    let uid = Uid(61_704);
    if !test_support::privileged() {
        return;
    }
    if may_unshare().is_none() {
        return;
    }
    let mut poller = ProcPoller::new().unwrap();
    poller.set_limit(uid.into(), EXACT).unwrap();
    let mut hog = Hog::start(uid);
    assert_eq!(sample(&poller, &hog).namespace_owner, uid);
    move_to_subordinate(&mut hog, uid, 304_000);
    hog.execute("touch 2000");
    hog.execute("unshare");
    poller.reconcile().unwrap();
    assert!(poller.usage(uid.into()).unwrap().pages > 2000);
    let found = sample(&poller, &hog);
    assert_eq!((found.uid, found.namespace_owner), (Uid(304_005), uid));
    assert_eq!(poller.charged(&found).unwrap().unwrap().account, uid.into());
}
