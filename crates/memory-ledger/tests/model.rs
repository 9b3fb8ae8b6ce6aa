//! The ledger against a naive model, with random processes.

mod support;

use std::collections::BTreeSet;

use memory_ledger::kills_in_flight::NO_FALL_MS;
use memory_ledger::{
    AccountId, Action, Comm, KillToken, Limit, Process, ProcessId, Reading, Requester, Settled,
    Source, Uid,
};
use proptest::prelude::*;
use support::{Engine, Verdict};

const MIB: u64 = 1 << 20;
const UIDS: [Uid; 3] = [Uid(1000), Uid(1001), Uid(1002)];
const USERS: [AccountId; 3] =
    [AccountId::User(UIDS[0]), AccountId::User(UIDS[1]), AccountId::User(UIDS[2])];
const PROTECTED: [u32; 2] = [3, 7];

#[derive(Clone, Debug)]
enum Step {
    /// Process `.0` has `.1` MiB (some of it swapped), belongs to user `.2`, is exiting if `.3`.
    Live(u32, u64, usize, bool),
    Vanish(u32),
    SetLimit(usize, u64),
    Clear(usize),
    /// The in-flight victim of a user loses its memory.
    Empty(usize),
    /// Time passes, milliseconds; then all processes are scanned.
    Look(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..24, 0u64..200, 0usize..3, prop::bool::weighted(0.1))
            .prop_map(|(pid, mib, user, exiting)| Step::Live(pid, mib, user, exiting)),
        1 => (0u32..24).prop_map(Step::Vanish),
        1 => (0usize..3, 1u64..400).prop_map(|(user, mib)| Step::SetLimit(user, mib)),
        1 => (0usize..3).prop_map(Step::Clear),
        2 => (0usize..3).prop_map(Step::Empty),
        4 => (1u64..3000).prop_map(Step::Look),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    id: ProcessId,
    token: KillToken,
    signalled_ns: u64,
    bytes: u64,
    emptied: bool,
    /// The next kill does not wait for this victim.
    passed: bool,
}

#[derive(Default)]
struct World {
    engine: Engine,
    processes: Vec<Process>,
    starts: [u64; 24],
    now_ns: u64,
    /// The model's own state: the victims in flight, and those that were stuck.
    in_flight: [Vec<Flight>; 3],
    /// By user: excess in bytes even if all victims' memory is freed, and the time since which it
    /// has not fallen.
    excess: [Option<(u64, u64)>; 3],
    stuck: BTreeSet<ProcessId>,
}

