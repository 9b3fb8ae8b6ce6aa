//! The state machine of kills in flight: single scenarios, and a comparison with a simple model.

use std::collections::{BTreeMap, BTreeSet};

use memory_ledger::kills_in_flight::{
    ACCOUNT_SETTLE_MS, EXIT_GRACE_MS, EXIT_GRACES_MS, HELD_MS, NO_FALL_MS,
};
use memory_ledger::{
    AccountId, Action, CgroupId, ChargedAccount, InFlightKill, KillToken, KillsInFlight, Latch,
    LatchAction, NewKill, ProcessId, Reading, Sender, Settled, Signal, Uid,
};
use proptest::prelude::*;

const ALICE: AccountId = AccountId::User(Uid(1000));
const BOB: AccountId = AccountId::User(Uid(1001));
const CGROUP: AccountId = AccountId::Cgroup(CgroupId(7));
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

fn id(pid: u32) -> ProcessId {
    ProcessId { pid, start_time: u64::from(pid) }
}

/// A SIGKILL at time 0 by the daemon to a process of 60 MiB, for an account that uses 110 MiB.
fn kill(pid: u32, account: AccountId) -> NewKill {
    NewKill {
        victim: id(pid),
        bytes: 60 * MIB,
        sender: Sender::Daemon,
        signal: Signal::Kill,
        at_ns: 0,
        payer: ChargedAccount { account, used_bytes: Some(110 * MIB) },
        cgroup: None,
    }
}

fn member(pid: u32, account: AccountId) -> NewKill {
    NewKill { payer: ChargedAccount { account, used_bytes: None }, ..kill(pid, account) }
}

fn reading(used_mib: u64, dying_mib: u64, at_ns: u64) -> Reading {
    Reading { used_bytes: used_mib * MIB, dying_bytes: dying_mib * MIB, at_ns }
}

/// A reading of an account with a limit of 100 MiB.
fn read(kills: &mut KillsInFlight, account: AccountId, reading: Reading) {
    kills.read(account, reading, 100 * MIB);
}

/// All actions that are due at this time.
fn poll(kills: &mut KillsInFlight, now_ns: u64) -> Vec<Action> {
    std::iter::from_fn(|| kills.poll(now_ns)).collect()
}

fn settled(actions: &[Action]) -> Vec<Settled> {
    let settled = actions.iter().filter_map(|action| match action {
        Action::Settled { settled, .. } => Some(*settled),
        _ => None,
    });
    settled.collect()
}

#[test]
fn the_next_kill_waits_until_the_memory_of_the_last_victim_is_back() {
    let mut kills = KillsInFlight::default();
    assert!(kills.may_kill(ALICE) && kills.may_kill_for_system());
    let (token, latch) = kills.signalled(kill(10, ALICE));
    kills.set_record(token, 77);
    assert_eq!((latch, kills.record_for(ALICE)), (LatchAction::Take, Some(77)));
    assert!(!kills.may_kill(ALICE) && kills.may_kill(BOB) && !kills.may_kill_for_system());
    assert!(kills.accounts_to_read(MS).is_empty());
    assert!(poll(&mut kills, MS).is_empty(), "not gone yet");
    kills.gone(token, 2 * MS);
    assert_eq!(kills.accounts_to_read(2 * MS), [ALICE]);
    assert!(poll(&mut kills, 3 * MS).is_empty(), "not read since");
    read(&mut kills, ALICE, reading(56, 0, 3 * MS));
    let actions = poll(&mut kills, 3 * MS);
    assert_eq!(settled(&actions), [Settled::Back { bytes_back: 54 * MIB, took_ns: 3 * MS }]);
    let free = Action::AccountFree { account: ALICE, latch: Latch::Taken, record: Some(77) };
    assert_eq!(actions.last(), Some(&free));
    assert!(kills.may_kill(ALICE) && kills.next_deadline_ns().is_none());
}

