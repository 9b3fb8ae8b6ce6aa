//! Checks the memory orders by all executions that the memory model of Rust allows: x86 hides a
//! missing barrier.

#![expect(clippy::duplicate_mod, reason = "the same code with loom's types")]

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering, fence};
}
#[path = "turn.rs"]
#[expect(dead_code, reason = "parts are for futexes")]
mod turn;

use loom::sync::Arc;
use loom::thread;

use turn::{Submitted, Turn, Watch, Words};

/// The daemon goes to sleep: it says so and looks once more. True: it has taken a call.
fn go_to_sleep(words: &Words) -> bool {
    words.set_watch(Watch::Asleep);
    words.take()
}

#[test]
fn a_daemon_that_falls_asleep_is_woken_or_sees_the_call() {
    loom::model(|| {
        let words = Arc::new(Words::new());
        words.set_watch(Watch::Awake);
        let client = {
            let words = Arc::clone(&words);
            thread::spawn(move || words.submit())
        };
        let taken = go_to_sleep(&words);
        match client.join().unwrap() {
            Submitted::Seen => assert!(taken),
            Submitted::WakeDaemon => assert!(taken || words.take()),
            Submitted::Withdrawn(_) => panic!("the daemon watches"),
        }
    });
}

#[test]
fn a_call_is_withdrawn_or_taken_when_the_daemon_stops_watching() {
    for last in [Watch::Off, Watch::Ended] {
        loom::model(move || {
            let words = Arc::new(Words::new());
            words.set_watch(Watch::Awake);
            let client = {
                let words = Arc::clone(&words);
                thread::spawn(move || words.submit())
            };
            words.set_watch(last);
            let taken = words.take();
            let submitted = client.join().unwrap();
            assert_eq!(taken, submitted == Submitted::Seen);
            let turn = if taken { Turn::Taken } else { Turn::Idle };
            assert_eq!(words.turn(), turn);
        });
    }
}

#[test]
fn a_call_that_is_withdrawn_is_not_taken() {
    loom::model(|| {
        let words = Arc::new(Words::new());
        words.set_watch(Watch::Awake);
        let _ = words.submit();
        let client = {
            let words = Arc::clone(&words);
            thread::spawn(move || words.withdraw())
        };
        let taken = words.take();
        assert_ne!(taken, client.join().unwrap());
    });
}

#[test]
fn the_result_is_visible_once_the_call_is_done() {
    loom::model(|| {
        let shared = Arc::new((Words::new(), loom::cell::UnsafeCell::new(0)));
        let client = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if shared.0.turn() == Turn::Done {
                    // SAFETY: loom checks that no other access is concurrent.
                    shared.1.with(|result| assert_eq!(unsafe { *result }, 7));
                }
            })
        };
        // SAFETY: as above.
        shared.1.with_mut(|result| unsafe { *result = 7 });
        shared.0.complete();
        client.join().unwrap();
    });
}
