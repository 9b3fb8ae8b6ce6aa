//! The ledger against a naive model: random lives of random processes.

use std::collections::BTreeSet;

use memory_ledger::{
    AccountId, Asker, Comm, Ledger, Limit, Process, ProcessId, Reading, Settled, Source, Uid,
    Verdict,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const UIDS: [Uid; 3] = [Uid(1000), Uid(1001), Uid(1002)];
const USERS: [AccountId; 3] =
    [AccountId::User(UIDS[0]), AccountId::User(UIDS[1]), AccountId::User(UIDS[2])];
const PROTECTED: [u32; 2] = [3, 7];

#[derive(Clone, Debug)]
enum Step {
    /// Pid `.0` has `.1` MiB (some of it swapped), belongs to user `.2`, is exiting if `.3`.
    Live(u32, u64, usize, bool),
    Vanish(u32),
    SetLimit(usize, u64),
    Clear(usize),
    /// The in-flight victim of a user loses its memory.
    Empty(usize),
    /// Time passes, milliseconds; then the killer looks at everybody.
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

#[derive(Default)]
struct World {
    ledger: Ledger,
    processes: Vec<Process>,
    starts: [u64; 24],
    now_ns: u64,
    /// The model's own memory: who was killed for whom, and who was passed over.
    in_flight: [Option<(ProcessId, Option<u64>)>; 3],
    stuck: [BTreeSet<ProcessId>; 3],
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
                // Starts may be equal between pids, never between two lives of one pid.
                self.starts[pid as usize] += 1;
                let start_time = self.starts[pid as usize];
                let process = Process {
                    id: ProcessId { pid, start_time },
                    rss_bytes: mib * MIB / 4 * 3,
                    swap_bytes: mib * MIB / 4,
                    comm: Comm::new(b"p"),
                    kernel_thread: pid == 2,
                    exiting,
                    ..Process::of(UIDS[user])
                };
                self.processes.push(process);
            }
            Step::Vanish(pid) => self.processes.retain(|p| p.id.pid != pid),
            Step::SetLimit(user, mib) => {
                let limit = Limit::new(mib * MIB, None).unwrap();
                let (source, root) = (Source::Runtime, Asker::Root);
                let change = self.ledger.plan_set(USERS[user], limit, source, root).unwrap();
                self.ledger.apply(change);
            }
            Step::Clear(user) => match self.ledger.plan_clear(USERS[user], Asker::Root) {
                Ok(change) => {
                    self.ledger.apply(change);
                    self.in_flight[user] = None;
                    self.stuck[user].clear();
                }
                Err(_) => assert!(self.ledger.account(USERS[user]).is_none()),
            },
            Step::Empty(user) => {
                if let Some((id, emptied)) = &mut self.in_flight[user] {
                    emptied.get_or_insert(self.now_ns);
                    self.ledger.account_mut(USERS[user]).unwrap().gone(*id, self.now_ns);
                    let id = *id;
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
        let dying_bytes = match self.in_flight[user] {
            Some((id, None)) => {
                self.processes.iter().filter(|p| p.id == id).map(Process::charged_bytes).sum()
            }
            _ => 0,
        };
        let now_ns = self.now_ns;
        let reading = Reading { used_bytes, dying_bytes, at_ns: now_ns };
        if self.ledger.read(account, reading).is_none() {
            return;
        }
        let flying = self.ledger.account(account).unwrap().in_flight();
        match self.ledger.account_mut(account).unwrap().settle(now_ns) {
            Some((victim, Settled::Back { took_ns, .. })) => {
                let (id, emptied) = self.in_flight[user].take().expect("settled out of nothing");
                assert_eq!(victim.id, id);
                assert!(emptied.is_some(), "settled before it was emptied");
                assert_eq!(took_ns, now_ns - victim.signalled_ns);
            }
            Some((victim, Settled::Stuck { .. })) => {
                assert!(now_ns >= victim.deadline_ns());
                assert!(matches!(self.in_flight[user].take(), Some((_, None))));
                self.stuck[user].insert(victim.id);
            }
            None => {
                // A victim without memory, an account read just now: only live ones keep waiting.
                assert!(!matches!(self.in_flight[user], Some((_, Some(_)))), "{flying:?}");
            }
        }
        let hard = self.ledger.account(account).unwrap().limit().hard_bytes();
        let verdict = self.ledger.decide(account, &self.processes, &PROTECTED);
        let naive = self.naive_victim(user);
        match verdict {
            Verdict::Within => assert!(used_bytes <= hard),
            Verdict::Wait(id) => {
                assert!(used_bytes > hard);
                assert_eq!(self.in_flight[user].expect("waits for nobody").0, id);
            }
            Verdict::Nobody(_) => assert!(used_bytes > hard && naive.is_none()),
            Verdict::Kill(choice) => {
                assert!(used_bytes > hard && self.in_flight[user].is_none());
                let victim = choice.victim;
                assert_eq!(Some(victim), naive);
                let next = choice.runner_up.map(|next| next.charged_bytes());
                assert!(next.is_none_or(|bytes| bytes <= victim.charged_bytes()));
                let account = self.ledger.account_mut(account).unwrap();
                account.signalled(victim.id, victim.charged_bytes(), used_bytes, now_ns);
                self.in_flight[user] = Some((victim.id, None));
            }
        }
    }

    /// The rule once more, as plainly as it can be said.
    fn naive_victim(&self, user: usize) -> Option<Process> {
        let account = USERS[user];
        let mut eligible: Vec<Process> = self.processes.clone();
        eligible.retain(|p| p.account == account && p.id.pid > 1 && !p.kernel_thread && !p.exiting);
        eligible.retain(|p| !PROTECTED.contains(&p.id.pid) && !self.stuck[user].contains(&p.id));
        eligible.retain(|p| p.rss_bytes + p.swap_bytes > 0);
        eligible.sort_by_key(|p| p.id.pid);
        eligible.sort_by_key(|p| p.id.start_time);
        eligible.sort_by_key(|p| p.rss_bytes + p.swap_bytes);
        eligible.pop()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]
    #[test]
    fn the_ledger_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::default();
        for step in steps {
            world.apply(step);
        }
    }
}