#[test]
fn victims_that_exit_one_after_the_other_are_not_stuck_meanwhile() {
    let mut kills = KillsInFlight::default();
    let members: Vec<KillToken> = (0..60).map(|n| kills.signalled(member(n, ALICE)).0).collect();
    let (of_bob, _) = kills.signalled(member(90, BOB));
    let alone = kills.get(of_bob).unwrap().deadline_ns();
    let mut now = 0;
    let mut next = members.into_iter();
    let mut exit = |kills: &mut KillsInFlight| {
        now += EXIT_GRACE_MS * MS / 2;
        kills.gone(next.next().unwrap(), now);
        (now, settled(&poll(kills, now)))
    };
    // Bob's victim is stuck at its own time, Alice's are when no more may be added.
    let stuck = std::iter::from_fn(|| {
        let (now, settled) = exit(&mut kills);
        let stuck = settled.iter().filter(|it| matches!(it, Settled::Stuck { .. })).count();
        (now < 2 * alone + EXIT_GRACES_MS * MS).then_some((now, stuck))
    });
    let stuck: Vec<(u64, usize)> = stuck.filter(|(_, stuck)| *stuck > 0).collect();
    let [(bobs, 1), (alices, left)] = stuck[..] else { panic!("{stuck:?}") };
    let step = EXIT_GRACE_MS * MS / 2;
    assert!((alone..alone + step).contains(&bobs), "{stuck:?}");
    assert!((alone + EXIT_GRACES_MS * MS..).contains(&alices) && left > 0, "{stuck:?}");
}

#[test]
fn a_victim_that_runs_is_stuck_only_after_the_longest_time() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    let alone = kills.get(token).unwrap().deadline_ns();
    let mut now = 0;
    let stuck_at = loop {
        now += EXIT_GRACE_MS * MS / 2;
        kills.runs(token, now);
        if !settled(&poll(&mut kills, now)).is_empty() {
            break now;
        }
    };
    let longest = alone + EXIT_GRACES_MS * MS;
    assert!((longest..longest + EXIT_GRACE_MS * MS).contains(&stuck_at), "{stuck_at}");
}

#[test]
fn victims_whose_fellows_do_not_exit_either_are_stuck() {
    let mut kills = KillsInFlight::default();
    let [first, second] = [10, 11].map(|pid| kills.signalled(member(pid, ALICE)).0);
    let alone = kills.get(second).unwrap().deadline_ns();
    kills.gone(first, alone - MS);
    poll(&mut kills, alone - MS);
    let deadline = alone - MS + EXIT_GRACE_MS * MS;
    assert!(settled(&poll(&mut kills, deadline - 1)).is_empty());
    let stuck = settled(&poll(&mut kills, deadline));
    assert_eq!(stuck, [Settled::Stuck { took_ns: deadline }]);
}

#[test]
fn a_victim_that_does_not_go_is_stuck_when_its_grace_is_over() {
    let mut kills = KillsInFlight::default();
    kills.signalled(kill(10, ALICE));
    assert_eq!(kills.next_deadline_ns(), Some(NO_FALL_MS * MS), "does it help?");
    let deadline = kills.all()[0].deadline_ns();
    assert!(poll(&mut kills, deadline - 1).is_empty());
    assert_eq!(kills.next_deadline_ns(), Some(deadline));
    assert_eq!(settled(&poll(&mut kills, deadline)), [Settled::Stuck { took_ns: deadline }]);
    assert_eq!(kills.stuck(), [id(10)]);
    kills.forget_gone(&[]);
    assert!(kills.stuck().is_empty());
}

#[test]
fn memory_that_stays_though_its_process_is_gone_delays_the_next_kill_only_for_a_bound() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    kills.gone(token, MS);
    read(&mut kills, ALICE, reading(110, 60, 2 * MS));
    assert!(poll(&mut kills, 2 * MS).is_empty());
    assert_eq!(kills.next_deadline_ns(), Some(7 * MS), "it is read again soon");
    let bound = MS + ACCOUNT_SETTLE_MS * MS;
    let settled = settled(&poll(&mut kills, bound));
    assert_eq!(settled, [Settled::Back { bytes_back: 0, took_ns: bound }]);
}

#[test]
fn memory_released_from_outside_counts_as_far_as_the_account_shows_it() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    kills.released(token, MS);
    read(&mut kills, ALICE, reading(109, 59, 2 * MS));
    assert!(poll(&mut kills, 900 * MS).is_empty(), "still charged");
    read(&mut kills, ALICE, reading(50, 0, 901 * MS));
    let settled = settled(&poll(&mut kills, 901 * MS));
    assert_eq!(settled, [Settled::Back { bytes_back: 60 * MIB, took_ns: 901 * MS }]);
}

