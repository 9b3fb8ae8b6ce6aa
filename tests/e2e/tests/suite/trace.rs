//! The trace and the counters, as `headroom-binderd` reports them.

use binder_client::{ClientError, Payload, Session};
use control::binderd::{Call, Outcome, Reply, Request, Stat, TraceFilter};
use e2e::{Bus, wait};

use crate::support::{CALL, expect_echo, manager, open};

crate::both_mappings! {
    calls_are_traced_with_their_ends_sizes_and_outcomes
    a_late_reader_gets_the_number_of_missed_events
    a_filter_selects_the_requested_events
    commands_are_counted
}

fn read(bus: &Bus, from: Option<u64>, filter: TraceFilter) -> (Vec<Call>, u64, u64) {
    match bus.request(Request::Trace { from, filter }).unwrap() {
        Reply::Trace { calls, next, lost } => (calls, next, lost),
        other => panic!("{other:?}"),
    }
}

/// Reads everything from `from` on, until there is nothing new.
pub(crate) fn read_all(bus: &Bus, from: u64, filter: &TraceFilter) -> (Vec<Call>, u64) {
    let (calls, _, missed) = read_on(bus, from, filter);
    (calls, missed)
}

/// The same, with the number from which the next read continues.
pub(crate) fn read_on(bus: &Bus, mut from: u64, filter: &TraceFilter) -> (Vec<Call>, u64, u64) {
    let (mut all, mut missed) = (Vec::new(), 0);
    loop {
        let (calls, next, lost) = read(bus, Some(from), filter.clone());
        all.extend(calls);
        missed += lost;
        if next == from {
            return (all, next, missed);
        }
        from = next;
    }
}

fn calls_are_traced_with_their_ends_sizes_and_outcomes(bus: &Bus) {
    let manager = manager(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let (none, from, _) = read(bus, None, TraceFilter::default());
    assert_eq!(none, [], "nothing was traced before the first request");
    expect_echo(&mut session, 0, &[1; 100]);
    session.oneway(0, 7, Payload::bytes(b"one way")).unwrap();
    let refused = session.call(4711, CALL, Payload::default()).map(drop);
    assert_eq!(refused, Err(ClientError::FailedReply));
    let seen = wait::until(wait::PATIENCE, || {
        let (calls, missed) = read_all(bus, from, &TraceFilter::default());
        assert_eq!(missed, 0);
        (calls.len() >= 3).then_some(calls)
    });
    let calls = seen.expect("three calls");
    let echo = calls.iter().find(|call| !call.oneway && call.to.is_some()).unwrap();
    assert_eq!((echo.code, echo.bytes, echo.reply_bytes), (CALL, 100, Some(100)));
    assert_eq!((echo.from.pid, &*echo.device), (std::process::id(), "binder"));
    let to = echo.to.as_ref().unwrap();
    assert_eq!((to.pid, to.tid, &*to.comm), (manager.pid(), manager.pid(), "peer"));
    assert!(echo.waited_ns.unwrap() <= echo.took_ns && echo.outcome == Outcome::Done);
    let oneway = calls.iter().find(|call| call.oneway).unwrap();
    assert_eq!((oneway.code, oneway.outcome, oneway.reply_bytes), (7, Outcome::Done, None));
    let refused = calls.iter().find(|call| call.handle == 4711).unwrap();
    assert_eq!((refused.outcome, refused.errno), (Outcome::Failed, -libc::EINVAL));
}

fn a_late_reader_gets_the_number_of_missed_events(bus: &Bus) {
    const REFUSED: u64 = 17_000;
    let client = open(bus);
    let mut session = Session::new(&client);
    let (_, from, _) = read(bus, None, TraceFilter::default());
    for round in 0..REFUSED {
        // There is no receiver.
        let refused = session.call(0, CALL, Payload::default()).map(drop);
        assert_eq!(refused, Err(ClientError::DeadReply));
        // Keeps the trace on: a reader that does not advance.
        if round % 200 == 0 {
            read(bus, Some(from + round), TraceFilter::default());
        }
    }
    let (calls, missed) = read_all(bus, from, &TraceFilter::default());
    assert_eq!(calls.len() as u64 + missed, REFUSED);
    assert!(missed > 0 && calls.len() == 16_384, "{} read, {missed} missed", calls.len());
}

fn a_filter_selects_the_requested_events(bus: &Bus) {
    let manager = manager(bus);
    let client = open(bus);
    let mut session = Session::new(&client);
    let (_, from, _) = read(bus, None, TraceFilter::default());
    for code in [1, 2, 2, 3] {
        let answer = session.call(0, code, Payload::bytes(b"filtered")).unwrap();
        session.free(answer);
    }
    let _ = session.call(99, 2, Payload::default());
    session.flush().unwrap();
    let count = |filter| read_all(bus, from, &filter).0.len();
    let every = TraceFilter::default();
    assert_eq!(count(every.clone()), 5);
    assert_eq!(count(TraceFilter { code: Some(2), ..every.clone() }), 3);
    assert_eq!(count(TraceFilter { failed: true, ..every.clone() }), 1);
    assert_eq!(count(TraceFilter { pid: Some(manager.pid()), ..every.clone() }), 4);
    assert_eq!(count(TraceFilter { comm: Some("nobody".into()), ..every.clone() }), 0);
    assert_eq!(count(TraceFilter { device: Some("hwbinder".into()), ..every }), 0);
}

fn commands_are_counted(bus: &Bus) {
    let _manager = manager(bus);
    let count = || match bus.request(Request::Stat).unwrap() {
        Reply::Stat(Stat { commands, .. }) => {
            commands.iter().find(|(name, _)| name == "BC_TRANSACTION").unwrap().1
        }
        other => panic!("{other:?}"),
    };
    let before = count();
    let client = open(bus);
    let mut session = Session::new(&client);
    (0..10).for_each(|_| expect_echo(&mut session, 0, b"counted"));
    assert_eq!(count() - before, 10);
}
