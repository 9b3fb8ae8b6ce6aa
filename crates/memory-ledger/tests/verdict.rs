//! Who dies, as sentences.

use memory_ledger::{
    AccountId, Asker, Comm, Groups, Ledger, Limit, NoVictim, Process, ProcessId, Reading, Settled,
    Source, Uid, Verdict,
};

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

/// Both users limited to 100 MiB, having `alice` and `bob` MiB.
fn ledger(alice: u64, bob: u64) -> Ledger {
    let mut ledger = Ledger::default();
    for (account, used) in [(BOB, bob), (ALICE, alice)] {
        let limit = Limit::new(100 * MIB, None).unwrap();
        let change = ledger.plan_set(account, limit, Source::Runtime, Asker::Root).unwrap();
        ledger.apply(change);
        read(&mut ledger, account, used, 0, 0);
    }
    ledger
}

fn read(ledger: &mut Ledger, account: AccountId, used: u64, dying: u64, at_ns: u64) {
    let reading = Reading { used_bytes: used * MIB, dying_bytes: dying * MIB, at_ns };
    ledger.read(account, reading);
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
    let Verdict::Kill(choice) = ledger(101, 90).decide(ALICE, &processes, &[]) else {
        panic!("nobody chosen")
    };
    assert_eq!(choice.victim.id.pid, 11);
    assert_eq!(choice.runner_up.unwrap().id.pid, 10);
    assert_eq!(choice.considered, 2);
}

#[test]
fn nobody_dies_at_the_limit_or_without_one() {
    let processes = [process(10, ALICE, 100), process(12, CAROL, 9000)];
    assert_eq!(ledger(100, 0).decide(ALICE, &processes, &[]), Verdict::Within);
    assert_eq!(ledger(100, 0).decide(CAROL, &processes, &[]), Verdict::Within);
}

#[test]
fn swapped_memory_counts() {
    let swapped = Process { swap_bytes: 60 * MIB, ..process(10, ALICE, 1) };
    let verdict = ledger(111, 0).decide(ALICE, &[process(11, ALICE, 50), swapped], &[]);
    assert_eq!(victim(verdict), Some(10));
}

#[test]
fn what_must_live_lives() {
    let kernel_thread = Process { kernel_thread: true, ..process(20, ALICE, 90) };
    let zombie = Process { exiting: true, ..process(21, ALICE, 90) };
    let processes = [
        process(1, ALICE, 90),
        kernel_thread,
        zombie,
        process(22, ALICE, 90), // protected
        process(23, ALICE, 0),
        process(24, ALICE, 5),
    ];
    let ledger = ledger(400, 0);
    assert_eq!(victim(ledger.decide(ALICE, &processes, &[22])), Some(24), "the only eligible one");
    let verdict = ledger.decide(ALICE, &processes[..5], &[22]);
    let nobody = NoVictim::NoneEligible { considered: 5, protected: 3, dying: 1, empty: 1 };
    assert_eq!(verdict, Verdict::Nobody(nobody));
    assert_eq!(ledger.decide(ALICE, &[], &[]), Verdict::Nobody(NoVictim::NoProcess));
}

#[test]
fn of_equals_the_younger_dies_whatever_the_order_of_the_list() {
    let mut processes = [process(10, ALICE, 60), process(12, ALICE, 60), process(11, ALICE, 60)];
    for _ in 0..3 {
        processes.rotate_left(1);
        assert_eq!(victim(ledger(180, 0).decide(ALICE, &processes, &[])), Some(12));
    }
}

#[test]
fn the_next_one_waits_until_the_last_ones_memory_is_back() {
    let mut ledger = ledger(110, 0);
    let processes = [process(10, ALICE, 60), process(11, ALICE, 50)];
    let id = processes[0].id;
    ledger.account_mut(ALICE).unwrap().signalled(id, 60 * MIB, 110 * MIB, 0);
    read(&mut ledger, ALICE, 115, 60, MS);
    assert_eq!(ledger.decide(ALICE, &processes, &[]), Verdict::Wait(id));
    assert_eq!(ledger.account_mut(ALICE).unwrap().settle(MS), None, "not gone yet");
    ledger.account_mut(ALICE).unwrap().gone(id, 2 * MS);
    assert_eq!(ledger.account_mut(ALICE).unwrap().settle(3 * MS), None, "not read since");
    read(&mut ledger, ALICE, 56, 0, 3 * MS);
    let (_, settled) = ledger.account_mut(ALICE).unwrap().settle(3 * MS).unwrap();
    assert_eq!(settled, Settled::Back { bytes_back: 54 * MIB, took_ns: 3 * MS });
    assert_eq!(ledger.decide(ALICE, &processes, &[]), Verdict::Within);
}

#[test]
fn a_victim_that_was_not_enough_is_followed_by_the_next() {
    let mut ledger = ledger(300, 0);
    let processes = [process(10, ALICE, 160), process(11, ALICE, 140)];
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(processes[0].id, 160 * MIB, 300 * MIB, 0);
    account.gone(processes[0].id, MS);
    read(&mut ledger, ALICE, 140, 0, 2 * MS);
    assert!(ledger.account_mut(ALICE).unwrap().settle(2 * MS).is_some());
    assert_eq!(victim(ledger.decide(ALICE, &processes[1..], &[])), Some(11));
}

#[test]
fn one_users_victim_does_not_hold_up_another_user() {
    let mut ledger = ledger(110, 110);
    let processes = [process(10, ALICE, 110), process(11, BOB, 110)];
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(processes[0].id, 110 * MIB, 110 * MIB, 0);
    assert_eq!(victim(ledger.decide(BOB, &processes, &[])), Some(11));
}