#[test]
fn a_slow_victim_delays_no_kill_that_is_needed_without_it_as_well() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    kills.set_record(token, 77);
    assert!(kills.accounts_to_read(19 * MS).is_empty(), "most are gone by now");
    assert_eq!(kills.accounts_to_read(20 * MS), [ALICE]);
    read(&mut kills, ALICE, reading(160, 60, 20 * MS));
    read(&mut kills, ALICE, reading(160, 60, 60 * MS));
    assert!(poll(&mut kills, 60 * MS).is_empty(), "its 60 MiB are enough");
    read(&mut kills, ALICE, reading(170, 60, 61 * MS));
    assert!(!kills.may_kill(ALICE));
    read(&mut kills, ALICE, reading(180, 60, (61 + NO_FALL_MS) * MS));
    let free = Action::AccountFree { account: ALICE, latch: Latch::Taken, record: Some(77) };
    assert_eq!(poll(&mut kills, 81 * MS), [free]);
    assert!(kills.may_kill(ALICE) && kills.has_unhelpful(ALICE) && kills.contains(id(10)));
    let (_, latch) = kills.signalled(kill(11, ALICE));
    assert_eq!(latch, LatchAction::Take);
    assert!(!kills.may_kill(ALICE));
    // The first victim exits in the end, and its exit unblocks nothing.
    kills.gone(token, 90 * MS);
    let actions = poll(&mut kills, 90 * MS);
    assert_eq!((settled(&actions).len(), actions.len()), (1, 1));
    assert!(!kills.may_kill(ALICE) && !kills.has_unhelpful(ALICE));
}

#[test]
fn while_usage_falls_the_next_kill_waits() {
    let mut kills = KillsInFlight::default();
    kills.signalled(kill(10, ALICE));
    // The victim has grown since it was sampled, and is exiting.
    for (step, used_mib) in (200..400).rev().step_by(20).enumerate() {
        let at_ns = (20 + step as u64 * NO_FALL_MS) * MS;
        read(&mut kills, ALICE, reading(used_mib, 60, at_ns));
        assert!(poll(&mut kills, at_ns).is_empty(), "{used_mib} MiB");
    }
}

#[test]
fn growth_of_a_victim_is_not_counted_for_others() {
    let mut kills = KillsInFlight::default();
    kills.signalled(kill(10, ALICE));
    for step in 1..20 {
        read(&mut kills, ALICE, reading(250, 150, step * NO_FALL_MS * MS));
        assert!(poll(&mut kills, step * NO_FALL_MS * MS).is_empty());
    }
}

#[test]
fn a_victim_that_is_held_at_its_exit_counts_for_nothing_once_it_is_emptied() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    assert!(kills.to_look_at(19 * MS).is_empty());
    assert_eq!(kills.to_look_at(20 * MS), [(token, 10)]);
    kills.held(token, 20 * MS);
    assert!(kills.to_look_at(30 * MS).is_empty());
    read(&mut kills, ALICE, reading(110, 60, 20 * MS));
    read(&mut kills, ALICE, reading(110, 60, 60 * MS));
    assert!(!kills.may_kill(ALICE) && !kills.may_kill_for_system(), "its private memory can come");
    kills.released(token, 61 * MS);
    assert!(kills.may_kill_for_system());
    read(&mut kills, ALICE, reading(110, 60, 61 * MS));
    read(&mut kills, ALICE, reading(110, 60, (61 + NO_FALL_MS) * MS));
    assert!(kills.may_kill(ALICE));
}

#[test]
fn the_tracer_that_holds_a_victim_is_reported_once() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    kills.held(token, 20 * MS);
    kills.held(token, 40 * MS);
    let due = (20 + HELD_MS) * MS;
    assert!(poll(&mut kills, due - 1).is_empty());
    assert_eq!(kills.next_deadline_ns(), Some(due));
    assert_eq!(poll(&mut kills, due), [Action::TracerHolds { token, account: ALICE }]);
    assert!(poll(&mut kills, due + MS).is_empty());
    let (token, _) = kills.signalled(kill(11, BOB));
    kills.held(token, 20 * MS);
    kills.gone(token, 30 * MS);
    assert!(poll(&mut kills, due + MS).is_empty(), "it is gone");
}

