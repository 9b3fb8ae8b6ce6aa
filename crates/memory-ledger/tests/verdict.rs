//! Victim selection, in single scenarios.

mod support;

use memory_ledger::{
    AccountId, Action, Cause, Comm, Groups, Herd, KillPreference, Limit, NoVictim, Process,
    ProcessId, Reading, Requester, Source, Uid,
};
use support::{Engine, Verdict};

const ALICE: AccountId = AccountId::User(Uid(1000));
const BOB: AccountId = AccountId::User(Uid(1001));
const CAROL: AccountId = AccountId::User(Uid(1002));
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn process(pid: u32, account: AccountId, mib: u64) -> Process {
    Process {
        id: ProcessId { pid, start_time: u64::from(pid) },
        rss_bytes: mib * MIB,
        comm: Comm::new(b"hog"),
        ..Process::of(account.user().unwrap())
    }
}

/// Both users limited to 100 MiB, using `alice` and `bob` MiB.
fn engine(alice: u64, bob: u64) -> Engine {
    let mut engine = Engine::default();
    for (account, used) in [(BOB, bob), (ALICE, alice)] {
        let limit = Limit::new(100 * MIB, None).unwrap();
        let change =
            engine.ledger.plan_set(account, limit, Source::Runtime, Requester::Root).unwrap();
        engine.ledger.apply(change);
        read(&mut engine, account, used, 0, 0);
    }
    engine
}

fn read(engine: &mut Engine, account: AccountId, used: u64, dying: u64, at_ns: u64) {
    let reading = Reading { used_bytes: used * MIB, dying_bytes: dying * MIB, at_ns };
    engine.ledger.read(account, reading);
    engine.kills.read(account, reading, 100 * MIB);
}

/// Performs the actions that are due at this time. Returns how many kills have settled.
fn poll(engine: &mut Engine, now_ns: u64) -> usize {
    let actions = std::iter::from_fn(|| engine.kills.poll(now_ns));
    actions.filter(|action| matches!(action, Action::Settled { .. })).count()
}

fn victim(verdict: Verdict) -> Option<u32> {
    match verdict {
        Verdict::Kill(choice) => Some(choice.victim.id.pid),
        _ => None,
    }
}

#[test]
fn the_largest_process_of_the_offending_user_dies_and_the_next_largest_is_named() {
    let processes = [process(10, ALICE, 40), process(11, ALICE, 50), process(12, BOB, 90)];
    let Verdict::Kill(choice) = engine(101, 90).decide(ALICE, &processes, &[]) else {
        panic!("no victim")
    };
    assert_eq!(choice.victim.id.pid, 11);
    assert_eq!(choice.runner_up.unwrap().id.pid, 10);
    assert_eq!(choice.considered, 2);
}

#[test]
fn usage_at_the_limit_or_without_one_causes_no_kill() {
    let processes = [process(10, ALICE, 100), process(12, CAROL, 9000)];
    assert_eq!(engine(100, 0).decide(ALICE, &processes, &[]), Verdict::Within);
    assert_eq!(engine(100, 0).decide(CAROL, &processes, &[]), Verdict::Within);
}

#[test]
fn swapped_memory_counts() {
    let swapped = Process { swap_bytes: 60 * MIB, ..process(10, ALICE, 1) };
    let verdict = engine(111, 0).decide(ALICE, &[process(11, ALICE, 50), swapped], &[]);
    assert_eq!(victim(verdict), Some(10));
}

#[test]
fn protected_processes_are_never_chosen() {
    let refused = Process { preference: KillPreference::Never, ..process(20, ALICE, 90) };
    let zombie = Process { exiting: true, ..process(21, ALICE, 90) };
    let processes = [
        process(1, ALICE, 90),
        refused,
        zombie,
        process(22, ALICE, 90), // protected
        process(23, ALICE, 0),
        process(24, ALICE, 5),
    ];
    let engine = engine(400, 0);
    assert_eq!(victim(engine.decide(ALICE, &processes, &[22])), Some(24), "the only eligible one");
    let verdict = engine.decide(ALICE, &processes[..5], &[22]);
    let none_eligible = NoVictim::NoneEligible { considered: 5, protected: 3, dying: 1, empty: 1 };
    assert_eq!(verdict, Verdict::NoVictim(none_eligible));
    assert_eq!(engine.decide(ALICE, &[], &[]), Verdict::NoVictim(NoVictim::NoProcess));
}

#[test]
fn the_younger_of_equals_dies_in_any_list_order() {
    let mut processes = [process(10, ALICE, 60), process(12, ALICE, 60), process(11, ALICE, 60)];
    for _ in 0..3 {
        processes.rotate_left(1);
        assert_eq!(victim(engine(180, 0).decide(ALICE, &processes, &[])), Some(12));
    }
}

#[test]
fn the_next_one_waits_until_the_last_ones_memory_is_back() {
    let mut engine = engine(110, 0);
    let processes = [process(10, ALICE, 60), process(11, ALICE, 50)];
    let token = engine.kill(&processes[0], 0);
    read(&mut engine, ALICE, 115, 60, MS);
    assert_eq!(engine.decide(ALICE, &processes, &[]), Verdict::Wait);
    engine.kills.gone(token, 2 * MS);
    read(&mut engine, ALICE, 56, 0, 3 * MS);
    assert_eq!(poll(&mut engine, 3 * MS), 1);
    assert_eq!(engine.decide(ALICE, &processes, &[]), Verdict::Within);
}

