//! The account of a user with swapped-out memory.

mod support;

use memory_ledger::Uid;
use memory_watch::process::Proc;
use memory_watch::{Notifier, SlotLimit, Watch};
use support::swap::Swap;
use support::{FAR_AWAY, Hog, PAGE, eventually, fault_batch, notifier, pages_by_proc};

const EXACT: SlotLimit = SlotLimit { soft_pages: 1, hard_pages: FAR_AWAY };
const BATCHED: SlotLimit = SlotLimit { soft_pages: FAR_AWAY, hard_pages: FAR_AWAY };
/// Pages that a hog swaps out; at least `MOST` leave memory: the kernel keeps pages in use.
const PAGES: u64 = 2000;
const MOST: u64 = 1500;

/// A notifier, swap, and a process of a limited user.
struct Scene {
    uid: Uid,
    hog: Hog,
    notifier: Notifier,
    swap: Swap,
}

impl Scene {
    fn new(uid: Uid, limit: SlotLimit) -> Option<Self> {
        let mut notifier = notifier()?;
        let swap = Swap::on()?;
        notifier.set_limit(uid.into(), limit).unwrap();
        Some(Self { uid, hog: Hog::start(uid), notifier, swap })
    }

    fn pages(&self) -> u64 {
        self.notifier.usage(self.uid.into()).expect("the user has a limit").pages
    }

    /// Swapped-out pages of the hog.
    fn swapped_pages(&self) -> u64 {
        let status = Proc::default().status(self.hog.pid()).expect("the hog lives");
        status.swap_bytes.unwrap_or(0) / PAGE
    }

    fn assert_agrees(&self) {
        let behind = fault_batch() * self.notifier.account_count().unwrap() as u64 * 3;
        eventually("account and /proc agree", || {
            let (account, truth) = (self.pages(), pages_by_proc(self.uid));
            account.abs_diff(truth) <= behind || {
                println!("uid {}: account {account}, /proc {truth}", self.uid);
                false
            }
        });
    }

    /// After the last process has exited no page and no account may be left.
    fn end(self) {
        let Self { uid, hog, notifier, swap } = self;
        drop(hog);
        eventually("the accounts are gone", || notifier.account_count().unwrap() == 0);
        let usage = notifier.usage(uid.into()).unwrap();
        assert_eq!((usage.pages, usage.lost), (0, 0));
        drop(swap);
    }
}

#[test]
fn swapped_out_memory_stays_charged_and_is_charged_once_after_swap_in() {
    let Some(mut scene) = Scene::new(Uid(61_301), EXACT) else { return };
    scene.hog.execute(&format!("touch {PAGES}"));
    let before = scene.pages();
    scene.hog.execute("pageout");
    assert!(scene.swapped_pages() >= MOST, "{} pages left", scene.swapped_pages());
    assert!(scene.pages().abs_diff(before) <= 20 + fault_batch(), "{before} {}", scene.pages());
    scene.assert_agrees();
    scene.hog.execute("again");
    assert_eq!(scene.swapped_pages(), 0);
    assert!(scene.pages().abs_diff(before) <= 20 + fault_batch(), "{before} {}", scene.pages());
    scene.assert_agrees();
    scene.end();
}

#[test]
fn a_process_that_exits_while_it_is_swapped_out_leaves_no_charge() {
    let Some(mut scene) = Scene::new(Uid(61_302), EXACT) else { return };
    scene.hog.execute(&format!("touch {PAGES}"));
    scene.hog.execute("pageout");
    assert!(scene.swapped_pages() >= MOST, "{} pages left", scene.swapped_pages());
    scene.end();
}

#[test]
fn swapped_out_memory_that_is_released_is_charged_to_no_account() {
    let Some(mut scene) = Scene::new(Uid(61_303), EXACT) else { return };
    let before = scene.pages();
    scene.hog.execute(&format!("touch {PAGES}"));
    scene.hog.execute("pageout");
    scene.hog.execute("free");
    assert!(scene.pages() <= before + 20 + fault_batch(), "{before} {}", scene.pages());
    scene.assert_agrees();
    scene.end();
}

#[test]
fn a_fork_is_charged_for_the_swapped_out_memory_of_its_parent() {
    let Some(mut scene) = Scene::new(Uid(61_304), EXACT) else { return };
    scene.hog.execute(&format!("touch {PAGES}"));
    scene.hog.execute("pageout");
    let before = scene.pages();
    scene.hog.request("fork");
    eventually("both have it", || scene.pages() >= before + MOST);
    scene.assert_agrees();
    // A read brings the page back for one process; the other one still has a swap entry.
    scene.hog.execute("again");
    scene.assert_agrees();
    scene.end();
}

#[test]
fn swapped_out_shared_memory_has_no_account_until_it_is_touched_again() {
    let Some(mut scene) = Scene::new(Uid(61_305), EXACT) else { return };
    let before = scene.pages();
    scene.hog.execute(&format!("shmem {PAGES}"));
    scene.hog.execute("pageout");
    eventually("most of it is gone", || scene.pages() <= before + PAGES - MOST);
    scene.assert_agrees();
    scene.hog.execute("again");
    assert!(scene.pages() >= before + PAGES);
    scene.assert_agrees();
    scene.end();
}

#[test]
fn memory_that_comes_back_because_swap_is_taken_away_stays_charged() {
    let Some(mut scene) = Scene::new(Uid(61_306), EXACT) else { return };
    scene.hog.execute(&format!("touch {PAGES}"));
    let before = scene.pages();
    scene.hog.execute("pageout");
    if !scene.swap.off() {
        test_support::skip("the swap is the machine's own");
        return;
    }
    assert_eq!(scene.swapped_pages(), 0);
    assert!(scene.pages().abs_diff(before) <= 20 + fault_batch(), "{before} {}", scene.pages());
    scene.assert_agrees();
    scene.end();
}

#[test]
fn an_account_far_from_its_limit_follows_swap_out() {
    let Some(mut scene) = Scene::new(Uid(61_307), BATCHED) else { return };
    scene.hog.execute(&format!("touch {PAGES}"));
    scene.hog.execute("pageout");
    scene.notifier.reconcile().unwrap();
    scene.assert_agrees();
    scene.hog.execute("again");
    scene.notifier.reconcile().unwrap();
    scene.assert_agrees();
    scene.end();
}