#[test]
fn a_cgroup_does_not_wait_for_a_slow_victim_either() {
    let mut kills = KillsInFlight::default();
    let cgroup = Some(ChargedAccount { account: CGROUP, used_bytes: Some(80 * MIB) });
    kills.signalled(NewKill { cgroup, ..kill(10, ALICE) });
    assert_eq!(kills.accounts_to_read(20 * MS), [ALICE, CGROUP]);
    read(&mut kills, CGROUP, reading(170, 60, 20 * MS));
    read(&mut kills, CGROUP, reading(170, 60, 40 * MS));
    let free = Action::AccountFree { account: CGROUP, latch: Latch::Free, record: None };
    assert_eq!(poll(&mut kills, 40 * MS), [free]);
    assert!(kills.may_kill(CGROUP) && !kills.may_kill(ALICE));
}

#[test]
fn a_victim_with_sigterm_is_killed_after_its_grace_period() {
    let mut kills = KillsInFlight::default();
    let sigterm = Signal::Terminate { until_ns: 500 * MS };
    let (token, latch) = kills.signalled(NewKill { signal: sigterm, ..kill(10, ALICE) });
    assert_eq!(latch, LatchAction::Keep, "it may live on");
    assert_eq!(kills.next_deadline_ns(), Some(500 * MS));
    assert!(poll(&mut kills, 499 * MS).is_empty());
    let now = Action::KillNow { token, account: ALICE, latch: LatchAction::Take };
    assert_eq!(poll(&mut kills, 500 * MS), [now]);
    assert!(kills.get(token).unwrap().deadline_ns() > 2_500 * MS, "its grace begins with SIGKILL");
    let (token, _) = kills.signalled(NewKill { signal: sigterm, ..kill(11, BOB) });
    kills.end_grace();
    let now = Action::KillNow { token, account: BOB, latch: LatchAction::Take };
    assert_eq!(poll(&mut kills, 501 * MS), [now]);
}

#[test]
fn slow_victims_are_looked_at_a_few_at_a_time_and_in_turns() {
    let mut kills = KillsInFlight::default();
    for pid in 10..30 {
        kills.signalled(kill(pid, ALICE));
    }
    let mut seen = Vec::new();
    for round in 0..5 {
        let now_ns = (20 + 20 * round) * MS;
        seen.extend(kills.to_look_at(now_ns).into_iter().map(|(_, pid)| pid));
        assert!(kills.to_look_at(now_ns + 19 * MS).is_empty(), "once in twenty milliseconds");
    }
    assert_eq!(seen.len(), 40, "eight at a time");
    seen.truncate(20);
    seen.sort_unstable();
    assert_eq!(seen, Vec::from_iter(10..30), "each once before one of them again");
}

#[test]
fn sigterm_does_not_delay_the_hard_limit_of_its_account() {
    let mut kills = KillsInFlight::default();
    let sigterm = Signal::Terminate { until_ns: 500 * MS };
    let (token, _) = kills.signalled(NewKill { signal: sigterm, ..kill(10, ALICE) });
    let victim = kills.get(token).unwrap().victim;
    assert!(kills.is_terminating(victim) && kills.may_enforce(ALICE) && !kills.may_kill(ALICE));
    assert!(!kills.end_grace_of(BOB));
    assert!(poll(&mut kills, MS).is_empty());
    assert!(kills.end_grace_of(ALICE));
    let now = Action::KillNow { token, account: ALICE, latch: LatchAction::Take };
    assert_eq!(poll(&mut kills, 2 * MS), [now]);
    assert!(!kills.is_terminating(victim) && !kills.may_enforce(ALICE));
}

#[test]
fn the_kernel_programs_kill_of_a_victim_with_sigterm_is_the_same_kill() {
    let mut kills = KillsInFlight::default();
    let sigterm = Signal::Terminate { until_ns: 500 * MS };
    let (token, _) = kills.signalled(NewKill { signal: sigterm, ..kill(10, ALICE) });
    let victim = kills.get(token).unwrap().victim;
    assert!(kills.joins(victim, 2 * MS) && !kills.is_terminating(victim));
    kills.gone(token, 3 * MS);
    read(&mut kills, ALICE, reading(50, 0, 4 * MS));
    let free = Action::AccountFree { account: ALICE, latch: Latch::Taken, record: None };
    assert_eq!(poll(&mut kills, 4 * MS).last(), Some(&free), "the latch that the program took");
    assert!(!kills.joins(victim, 5 * MS), "it has settled");
}