#[test]
fn a_victim_that_does_not_go_is_passed_over_when_its_grace_is_over() {
    let mut ledger = ledger(120, 0);
    let processes = [process(10, ALICE, 70), process(11, ALICE, 50)];
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(processes[0].id, 70 * MIB, 120 * MIB, 0);
    let deadline = account.in_flight().unwrap().deadline_ns();
    assert_eq!(account.next_deadline_ns(), Some(deadline));
    assert_eq!(account.settle(deadline - 1), None);
    let (_, settled) = account.settle(deadline).unwrap();
    assert_eq!(settled, Settled::Stuck { took_ns: deadline });
    assert_eq!(victim(ledger.decide(ALICE, &processes, &[])), Some(11));
}

#[test]
fn a_pid_that_came_back_as_another_process_is_not_the_stuck_one() {
    let mut ledger = ledger(120, 0);
    let old = process(10, ALICE, 70);
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(old.id, 70 * MIB, 120 * MIB, 0);
    account.settle(u64::MAX).unwrap();
    let new = Process { id: ProcessId { start_time: 99, ..old.id }, ..old };
    assert_eq!(victim(ledger.decide(ALICE, &[old], &[])), None);
    assert_eq!(victim(ledger.decide(ALICE, &[new], &[])), Some(10));
}

#[test]
fn memory_that_stays_though_its_process_is_gone_delays_the_next_kill_only_for_a_bound() {
    let mut ledger = ledger(150, 0);
    let id = process(10, ALICE, 70).id;
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(id, 70 * MIB, 150 * MIB, 0);
    account.gone(id, MS);
    let bound = account.next_deadline_ns().unwrap();
    read(&mut ledger, ALICE, 150, 70, 2 * MS);
    assert_eq!(ledger.account_mut(ALICE).unwrap().settle(2 * MS), None);
    let (_, settled) = ledger.account_mut(ALICE).unwrap().settle(bound).unwrap();
    assert_eq!(settled, Settled::Back { bytes_back: 0, took_ns: bound });
}

#[test]
fn a_new_limit_counts_at_once_and_keeps_the_victim_in_flight() {
    let mut ledger = ledger(80, 0);
    let processes = [process(10, ALICE, 80)];
    let limit = Limit::new(50 * MIB, None).unwrap();
    let change = ledger.plan_set(ALICE, limit, Source::Runtime, Asker::User(Uid(1000))).unwrap();
    assert_eq!(ledger.decide(ALICE, &processes, &[]), Verdict::Within, "not applied yet");
    ledger.apply(change);
    assert_eq!(victim(ledger.decide(ALICE, &processes, &[])), Some(10));
    let id = processes[0].id;
    ledger.account_mut(ALICE).unwrap().signalled(id, 80 * MIB, 80 * MIB, 0);
    let change = ledger.plan_clear(ALICE, Asker::User(Uid(1000))).unwrap();
    ledger.apply(change);
    assert_eq!(ledger.account(ALICE).unwrap().in_flight().unwrap().id, id);
    let change = ledger.plan_clear(ALICE, Asker::Root).unwrap();
    ledger.apply(change);
    assert!(ledger.account(ALICE).is_none());
}

#[test]
fn memory_released_from_outside_counts_though_the_victim_cannot_go() {
    let mut ledger = ledger(150, 0);
    let id = process(10, ALICE, 70).id;
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(id, 70 * MIB, 150 * MIB, 0);
    account.released(id, MS);
    read(&mut ledger, ALICE, 149, 69, 2 * MS);
    assert_eq!(ledger.account_mut(ALICE).unwrap().settle(900 * MS), None, "still charged");
    read(&mut ledger, ALICE, 80, 0, 901 * MS);
    let (_, settled) = ledger.account_mut(ALICE).unwrap().settle(901 * MS).unwrap();
    assert_eq!(settled, Settled::Back { bytes_back: 70 * MIB, took_ns: 901 * MS });
}

#[test]
fn stuck_victims_are_forgotten_when_they_are_gone_after_all() {
    let mut ledger = ledger(150, 0);
    let processes = [process(10, ALICE, 70)];
    let account = ledger.account_mut(ALICE).unwrap();
    account.signalled(processes[0].id, 70 * MIB, 150 * MIB, 0);
    account.settle(u64::MAX).unwrap();
    account.forget_gone(&processes);
    assert_eq!(account.stuck(), [processes[0].id]);
    account.forget_gone(&[]);
    assert!(account.stuck().is_empty());
}

#[test]
fn of_a_group_the_worst_process_dies_whosever_it_is() {
    let mut ledger = Ledger::default();
    let groups = Groups::new([("students".to_owned(), vec![Uid(1000), Uid(1001)])]);
    let account = groups.account_of(Uid(1000));
    ledger.set_groups(groups);
    let limit = Limit::new(100 * MIB, None).unwrap();
    ledger.apply(ledger.plan_set(account, limit, Source::Config, Asker::Root).unwrap());
    read(&mut ledger, account, 120, 0, 0);
    let of_group = |process: Process| Process { account, ..process };
    let processes =
        [of_group(process(10, ALICE, 50)), of_group(process(11, BOB, 70)), process(12, CAROL, 500)];
    assert_eq!(victim(ledger.decide(account, &processes, &[])), Some(11));
    assert_eq!(victim(ledger.decide(account, &processes, &[11])), Some(10));
}