impl World {
    fn used(&self, account: AccountId) -> u64 {
        let own = self.processes.iter().filter(|p| p.account == account);
        own.map(|p| p.rss_bytes + p.swap_bytes).sum()
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Live(pid, mib, user, exiting) => {
                self.processes.retain(|p| p.id.pid != pid);
                // Start times may be equal for different pids, never for two processes with one
                // pid.
                self.starts[pid as usize] += 1;
                let start_time = self.starts[pid as usize];
                let process = Process {
                    id: ProcessId { pid, start_time },
                    rss_bytes: mib * MIB / 4 * 3,
                    swap_bytes: mib * MIB / 4,
                    comm: Comm::new(b"p"),
                    exiting,
                    ..Process::of(UIDS[user])
                };
                self.processes.push(process);
            }
            Step::Vanish(pid) => self.processes.retain(|p| p.id.pid != pid),
            Step::SetLimit(user, mib) => {
                let limit = Limit::new(mib * MIB, None).unwrap();
                let (source, root) = (Source::Runtime, Requester::Root);
                let change = self.engine.ledger.plan_set(USERS[user], limit, source, root).unwrap();
                self.engine.ledger.apply(change);
            }
            Step::Clear(user) => {
                match self.engine.ledger.plan_clear(USERS[user], Requester::Root) {
                    Ok(change) => {
                        self.engine.ledger.apply(change);
                        self.engine.kills.forget_account(USERS[user]);
                        self.excess[user] = None;
                    }
                    Err(_) => assert!(self.engine.ledger.account(USERS[user]).is_none()),
                }
            }
            Step::Empty(user) => {
                if let Some(flight) = self.in_flight[user].last_mut() {
                    flight.emptied = true;
                    self.engine.kills.gone(flight.token, self.now_ns);
                    let id = flight.id;
                    self.processes.retain(|p| p.id != id);
                }
            }
            Step::Look(ms) => {
                self.now_ns += ms * 1_000_000;
                for user in 0..3 {
                    self.look(user);
                }
            }
        }
    }

    fn look(&mut self, user: usize) {
        let account = USERS[user];
        let used_bytes = self.used(account);
        let dying = |p: &&Process| {
            self.in_flight[user].iter().any(|it| it.id == p.id && !it.emptied && !it.passed)
        };
        let dying_bytes = self.processes.iter().filter(dying).map(Process::charged_bytes).sum();
        let now_ns = self.now_ns;
        let reading = Reading { used_bytes, dying_bytes, at_ns: now_ns };
        let limited = self.engine.ledger.read(account, reading).is_some();
        let blocked = self.is_blocked(user);
        if limited {
            let hard_bytes = self.engine.ledger.account(account).unwrap().limit().hard_bytes();
            self.engine.kills.read(account, reading, hard_bytes);
            self.pass(user, used_bytes, hard_bytes);
        }
        self.settle();
        // The account was just read: only victims that still have memory keep waiting.
        assert!(self.in_flight[user].iter().all(|flight| !flight.emptied));
        assert!(blocked || !self.is_blocked(user));
        if limited {
            self.decide(user, used_bytes);
        }
    }

    fn is_blocked(&self, user: usize) -> bool {
        self.in_flight[user].iter().any(|flight| !flight.passed)
    }

    /// A second implementation of the rule for the next kill.
    fn pass(&mut self, user: usize, used_bytes: u64, hard_bytes: u64) {
        let coming = self.in_flight[user].iter().filter(|it| !it.passed && !it.emptied);
        let coming: u64 = coming.map(|flight| flight.bytes).sum();
        let over = used_bytes.saturating_sub(coming).saturating_sub(hard_bytes);
        let now_ns = self.now_ns;
        self.excess[user] = match self.excess[user] {
            _ if over == 0 || !self.is_blocked(user) => None,
            Some((before, since_ns)) if over >= before - before / 16 => {
                if now_ns - since_ns < NO_FALL_MS * 1_000_000 {
                    Some((before, since_ns))
                } else {
                    self.in_flight[user].iter_mut().for_each(|flight| flight.passed = true);
                    None
                }
            }
            _ => Some((over, now_ns)),
        };
    }

    fn settle(&mut self) {
        while let Some(action) = self.engine.kills.poll(self.now_ns) {
            let Action::Settled { kill, settled } = action else { continue };
            let of_it = |it: &Flight| it.token == kill.token;
            let all = self.in_flight.iter();
            let found =
                all.enumerate().find_map(|(user, of)| Some((user, of.iter().position(of_it)?)));
            let (user, at) = found.expect("settled out of nothing");
            let flight = self.in_flight[user].remove(at);
            assert_eq!(kill.victim, flight.id);
            match settled {
                Settled::Back { took_ns, .. } => {
                    assert!(flight.emptied, "settled before it was emptied");
                    assert_eq!(took_ns, self.now_ns - flight.signalled_ns);
                }
                Settled::Stuck { .. } => {
                    assert!(!flight.emptied && self.now_ns >= kill.deadline_ns());
                    self.stuck.insert(kill.victim);
                }
            }
        }
    }

    fn decide(&mut self, user: usize, used_bytes: u64) {
        let account = USERS[user];
        let hard = self.engine.ledger.account(account).unwrap().limit().hard_bytes();
        let naive = self.naive_victim(user);
        match self.engine.decide(account, &self.processes, &PROTECTED) {
            Verdict::Within => assert!(used_bytes <= hard),
            Verdict::Wait => assert!(used_bytes > hard && self.is_blocked(user)),
            Verdict::NoVictim(_) => assert!(used_bytes > hard && naive.is_none()),
            Verdict::Kill(choice) => {
                assert!(used_bytes > hard && !self.is_blocked(user));
                let victim = choice.victim;
                assert_eq!(Some(victim), naive);
                let next = choice.runner_up.map(|next| next.charged_bytes());
                assert!(next.is_none_or(|bytes| bytes <= victim.charged_bytes()));
                let token = self.engine.kill(&victim, self.now_ns);
                let (id, signalled_ns) = (victim.id, self.now_ns);
                let bytes = victim.charged_bytes();
                self.in_flight[user].push(Flight {
                    id,
                    token,
                    signalled_ns,
                    bytes,
                    emptied: false,
                    passed: false,
                });
                self.excess[user] = None;
            }
        }
    }

    /// A second implementation of the selection, as simple as possible.
    fn naive_victim(&self, user: usize) -> Option<Process> {
        let account = USERS[user];
        let mut eligible: Vec<Process> = self.processes.clone();
        eligible.retain(|p| p.account == account && p.id.pid > 1 && !p.exiting);
        eligible.retain(|p| !PROTECTED.contains(&p.id.pid) && !self.stuck.contains(&p.id));
        let dying = |p: &Process| self.in_flight[user].iter().any(|it| it.id == p.id);
        eligible.retain(|p| !dying(p));
        eligible.retain(|p| p.rss_bytes + p.swap_bytes > 0);
        eligible.sort_by_key(|p| p.id.pid);
        eligible.sort_by_key(|p| p.id.start_time);
        eligible.sort_by_key(|p| p.rss_bytes + p.swap_bytes);
        eligible.pop()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..Default::default()
    })]
    #[test]
    fn the_ledger_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::default();
        for step in steps {
            world.apply(step);
        }
    }
}