#[test]
fn a_victim_that_exits_on_sigterm_needs_no_latch() {
    let mut kills = KillsInFlight::default();
    let sigterm = Signal::Terminate { until_ns: 500 * MS };
    let (token, _) = kills.signalled(NewKill { signal: sigterm, ..kill(10, ALICE) });
    kills.gone(token, MS);
    read(&mut kills, ALICE, reading(50, 0, 2 * MS));
    let free = Action::AccountFree { account: ALICE, latch: Latch::Free, record: None };
    assert_eq!(poll(&mut kills, 600 * MS).last(), Some(&free));
}

#[test]
fn the_account_of_a_group_kill_is_free_when_its_last_victim_has_settled() {
    let mut kills = KillsInFlight::default();
    let (first, _) = kills.signalled(kill(10, ALICE));
    let (second, latch) = kills.signalled(member(11, ALICE));
    assert_eq!(latch, LatchAction::Keep);
    kills.gone(first, MS);
    read(&mut kills, ALICE, reading(50, 0, MS));
    assert_eq!(poll(&mut kills, MS).len(), 1, "the first has settled");
    assert!(!kills.may_kill(ALICE));
    kills.gone(second, 2 * MS);
    let actions = poll(&mut kills, 2 * MS);
    let back = Settled::Back { bytes_back: 60 * MIB, took_ns: 2 * MS };
    assert_eq!((settled(&actions), actions.len()), (vec![back], 2));
}

#[test]
fn one_of_two_simultaneous_kills_is_awaited() {
    let mut kills = KillsInFlight::default();
    kills.signalled(kill(10, ALICE));
    let program = NewKill { sender: Sender::KernelProgram, ..kill(11, ALICE) };
    let (_, latch) = kills.signalled(program);
    assert_eq!(latch, LatchAction::Keep);
    let awaited = kills.all().iter().filter(|kill| kill.awaits(ALICE));
    assert_eq!(awaited.map(|kill| kill.victim.pid).collect::<Vec<_>>(), [10]);
}

#[test]
fn a_kill_by_the_kernel_program_holds_the_latch_that_it_took() {
    let mut kills = KillsInFlight::default();
    let program = NewKill { sender: Sender::KernelProgram, ..kill(10, ALICE) };
    let (token, latch) = kills.signalled(program);
    assert_eq!(latch, LatchAction::Keep, "it is taken");
    kills.gone(token, MS);
    read(&mut kills, ALICE, reading(50, 0, MS));
    let free = Action::AccountFree { account: ALICE, latch: Latch::Taken, record: None };
    assert_eq!(poll(&mut kills, MS).last(), Some(&free));
}

#[test]
fn a_latch_without_a_kill_is_orphaned_at_the_second_check() {
    let mut kills = KillsInFlight::default();
    assert!(!kills.is_orphaned(ALICE, Latch::Taken), "its event may be on the way");
    assert!(!kills.is_orphaned(ALICE, Latch::Free));
    assert!(!kills.is_orphaned(ALICE, Latch::Taken));
    assert!(kills.is_orphaned(ALICE, Latch::Taken));
    assert!(!kills.is_orphaned(ALICE, Latch::Taken));
    kills.signalled(kill(10, ALICE));
    assert!(!kills.is_orphaned(ALICE, Latch::Taken), "its kill is known by now");
}

#[test]
fn a_kill_for_a_cgroup_settles_when_the_cgroup_and_the_payer_show_it() {
    let mut kills = KillsInFlight::default();
    let cgroup = Some(ChargedAccount { account: CGROUP, used_bytes: Some(80 * MIB) });
    let (token, _) = kills.signalled(NewKill { cgroup, ..kill(10, ALICE) });
    assert!(!kills.may_kill(CGROUP) && !kills.may_kill(ALICE));
    assert_eq!((kills.awaited_bytes(CGROUP), kills.awaited_bytes(BOB)), (60 * MIB, 0));
    kills.gone(token, MS);
    assert_eq!(kills.accounts_to_read(2 * MS), [ALICE]);
    read(&mut kills, ALICE, reading(50, 0, MS));
    assert!(poll(&mut kills, MS).is_empty());
    assert_eq!(kills.accounts_to_read(2 * MS), [CGROUP]);
    read(&mut kills, CGROUP, reading(30, 30, 2 * MS));
    let settled = settled(&poll(&mut kills, 2 * MS));
    assert_eq!(settled, [Settled::Back { bytes_back: 50 * MIB, took_ns: 2 * MS }]);
}

