//! Checks the memory orders of the code that threads share without locks, by all executions that
//! the memory model of Rust allows: x86 hides a missing barrier.

#![expect(clippy::duplicate_mod, reason = "the same code with loom's types")]

mod atomics {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
}
#[path = "sync.rs"]
#[expect(dead_code, reason = "a lock has no memory orders of ours")]
mod sync;

use loom::sync::Arc;
use loom::thread;

use sync::{Announcement, HelperTimer, TransferSlot};

#[test]
fn one_of_two_threads_takes_the_value_with_all_its_contents() {
    loom::model(|| {
        let slot = Arc::new(TransferSlot::new());
        slot.put(1, Box::new([1, 2, 3]));
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.take(1))
        };
        let own = slot.take(1);
        if let Some(value) = own {
            // The next value is not the one that the other thread may take.
            slot.put(2, value);
            assert!(other.join().unwrap().is_none());
            assert_eq!(slot.take(2).as_deref(), Some(&[1, 2, 3]));
        } else {
            assert_eq!(other.join().unwrap().as_deref(), Some(&[1, 2, 3]));
        }
    });
}

#[test]
fn a_value_that_was_put_while_another_thread_looks_is_complete() {
    loom::model(|| {
        let slot = Arc::new(TransferSlot::new());
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || match slot.number() {
                0 => None,
                number => slot.take(number),
            })
        };
        slot.put(7, Box::new(5));
        let own = slot.take(7);
        let taken: Vec<_> = own.into_iter().chain(other.join().unwrap()).collect();
        assert_eq!(taken, [Box::new(5)]);
    });
}

#[test]
fn the_helper_misses_no_call() {
    loom::model(|| {
        let announcement = Arc::new(Announcement::new());
        // A call that armed the timer, which expires while the next call begins.
        announcement.enter(7);
        announcement.leave();
        let helper = {
            let announcement = Arc::clone(&announcement);
            thread::spawn(move || announcement.on_timer())
        };
        let (call, timer) = announcement.enter(8);
        let is_found = helper.join().unwrap();
        assert!(is_found || timer == HelperTimer::ToBeArmed);
        assert_eq!((announcement.tid(), announcement.call()), (8, call));
    });
}

#[test]
fn the_helper_reads_the_number_of_the_call_that_it_finds() {
    loom::model(|| {
        let announcement = Arc::new(Announcement::new());
        let helper = {
            let announcement = Arc::clone(&announcement);
            thread::spawn(move || {
                if announcement.tid() != 0 {
                    assert_eq!(announcement.call(), 1);
                }
            })
        };
        announcement.enter(8);
        helper.join().unwrap();
    });
}