#[test]
fn a_victim_that_was_not_enough_is_followed_by_the_next() {
    let mut engine = engine(300, 0);
    let processes = [process(10, ALICE, 160), process(11, ALICE, 140)];
    let token = engine.kill(&processes[0], 0);
    engine.kills.gone(token, MS);
    read(&mut engine, ALICE, 140, 0, 2 * MS);
    assert_eq!(poll(&mut engine, 2 * MS), 1);
    assert_eq!(victim(engine.decide(ALICE, &processes[1..], &[])), Some(11));
}

#[test]
fn one_users_victim_does_not_hold_up_another_user() {
    let mut engine = engine(110, 110);
    let processes = [process(10, ALICE, 110), process(11, BOB, 110)];
    engine.kill(&processes[0], 0);
    assert_eq!(victim(engine.decide(BOB, &processes, &[])), Some(11));
}

#[test]
fn a_victim_that_does_not_go_is_passed_over_when_its_grace_is_over() {
    let mut engine = engine(120, 0);
    let processes = [process(10, ALICE, 70), process(11, ALICE, 50)];
    engine.kill(&processes[0], 0);
    let deadline = engine.kills.all()[0].deadline_ns();
    assert_eq!(poll(&mut engine, deadline - 1), 0);
    assert_eq!(poll(&mut engine, deadline), 1);
    assert_eq!(victim(engine.decide(ALICE, &processes, &[])), Some(11));
}

#[test]
fn a_pid_that_came_back_as_another_process_is_not_the_stuck_one() {
    let mut engine = engine(120, 0);
    let old = process(10, ALICE, 70);
    engine.kill(&old, 0);
    assert_eq!(poll(&mut engine, u64::MAX), 1);
    let new = Process { id: ProcessId { start_time: 99, ..old.id }, ..old };
    assert_eq!(victim(engine.decide(ALICE, &[old], &[])), None);
    assert_eq!(victim(engine.decide(ALICE, &[new], &[])), Some(10));
}

#[test]
fn a_new_limit_counts_at_once_and_keeps_the_victim_in_flight() {
    let mut engine = engine(80, 0);
    let processes = [process(10, ALICE, 80)];
    let limit = Limit::new(50 * MIB, None).unwrap();
    let own = Requester::User(Uid(1000));
    let change = engine.ledger.plan_set(ALICE, limit, Source::Runtime, own).unwrap();
    assert_eq!(engine.decide(ALICE, &processes, &[]), Verdict::Within, "not applied yet");
    engine.ledger.apply(change);
    assert_eq!(victim(engine.decide(ALICE, &processes, &[])), Some(10));
    engine.kill(&processes[0], 0);
    engine.ledger.apply(engine.ledger.plan_clear(ALICE, own).unwrap());
    assert!(engine.kills.contains(processes[0].id) && !engine.kills.may_kill(ALICE));
    engine.ledger.apply(engine.ledger.plan_clear(ALICE, Requester::Root).unwrap());
    assert!(engine.ledger.account(ALICE).is_none());
}

#[test]
fn stuck_victims_are_forgotten_when_they_are_gone_after_all() {
    let mut engine = engine(150, 0);
    let processes = [process(10, ALICE, 70)];
    engine.kill(&processes[0], 0);
    assert_eq!(poll(&mut engine, u64::MAX), 1);
    engine.kills.forget_gone(&processes);
    assert_eq!(engine.kills.stuck(), [processes[0].id]);
    engine.kills.forget_gone(&[]);
    assert!(engine.kills.stuck().is_empty());
}

#[test]
fn the_worst_process_of_a_group_dies_for_any_member() {
    let mut engine = Engine::default();
    let groups = Groups::new([("students".to_owned(), vec![Uid(1000), Uid(1001)])]);
    let account = groups.account_of(Uid(1000));
    let ledger = &mut engine.ledger;
    ledger.set_groups(groups);
    let limit = Limit::new(100 * MIB, None).unwrap();
    ledger.apply(ledger.plan_set(account, limit, Source::Config, Requester::Root).unwrap());
    read(&mut engine, account, 120, 0, 0);
    let of_group = |process: Process| Process { account, ..process };
    let processes =
        [of_group(process(10, ALICE, 50)), of_group(process(11, BOB, 70)), process(12, CAROL, 500)];
    assert_eq!(victim(engine.decide(account, &processes, &[])), Some(11));
    assert_eq!(victim(engine.decide(account, &processes, &[11])), Some(10));
}

#[test]
fn the_cause_of_a_herd_states_its_size_and_the_kills_before() {
    let herd = Herd {
        oldest_pid: 7,
        members: 20,
        bytes: 60 << 20,
        grown_bytes: 8 << 20,
        born: 18,
        killed_kin: 4,
        killed_newborns: 3,
        bomb: false,
    };
    let text = |herd| Cause::Herd(herd).to_string();
    let family = "20 processes of one family (oldest: pid 7)";
    assert_eq!(text(herd), format!("herd: {family} have 60 MiB and took 8 of them just now"));
    let bomb = Herd { bomb: true, ..herd };
    let first = "fork bomb: a family of 20 processes (oldest: pid 7), 18 of them new, has 60 MiB";
    assert_eq!(text(bomb), format!("{first}; 3 more were new, and killed just before"));
    assert_eq!(text(Herd { killed_newborns: 0, ..bomb }), first);
}