#[test]
fn a_limit_that_is_gone_awaits_nothing_and_its_victim_is_in_flight_still() {
    let mut kills = KillsInFlight::default();
    let (token, _) = kills.signalled(kill(10, ALICE));
    kills.forget_account(ALICE);
    assert!(!kills.may_kill(ALICE));
    kills.gone(token, MS);
    let actions = poll(&mut kills, MS);
    assert_eq!(settled(&actions), [Settled::Back { bytes_back: 60 * MIB, took_ns: MS }]);
    let free = Action::AccountFree { account: ALICE, latch: Latch::Free, record: None };
    assert_eq!(actions.last(), Some(&free), "the latch went with the limit");
}

/// Two limited users, a user without a limit, and a cgroup of the first.
const ACCOUNTS: [AccountId; 3] = [ALICE, BOB, AccountId::User(Uid(1002))];
const UNLIMITED: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The daemon kills for the user `.0`, with `.1` other processes of a group.
    Kill(usize, u32),
    /// The daemon kills for the cgroup.
    KillInCgroup(usize),
    Terminate(usize, u64),
    /// The kernel program kills, if its latch is free. The event is lost if `.1`.
    Program(usize, bool),
    Release(usize),
    Vanish(usize),
    Hold(usize),
    /// The processes of the user `.0` that are not victims use `.1` MiB.
    Use(usize, u64),
    EndGrace,
    LimitGone(usize),
    Scan,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..3, 0u32..3).prop_map(|(user, others)| Step::Kill(user, others)),
        1 => (0usize..3).prop_map(Step::KillInCgroup),
        2 => (0usize..3, 1u64..1000).prop_map(|(user, ms)| Step::Terminate(user, ms)),
        2 => (0usize..2, prop::bool::weighted(0.2)).prop_map(|(u, lost)| Step::Program(u, lost)),
        2 => any::<prop::sample::Index>().prop_map(|at| Step::Release(at.index(8))),
        4 => any::<prop::sample::Index>().prop_map(|at| Step::Vanish(at.index(8))),
        2 => any::<prop::sample::Index>().prop_map(|at| Step::Hold(at.index(8))),
        2 => (0usize..2, 0u64..300).prop_map(|(user, mib)| Step::Use(user, mib)),
        1 => Just(Step::EndGrace),
        1 => (0usize..2).prop_map(Step::LimitGone),
        1 => Just(Step::Scan),
        4 => (1u64..3000).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Copy)]
struct Excess {
    mib: u64,
    /// Time since which the excess has not fallen, nanoseconds.
    since_ns: u64,
    read_ns: u64,
}

/// A victim of 60 MiB, until it has exited.
#[derive(Clone, Copy)]
struct Victim {
    token: KillToken,
    payer: AccountId,
    gone: bool,
    released: bool,
    held: bool,
}

#[derive(Default)]
struct World {
    kills: KillsInFlight,
    now_ns: u64,
    next_pid: u32,
    /// The kernel program's latches, in their actual state.
    latched: BTreeMap<AccountId, bool>,
    /// Accounts with a latch that is taken by a kill with a lost event.
    lost: BTreeSet<AccountId>,
    /// All victims that were signalled and have not settled.
    alive: Vec<Victim>,
    /// Memory of processes that are not victims, MiB.
    others_mib: BTreeMap<AccountId, u64>,
    /// Excess over the limit at the last reading, even if the memory of all blocking victims is
    /// freed.
    excess: BTreeMap<AccountId, Excess>,
    settled: u32,
}

impl World {
    fn charge(&self, user: usize) -> ChargedAccount {
        let used_bytes = (user != UNLIMITED).then_some(100 * MIB);
        ChargedAccount { account: ACCOUNTS[user], used_bytes }
    }

    fn send(&mut self, new: NewKill) {
        self.next_pid += 1;
        let new = NewKill { victim: id(self.next_pid), at_ns: self.now_ns, ..new };
        let (token, latch) = self.kills.signalled(new);
        let payer = new.payer.account;
        self.take(payer, latch);
        self.excess.remove(&payer);
        self.alive.push(Victim { token, payer, gone: false, released: false, held: false });
    }

