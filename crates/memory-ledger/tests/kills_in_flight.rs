//! The state machine of kills in flight: as sentences, and against a simple model.

use std::collections::{BTreeMap, BTreeSet};

use memory_ledger::kills_in_flight::ACCOUNT_SETTLE_MS;
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

/// A SIGKILL at time 0 by the daemon to a process of 60 MiB, of an account that holds 110 MiB.
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

/// All that has to be done at this time.
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
    assert!(kills.accounts_to_read().is_empty());
    assert!(poll(&mut kills, MS).is_empty(), "not gone yet");
    kills.gone(token, 2 * MS);
    assert_eq!(kills.accounts_to_read(), [ALICE]);
    assert!(poll(&mut kills, 3 * MS).is_empty(), "not read since");
    kills.read(ALICE, reading(56, 0, 3 * MS));
    let actions = poll(&mut kills, 3 * MS);
    assert_eq!(settled(&actions), [Settled::Back { bytes_back: 54 * MIB, took_ns: 3 * MS }]);
    let free = Action::AccountFree { account: ALICE, latch: Latch::Taken, record: Some(77) };
    assert_eq!(actions.last(), Some(&free));
    assert!(kills.may_kill(ALICE) && kills.next_deadline_ns().is_none());
}

#[test]
fn a_victim_that_does_not_go_is_stuck_when_its_grace_is_over() {
    let mut kills = KillsInFlight::default();
    kills.signalled(kill(10, ALICE));
    let deadline = kills.next_deadline_ns().unwrap();
    assert!(poll(&mut kills, deadline - 1).is_empty());
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
    kills.read(ALICE, reading(110, 60, 2 * MS));
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
    kills.read(ALICE, reading(109, 59, 2 * MS));
    assert!(poll(&mut kills, 900 * MS).is_empty(), "still charged");
    kills.read(ALICE, reading(50, 0, 901 * MS));
    let settled = settled(&poll(&mut kills, 901 * MS));
    assert_eq!(settled, [Settled::Back { bytes_back: 60 * MIB, took_ns: 901 * MS }]);
}

#[test]
fn a_victim_that_was_asked_to_end_is_killed_when_its_time_is_over() {
    let mut kills = KillsInFlight::default();
    let asked = Signal::Terminate { until_ns: 500 * MS };
    let (token, latch) = kills.signalled(NewKill { signal: asked, ..kill(10, ALICE) });
    assert_eq!(latch, LatchAction::Keep, "it may live on");
    assert_eq!(kills.next_deadline_ns(), Some(500 * MS));
    assert!(poll(&mut kills, 499 * MS).is_empty());
    let now = Action::KillNow { token, account: ALICE, latch: LatchAction::Take };
    assert_eq!(poll(&mut kills, 500 * MS), [now]);
    assert!(kills.next_deadline_ns() > Some(2_500 * MS), "its grace begins with SIGKILL");
    let (token, _) = kills.signalled(NewKill { signal: asked, ..kill(11, BOB) });
    kills.end_grace();
    let now = Action::KillNow { token, account: BOB, latch: LatchAction::Take };
    assert_eq!(poll(&mut kills, 501 * MS), [now]);
}

#[test]
fn a_victim_that_ends_when_asked_needs_no_latch() {
    let mut kills = KillsInFlight::default();
    let asked = Signal::Terminate { until_ns: 500 * MS };
    let (token, _) = kills.signalled(NewKill { signal: asked, ..kill(10, ALICE) });
    kills.gone(token, MS);
    kills.read(ALICE, reading(50, 0, 2 * MS));
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
    kills.read(ALICE, reading(50, 0, MS));
    assert_eq!(poll(&mut kills, MS).len(), 1, "the first has settled");
    assert!(!kills.may_kill(ALICE));
    kills.gone(second, 2 * MS);
    let actions = poll(&mut kills, 2 * MS);
    let back = Settled::Back { bytes_back: 60 * MIB, took_ns: 2 * MS };
    assert_eq!((settled(&actions), actions.len()), (vec![back], 2));
}

#[test]
fn of_two_kills_in_the_same_moment_one_is_awaited() {
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
    kills.read(ALICE, reading(50, 0, MS));
    let free = Action::AccountFree { account: ALICE, latch: Latch::Taken, record: None };
    assert_eq!(poll(&mut kills, MS).last(), Some(&free));
}

