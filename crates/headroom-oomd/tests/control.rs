//! Requests on the control socket, and their authorization.

mod support;

use control::Uid;
use control::oomd::{AccountRef, HeldMemory, Reply, Request};
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, privileged};

const ALICE: Uid = Uid(62101);
const BOB: Uid = Uid(62102);

fn set(uid: Uid, mib: u64) -> Request {
    let account = AccountRef::user(uid);
    Request::SetLimit { account, hard_bytes: mib * MIB, soft_bytes: None, grace_s: None }
}

/// The message of a refusal.
fn refused(reply: Reply) -> String {
    match reply {
        Reply::Error { message } => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn visible(reply: Reply) -> Vec<(Uid, u64, String)> {
    match reply {
        Reply::Limits { limits } => {
            limits.into_iter().map(|l| (Uid(l.account.uid), l.hard_bytes / MIB, l.source)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn users_see_and_lower_their_own_limit_and_nothing_else() {
    if !privileged() {
        return;
    }
    let config = format!("[[limit]]\nuser = {ALICE}\nhard = \"100M\"\n");
    let daemon = Daemon::start(&config, &[]);
    let list = Request::ListLimits;
    let clear = |uid| Request::ClearLimit { account: AccountRef::user(uid), grace_s: None };

    assert_eq!(visible(daemon.request_as(ALICE, &list)), [(ALICE, 100, "config".into())]);
    assert_eq!(visible(daemon.request_as(BOB, &list)), []);
    assert!(refused(daemon.request_as(ALICE, &set(ALICE, 101))).contains("the configuration"));
    assert!(refused(daemon.request_as(ALICE, &clear(ALICE))).contains("the configuration"));
    assert_eq!(daemon.request_as(ALICE, &set(ALICE, 50)), Reply::Done);
    assert_eq!(visible(daemon.request_as(ALICE, &list)), [(ALICE, 50, "runtime".into())]);
    assert_eq!(daemon.request_as(ALICE, &set(ALICE, 100)), Reply::Done, "back up to root's");
    assert_eq!(daemon.request_as(ALICE, &set(ALICE, 60)), Reply::Done);
    assert_eq!(daemon.request_as(ALICE, &clear(ALICE)), Reply::Done, "its own layer");
    assert_eq!(visible(daemon.request(&list)), [(ALICE, 100, "config".into())]);

    assert_eq!(daemon.request_as(BOB, &set(BOB, 70)), Reply::Done, "lower than no limit");
    let both = [(ALICE, 100, "config".to_owned()), (BOB, 70, "runtime".to_owned())];
    assert_eq!(visible(daemon.request(&list)), both);
    assert_eq!(visible(daemon.request_as(BOB, &list)), both[1..]);
    assert!(refused(daemon.request_as(BOB, &set(ALICE, 10))).contains("only root may"));
    assert!(refused(daemon.request_as(BOB, &clear(ALICE))).contains("only root may"));
    let run = |uid: Option<Uid>| Request::RunOomKiller { account: uid.map(AccountRef::user) };
    assert!(refused(daemon.request_as(BOB, &run(Some(ALICE)))).contains("only root may"));
    assert_eq!(daemon.request_as(BOB, &run(None)), Reply::OomKillerRan { kills: vec![] });
    assert_eq!(daemon.request_as(BOB, &clear(BOB)), Reply::Done);
    assert!(refused(daemon.request_as(BOB, &clear(BOB))).contains("has no limit"));
    assert!(refused(daemon.request_as(BOB, &run(None))).contains("has no limit"));
    assert!(matches!(daemon.request_as(BOB, &Request::Status), Reply::Status(_)));
}

#[test]
fn only_root_may_report_memory_that_it_holds_for_users() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &[]);
    daemon.set_limit(ALICE, 100 * MIB);
    let held = HeldMemory { uid: ALICE, pid: None, bytes: 1 << 40, file: None };
    let report = Request::ReportHeldMemory { held: vec![held] };
    for user in [ALICE, BOB] {
        assert!(refused(daemon.request_as(user, &report)).contains("only root may"));
    }
    assert_eq!(daemon.request(&report), Reply::Done);
}

#[test]
fn users_see_their_own_kills_only() {
    if !privileged() {
        return;
    }
    let (daemon, carol) = (Daemon::start("", &[]), Uid(62103));
    daemon.set_limit(carol, 32 * MIB);
    let mut hog = Hog::start(carol);
    hog.grow(64 << 10);
    assert!(!hog.survived());
    daemon.ended(carol);
    let count = |reply| match reply {
        Reply::Why { records } => records.len(),
        other => panic!("{other:?}"),
    };
    let why = Request::Why { last: 10 };
    assert_eq!(count(daemon.request_as(carol, &why)), 1);
    assert_eq!(count(daemon.request_as(BOB, &why)), 0);
    assert_eq!(count(daemon.request(&why)), 1);
    assert_eq!(count(daemon.request(&Request::Why { last: 0 })), 0);
}

#[test]
fn requests_that_make_no_sense_are_refused_with_the_reason_and_others_go_on() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &[]);
    let limit = |uid, hard_bytes, soft_bytes| Request::SetLimit {
        account: AccountRef::user(uid),
        hard_bytes,
        soft_bytes,
        grace_s: None,
    };
    let cases = [
        (limit(ALICE, 0, None), "clear it"),
        (limit(ALICE, 512, None), "Add a unit"),
        (limit(ALICE, MIB, Some(0)), "soft limit of 0"),
        (limit(ALICE, MIB, Some(2 * MIB)), "above the hard limit"),
        (limit(Uid::ROOT, MIB, None), "uid 0 cannot be limited"),
        (limit(Uid::NONE, MIB, None), "no user"),
        (Request::ClearLimit { account: AccountRef::user(ALICE), grace_s: None }, "has no limit"),
        (Request::RunOomKiller { account: Some(AccountRef::user(ALICE)) }, "has no limit"),
    ];
    for (request, part) in cases {
        let message = refused(daemon.request(&request));
        assert!(message.contains(part), "{request:?}: {message}");
    }
    let mut client = control::Client::connect(&daemon.socket()).unwrap();
    let garbage = serde_json::json!({ "request": "set-limit", "account": { "uid": -1 } });
    let message = refused(client.call(&garbage).unwrap());
    assert!(message.contains("cannot understand the request"), "{message}");
    assert!(matches!(client.call(&Request::Status).unwrap(), Reply::Status(_)));
    assert_eq!(daemon.status().limited_users, 0);
}