    fn take(&mut self, account: AccountId, latch: LatchAction) {
        if latch == LatchAction::Take {
            // The latch is taken already if it is orphaned, or if the kill's event is delayed.
            self.latched.insert(account, true);
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Kill(user, others) if self.kills.may_kill(ACCOUNTS[user]) => {
                let payer = self.charge(user);
                self.send(NewKill { payer, ..kill(0, ACCOUNTS[user]) });
                (0..others).for_each(|_| self.send(member(0, ACCOUNTS[user])));
            }
            Step::KillInCgroup(user) if self.kills.may_kill(CGROUP) => {
                let cgroup = Some(ChargedAccount { account: CGROUP, used_bytes: Some(100 * MIB) });
                let payer = self.charge(user);
                self.send(NewKill { payer, cgroup, ..kill(0, ACCOUNTS[user]) });
            }
            Step::Terminate(user, ms) if self.kills.may_kill_for_system() => {
                let signal = Signal::Terminate { until_ns: self.now_ns + ms * MS };
                let payer = self.charge(user);
                self.send(NewKill { payer, signal, ..kill(0, ACCOUNTS[user]) });
            }
            Step::Program(user, lost) if self.latched.get(&ACCOUNTS[user]) != Some(&true) => {
                self.latched.insert(ACCOUNTS[user], true);
                if lost {
                    self.lost.insert(ACCOUNTS[user]);
                } else {
                    let payer = self.charge(user);
                    let sender = Sender::KernelProgram;
                    self.send(NewKill { payer, sender, ..kill(0, ACCOUNTS[user]) });
                }
            }
            Step::Release(at) => {
                if let Some(victim) = self.alive.get_mut(at) {
                    victim.released = true;
                    self.kills.released(victim.token, self.now_ns);
                }
            }
            Step::Vanish(at) => {
                if let Some(victim) = self.alive.get_mut(at) {
                    victim.gone = true;
                    self.kills.gone(victim.token, self.now_ns);
                }
            }
            Step::Hold(at) => {
                if let Some(victim) = self.alive.get_mut(at) {
                    victim.held = true;
                    self.kills.held(victim.token, self.now_ns);
                }
            }
            Step::Use(user, mib) => {
                self.others_mib.insert(ACCOUNTS[user], mib);
            }
            Step::EndGrace => self.kills.end_grace(),
            Step::LimitGone(user) => {
                self.kills.forget_account(ACCOUNTS[user]);
                self.excess.remove(&ACCOUNTS[user]);
                self.latched.remove(&ACCOUNTS[user]);
                self.lost.remove(&ACCOUNTS[user]);
            }
            Step::Scan => self.scan(),
            Step::Wait(ms) => self.now_ns += ms * MS,
            Step::Kill(..) | Step::KillInCgroup(_) | Step::Terminate(..) | Step::Program(..) => {}
        }
        self.drain();
        self.check();
    }

    fn scan(&mut self) {
        for account in ACCOUNTS {
            let taken = self.latched.get(&account) == Some(&true);
            let latch = if taken { Latch::Taken } else { Latch::Free };
            if self.kills.is_orphaned(account, latch) {
                assert!(self.kills.may_kill(account), "a latch that is needed");
                assert!(self.lost.contains(&account), "a latch whose kill is known");
                self.release(account);
            }
        }
    }

    fn release(&mut self, account: AccountId) {
        assert_eq!(self.latched.insert(account, false), Some(true), "release without take");
        self.lost.remove(&account);
    }

    /// Reads the accounts, which show at once the memory of exited victims, and handles all
    /// actions.
    fn drain(&mut self) {
        // The payers first, then the cgroup.
        for _ in 0..2 {
            for account in self.kills.accounts_to_read(self.now_ns) {
                self.follow_excess(account);
                let used_mib = self.used_mib(account);
                read(&mut self.kills, account, reading(used_mib, 0, self.now_ns));
            }
            self.act();
        }
    }

    fn victims(&self, account: AccountId) -> impl Iterator<Item = &Victim> {
        self.alive.iter().filter(move |victim| victim.payer == account && !victim.gone)
    }

    fn used_mib(&self, account: AccountId) -> u64 {
        let others = self.others_mib.get(&account).copied().unwrap_or(0);
        others + 60 * self.victims(account).count() as u64
    }

