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

use turn::{Doorbell, Submitted, Turn, Watch, Words};

/// A ring that is watched, and the doorbell.
fn watched() -> Arc<(Words, Doorbell)> {
    let words = Words::new();
    words.set_watch(Watch::On);
    Arc::new((words, Doorbell::new()))
}

/// A client that submits a call.
fn submit(shared: &Arc<(Words, Doorbell)>) -> thread::JoinHandle<Submitted> {
    let shared = Arc::clone(shared);
    thread::spawn(move || shared.0.submit(&shared.1))
}

#[test]
fn a_daemon_that_falls_asleep_is_woken_or_sees_the_call() {
    loom::model(|| {
        let shared = watched();
        let client = submit(&shared);
        let value = shared.1.fall_asleep();
        let taken = shared.0.take();
        match client.join().unwrap() {
            Submitted::Seen => assert!(taken),
            // Also if it is woken before it sleeps: the value has changed.
            Submitted::WakeDaemon => assert_ne!(shared.1.fall_asleep(), value),
            Submitted::Withdrawn(_) => panic!("the daemon watches"),
        }
    });
}

#[test]
fn a_daemon_that_wakes_sees_the_calls_that_do_not_wake_it() {
    loom::model(|| {
        let shared = watched();
        let client = submit(&shared);
        // Another client wakes it.
        shared.1.fall_asleep();
        shared.1.wake_up();
        let early = shared.0.take();
        shared.1.fall_asleep();
        let taken = early || shared.0.take();
        assert!(taken || client.join().unwrap() == Submitted::WakeDaemon);
    });
}

#[test]
fn a_call_is_withdrawn_or_taken_when_the_daemon_stops_watching() {
    for last in [Watch::Off, Watch::Ended] {
        loom::model(move || {
            let shared = watched();
            let client = submit(&shared);
            let words = &shared.0;
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
        let shared = watched();
        let _ = shared.0.submit(&shared.1);
        let client = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.0.withdraw())
        };
        let taken = shared.0.take();
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