#[test]
fn a_latch_without_a_kill_is_orphaned_at_second_sight() {
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
    assert_eq!(kills.accounts_to_read(), [ALICE]);
    kills.read(ALICE, reading(50, 0, MS));
    assert!(poll(&mut kills, MS).is_empty());
    assert_eq!(kills.accounts_to_read(), [CGROUP]);
    kills.read(CGROUP, reading(30, 30, 2 * MS));
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

/// Two limited users, one without a limit, and a cgroup of the first.
const ACCOUNTS: [AccountId; 3] = [ALICE, BOB, AccountId::User(Uid(1002))];
const UNLIMITED: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The daemon kills for a user, with so many others of a group.
    Kill(usize, u32),
    /// It kills for the cgroup.
    KillInCgroup(usize),
    Ask(usize, u64),
    /// The kernel program kills, if its latch lets it. The event is lost if `.1`.
    Program(usize, bool),
    Release(usize),
    Vanish(usize),
    EndGrace,
    LimitGone(usize),
    Scan,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..3, 0u32..3).prop_map(|(user, others)| Step::Kill(user, others)),
        1 => (0usize..3).prop_map(Step::KillInCgroup),
        2 => (0usize..3, 1u64..1000).prop_map(|(user, ms)| Step::Ask(user, ms)),
        2 => (0usize..2, prop::bool::weighted(0.2)).prop_map(|(u, lost)| Step::Program(u, lost)),
        2 => any::<prop::sample::Index>().prop_map(|at| Step::Release(at.index(8))),
        4 => any::<prop::sample::Index>().prop_map(|at| Step::Vanish(at.index(8))),
        1 => Just(Step::EndGrace),
        1 => (0usize..2).prop_map(Step::LimitGone),
        1 => Just(Step::Scan),
        4 => (1u64..3000).prop_map(Step::Wait),
    ]
}

#[derive(Default)]
struct World {
    kills: KillsInFlight,
    now_ns: u64,
    next_pid: u32,
    /// The kernel program's latches, as they really are.
    latched: BTreeMap<AccountId, bool>,
    /// Accounts whose latch is taken by a kill whose event was lost.
    lost: BTreeSet<AccountId>,
    /// All that were signalled and have not settled.
    alive: Vec<(KillToken, bool)>,
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
        self.take(new.payer.account, latch);
        self.alive.push((token, false));
    }

    fn take(&mut self, account: AccountId, latch: LatchAction) {
        if latch == LatchAction::Take {
            // An orphaned one, or that of a kill whose event is on the way, is taken already.
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
            Step::Ask(user, ms) if self.kills.may_kill_for_system() => {
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
                if let Some((token, _)) = self.alive.get(at) {
                    self.kills.released(*token, self.now_ns);
                }
            }
            Step::Vanish(at) => {
                if let Some((token, gone)) = self.alive.get_mut(at) {
                    *gone = true;
                    self.kills.gone(*token, self.now_ns);
                }
            }
            Step::EndGrace => self.kills.end_grace(),
            Step::LimitGone(user) => {
                self.kills.forget_account(ACCOUNTS[user]);
                self.latched.remove(&ACCOUNTS[user]);
                self.lost.remove(&ACCOUNTS[user]);
            }
            Step::Scan => self.scan(),
            Step::Wait(ms) => self.now_ns += ms * MS,
            Step::Kill(..) | Step::KillInCgroup(_) | Step::Ask(..) | Step::Program(..) => {}
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

    /// Reads the accounts, which show at once what is gone, and does what has to be done.
    fn drain(&mut self) {
        // First the payers, then the cgroup.
        for _ in 0..2 {
            for account in self.kills.accounts_to_read() {
                self.kills.read(account, reading(10, 0, self.now_ns));
            }
            self.act();
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.kills.poll(self.now_ns) {
            match action {
                Action::KillNow { account, latch, token } => {
                    assert!(!self.kills.get(token).unwrap().is_asked());
                    self.take(account, latch);
                }
                Action::Settled { kill, settled } => self.settle(&kill, settled),
                Action::AccountFree { account, latch, .. } => {
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
        let at = self.alive.iter().position(|(token, _)| *token == kill.token);
        let (_, gone) = self.alive.remove(at.expect("settled twice, or never signalled"));
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
            if account != CGROUP && of_it.any(|kill| !kill.is_asked()) {
                assert_eq!(self.latched.get(&account), Some(&true), "awaited without the latch");
            }
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
        // Asked at the latest a second from now, killed then, stuck after the grace.
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