    fn excess_mib(&self, account: AccountId) -> u64 {
        let coming = self.victims(account).filter(|victim| {
            let passed = self.kills.get(victim.token).unwrap().has_passed(account);
            !(passed || victim.held && victim.released)
        });
        (self.used_mib(account) - 60 * coming.count() as u64).saturating_sub(100)
    }

    fn follow_excess(&mut self, account: AccountId) {
        let mib = self.excess_mib(account);
        let same = self.excess.get(&account).filter(|before| before.mib == mib);
        let since_ns = same.map_or(self.now_ns, |before| before.since_ns);
        self.excess.insert(account, Excess { mib, since_ns, read_ns: self.now_ns });
    }

    fn act(&mut self) {
        let mut payers_of_settled = BTreeSet::new();
        while let Some(action) = self.kills.poll(self.now_ns) {
            match action {
                Action::KillNow { account, latch, token } => {
                    assert!(!self.kills.get(token).unwrap().is_terminating());
                    self.take(account, latch);
                }
                Action::Settled { kill, settled } => {
                    payers_of_settled.insert(kill.payer());
                    self.settle(&kill, settled);
                }
                Action::TracerHolds { token, .. } => {
                    let held = |it: &&Victim| it.token == token && it.held && !it.gone;
                    assert!(self.alive.iter().any(|it| held(&it)));
                }
                Action::AccountFree { account, latch, .. } => {
                    // An earlier kill may be without effect still when a later one settles.
                    let passed =
                        self.kills.has_unhelpful(account) && !payers_of_settled.contains(&account);
                    assert!(!passed || self.excess_mib(account) > 0, "one would have been enough");
                    self.excess.remove(&account);
                    assert!(self.kills.may_kill(account) || self.is_of_a_cgroup(account));
                    match latch {
                        Latch::Taken => self.release(account),
                        Latch::Free => {
                            let taken = self.latched.get(&account) == Some(&true);
                            assert!(!taken || self.lost.contains(&account), "never released");
                        }
                    }
                }
            }
        }
    }

    fn is_of_a_cgroup(&self, account: AccountId) -> bool {
        self.kills.all().iter().any(|kill| kill.payer() == account)
    }

    fn settle(&mut self, kill: &InFlightKill, settled: Settled) {
        let at = self.alive.iter().position(|victim| victim.token == kill.token);
        let Victim { gone, .. } = self.alive.remove(at.expect("settled twice, or never signalled"));
        if let Settled::Stuck { .. } = settled {
            assert!(!gone && self.now_ns >= kill.deadline_ns());
            assert!(self.kills.stuck().contains(&kill.victim));
        }
        self.settled += 1;
    }

    fn check(&self) {
        for account in ACCOUNTS.into_iter().chain([CGROUP]) {
            let awaited = self.kills.all().iter().filter(|kill| kill.awaits(account)).count();
            assert!(awaited <= 1, "{awaited} awaited kills for {account:?}");
            let mut of_it = self.kills.all().iter().filter(|kill| kill.awaits(account));
            if account != CGROUP && of_it.any(|kill| !kill.is_terminating()) {
                assert_eq!(self.latched.get(&account), Some(&true), "awaited without the latch");
            }
        }
        for (account, Excess { mib, since_ns, read_ns }) in &self.excess {
            let long = read_ns - since_ns >= NO_FALL_MS * MS;
            let waits = self.kills.all().iter().any(|kill| kill.awaits(*account));
            assert!(*mib == 0 || !long || !waits, "{mib} MiB too much");
        }
        assert_eq!(self.kills.all().len(), self.alive.len());
        let deadline = self.kills.next_deadline_ns();
        assert_eq!(deadline.is_none(), self.kills.is_empty());
        assert!(deadline.is_none_or(|deadline| deadline > self.now_ns), "{deadline:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..Default::default()
    })]
    #[test]
    fn every_kill_settles_and_no_latch_is_left(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::default();
        for step in steps {
            world.apply(step);
        }
        // SIGTERM at the latest a second from now, SIGKILL then, stuck after the grace period.
        for _ in 0..2 {
            world.apply(Step::Wait(5_000));
        }
        assert!(world.kills.is_empty());
        assert_eq!(world.settled, world.next_pid);
        world.apply(Step::Scan);
        world.apply(Step::Scan);
        assert!(world.latched.values().all(|latched| !latched), "{:?}", world.latched);
    }
}
