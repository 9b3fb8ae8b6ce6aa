//! Limits what an owner can cost the others by clients whose memory is slow or never answers.
//!
//! * An owner has a budget of event loop time for blocked accesses. While less than half of it is
//!   left, the memory of its calls is touched by another thread before they are started; while none
//!   is left, they are not started.
//! * A late access blocks a thread until the client's memory answers. Until then no call of that
//!   client is started and no other access to it is made. The number of blocked threads is bounded
//!   per owner and in total; the same applies to an owner that has reached its bound.
//! * While a thread touches memory of a client, no other call of that client is started, but those
//!   that were touched go on. If they were delayed, two threads of a client could delay each other
//!   without end.
//!
//! Root and the server's own user could stop the server anyway: their calls are always started.

use std::collections::BTreeMap;
use std::time::Duration;

use binder_driver::ProcessId;
use owners::bounds::{BLOCKED_ACCESS_TIME, BLOCKED_THREADS};
use owners::{Owner, Quota, QuotaSize, Rate, TokenBuckets, Uid};

use crate::client_access::BlockedAccess;
use crate::files::Charge;
use crate::page_server::{LATE_AFTER, RESCUE_AFTER};

/// One token is one nanosecond of the event loop.
const BUDGET: Rate = BLOCKED_ACCESS_TIME.of_an_owner();
/// With less budget, memory is touched before a call is started.
const BUDGET_WITHOUT_TOUCH: u64 = BUDGET.burst / 2;
const THREADS: QuotaSize = BLOCKED_THREADS.slots();

/// How a call may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Now,
    /// Once another thread has touched the memory that it accesses.
    Touched,
    Later,
}

/// What an access has cost the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessCost {
    /// The page server, which checks at intervals, has found it blocked.
    Blocked,
    /// Another thread had to take the event loop over.
    Late,
}

impl AccessCost {
    /// On average: a blocked access is found with a probability that grows with its time.
    fn time(self) -> Duration {
        match self {
            Self::Blocked => RESCUE_AFTER,
            Self::Late => RESCUE_AFTER + LATE_AFTER,
        }
    }
}

/// See the module's documentation.
pub(crate) struct AccessLimits {
    own: Owner,
    budgets: TokenBuckets<Owner>,
    threads: Quota,
    blocked: Vec<BlockedThread>,
}

/// What a thread does that is blocked in a client's memory, or may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupation {
    /// An access of the event loop that was late.
    LateAccess,
    /// It touches the memory of this thread's call.
    Touch { tid: u32 },
}

struct BlockedThread {
    occupation: Occupation,
    process: ProcessId,
    charge: Charge,
    access: BlockedAccess,
}

impl AccessLimits {
    /// `own_uid` is the server's user.
    pub(crate) fn new(own_uid: Uid) -> Self {
        Self {
            own: Owner::User(own_uid),
            budgets: TokenBuckets::new(BUDGET),
            threads: Quota::new(THREADS),
            blocked: Vec::new(),
        }
    }

    /// The budgets that were used.
    pub(crate) fn balances(&self, now_ns: u64) -> BTreeMap<Owner, i64> {
        self.budgets.balances(now_ns)
    }

    /// Continues with the budgets of another server.
    pub(crate) fn restore(&mut self, balances: BTreeMap<Owner, i64>, now_ns: u64) {
        self.budgets.restore(balances, now_ns);
    }

    /// No owner has used its budget, and no thread is blocked: each access is admitted.
    pub(crate) fn is_unused(&self) -> bool {
        self.blocked.is_empty() && self.budgets.is_unused()
    }

    /// Whether an access to a client may be made, by a call that was started.
    pub(crate) fn admits(&mut self, process: ProcessId, charge: Charge, now_ns: u64) -> bool {
        self.may_block(process, charge, |occupation| occupation == Occupation::LateAccess)
            && self.has_budget(charge.owner, now_ns)
    }

    /// Whether the call of this thread may go on, whose memory is being touched or was.
    pub(crate) fn admits_touched(
        &mut self,
        process: ProcessId,
        tid: u32,
        charge: Charge,
        now_ns: u64,
    ) -> bool {
        let reasons = [Occupation::LateAccess, Occupation::Touch { tid }];
        self.may_block(process, charge, |occupation| reasons.contains(&occupation))
            && self.has_budget(charge.owner, now_ns)
    }

    /// How a call of a client may be started.
    pub(crate) fn start_of_call(
        &mut self,
        process: ProcessId,
        charge: Charge,
        now_ns: u64,
    ) -> Start {
        if !self.may_block(process, charge, |_| true) || !self.has_budget(charge.owner, now_ns) {
            return Start::Later;
        }
        match self.budgets.tokens(charge.owner, now_ns) {
            ..BUDGET_WITHOUT_TOUCH => Start::Touched,
            _ => Start::Now,
        }
    }

    fn has_budget(&mut self, owner: Owner, now_ns: u64) -> bool {
        self.is_exempt(owner) || self.budgets.tokens(owner, now_ns) > 0
    }

    /// Whether one more thread may be blocked, in the memory of this client, unless one of these
    /// is.
    fn may_block(
        &mut self,
        process: ProcessId,
        Charge { owner, uid }: Charge,
        unless: impl Fn(Occupation) -> bool,
    ) -> bool {
        self.remove_returned();
        self.threads.check_also_root(owner, uid).is_ok()
            && !self.blocked.iter().any(|it| it.process == process && unless(it.occupation))
    }

    fn is_exempt(&self, owner: Owner) -> bool {
        owner.is_root() || owner == self.own
    }

    /// Charges an access. Without a budget nothing is charged: a debt of root, whose calls are
    /// started all the same, would outlast its reason.
    pub(crate) fn charge(&mut self, owner: Owner, now_ns: u64, cost: AccessCost) {
        if self.budgets.is_ready(owner, now_ns) {
            self.budgets.charge(owner, now_ns, cost.time().as_nanos() as u64);
        }
    }

    /// Records that a thread is blocked in the memory of a client, or may be.
    pub(crate) fn add_blocked(
        &mut self,
        process: ProcessId,
        charge: Charge,
        occupation: Occupation,
        access: BlockedAccess,
    ) {
        self.threads.insert(charge.owner, charge.uid);
        self.blocked.push(BlockedThread { occupation, process, charge, access });
    }

    /// An owner whose client's memory blocks a thread.
    pub(crate) fn owner_of_blocked(&mut self) -> Option<Owner> {
        self.remove_returned();
        self.blocked.first().map(|blocked| blocked.charge.owner)
    }

    fn remove_returned(&mut self) {
        let threads = &mut self.threads;
        self.blocked.retain(|blocked| {
            let is_blocked = !blocked.access.has_returned();
            if !is_blocked {
                threads.give_back(blocked.charge.owner, blocked.charge.uid);
            }
            is_blocked
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use binder_driver::slab::Key;
    use proptest::prelude::*;

    use super::*;
    use crate::client_access::Progress;

    const SERVER: Uid = Uid(900);
    const USER: Uid = Uid(1000);
    const LATE_NS: u64 = (RESCUE_AFTER.as_nanos() + LATE_AFTER.as_nanos()) as u64;
    /// Late accesses that use up a budget.
    const LATE_ACCESSES: u64 = BUDGET.burst.div_ceil(LATE_NS);

    fn limits() -> AccessLimits {
        AccessLimits::new(SERVER)
    }

    fn process(number: u64) -> ProcessId {
        ProcessId::from_number(1 << 32 | number)
    }

    fn charge(owner: Uid) -> Charge {
        Charge { owner: Owner::User(owner), uid: owner }
    }

    /// A late access; it returns when its progress is completed.
    fn be_late(limits: &mut AccessLimits, number: u64, owner: Uid) -> Arc<Progress> {
        be_occupied(limits, number, owner, Occupation::LateAccess)
    }

    fn be_occupied(
        limits: &mut AccessLimits,
        number: u64,
        owner: Uid,
        occupation: Occupation,
    ) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        let access = BlockedAccess::new(Arc::clone(&progress));
        limits.add_blocked(process(number), charge(owner), occupation, access);
        progress
    }

    fn start(limits: &mut AccessLimits, number: u64, owner: Uid, now_ns: u64) -> Start {
        limits.start_of_call(process(number), charge(owner), now_ns)
    }

    fn charge_late(limits: &mut AccessLimits, owner: Uid, count: u64) {
        for _ in 0..count {
            limits.charge(Owner::User(owner), 0, AccessCost::Late);
        }
    }

    #[test]
    fn a_client_is_refused_until_its_late_access_has_returned() {
        let mut limits = limits();
        assert!(limits.is_unused());
        let late = be_late(&mut limits, 1, USER);
        assert!(!limits.is_unused());
        assert!(!limits.admits(process(1), charge(USER), 0));
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Later);
        assert_eq!(start(&mut limits, 2, USER, 0), Start::Now);
        late.complete(Ok(()));
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Now);
        assert!(limits.is_unused());
    }

    #[test]
    fn a_touched_call_goes_on_while_another_one_of_its_client_is_touched() {
        let mut limits = limits();
        charge_late(&mut limits, USER, LATE_ACCESSES / 2 + 1);
        let touch = be_occupied(&mut limits, 1, USER, Occupation::Touch { tid: 7 });
        let goes_on = |limits: &mut AccessLimits, tid| {
            limits.admits_touched(process(1), tid, charge(USER), 0)
        };
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Later);
        assert!(goes_on(&mut limits, 8) && limits.admits(process(1), charge(USER), 0));
        assert!(!goes_on(&mut limits, 7), "it is being touched");
        be_late(&mut limits, 1, USER);
        assert!(!goes_on(&mut limits, 8) && !limits.admits(process(1), charge(USER), 0));
        touch.complete(Ok(()));
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Later);
    }

    #[test]
    fn memory_is_touched_first_below_half_of_the_budget_and_not_accessed_without_any() {
        let mut limits = limits();
        charge_late(&mut limits, USER, LATE_ACCESSES / 2);
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Now);
        charge_late(&mut limits, USER, 1);
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Touched);
        assert!(limits.admits(process(1), charge(USER), 0));
        charge_late(&mut limits, USER, 100 * LATE_ACCESSES);
        assert_eq!(start(&mut limits, 1, USER, 0), Start::Later);
        assert!(!limits.admits(process(1), charge(USER), 0));
        assert_eq!(start(&mut limits, 1, Uid(1001), 0), Start::Now, "another owner");
        // A debt of one access at the most.
        assert_eq!(start(&mut limits, 1, USER, 1_100_000_000), Start::Touched);
        assert_eq!(start(&mut limits, 1, USER, 10_000_000_000), Start::Now);
        assert!(limits.is_unused());
    }

    #[test]
    fn another_server_continues_with_the_budgets() {
        let mut limits = limits();
        charge_late(&mut limits, USER, LATE_ACCESSES);
        let mut next = AccessLimits::new(SERVER);
        next.restore(limits.balances(0), 7);
        assert_eq!(start(&mut next, 1, USER, 7), Start::Later);
        assert_eq!(start(&mut next, 1, Uid(1001), 7), Start::Now, "another owner");
    }

    #[test]
    fn calls_of_root_and_the_servers_user_are_started_without_a_budget() {
        for uid in [Uid::ROOT, SERVER] {
            let mut limits = limits();
            charge_late(&mut limits, uid, 2 * LATE_ACCESSES);
            assert_eq!(start(&mut limits, 0, uid, 0), Start::Touched);
            let late: Vec<_> = (0..8).map(|number| be_late(&mut limits, number, uid)).collect();
            assert_eq!(start(&mut limits, 8, uid, 0), Start::Later, "{} blocked", late.len());
        }
    }

    /// One access, or the return of a late one.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Access { owner: u32, uid: u32, cost: AccessCost },
        Return { which: usize },
        Pause { ns: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let cost = prop_oneof![Just(AccessCost::Blocked), Just(AccessCost::Late)];
        let access = (0..40_u32, 0..65_536_u32, cost);
        prop_oneof![
            8 => access.prop_map(|(owner, uid, cost)| Step::Access { owner, uid, cost }),
            1 => any::<usize>().prop_map(|which| Step::Return { which }),
            1 => (0..10_000_000_000_u64).prop_map(|ns| Step::Pause { ns }),
        ]
    }

    /// An event loop whose accesses take as long as they are charged.
    struct Loop {
        limits: AccessLimits,
        now_ns: u64,
        /// Waited for the accesses of each owner.
        waited_ns: HashMap<u32, u64>,
        blocked: Vec<(u32, Arc<Progress>)>,
    }

    impl Loop {
        fn execute(&mut self, step: Step, number: u64) {
            match step {
                Step::Pause { ns } => self.now_ns += ns,
                Step::Return { which } if !self.blocked.is_empty() => {
                    let (_, progress) = self.blocked.swap_remove(which % self.blocked.len());
                    progress.complete(Ok(()));
                }
                Step::Return { .. } => {}
                Step::Access { owner, uid, cost } => {
                    let charge = Charge { owner: Owner::User(Uid(1000 + owner)), uid: Uid(uid) };
                    if !self.limits.admits(process(number), charge, self.now_ns) {
                        return;
                    }
                    let took_ns = cost.time().as_nanos() as u64;
                    self.now_ns += took_ns;
                    *self.waited_ns.entry(owner).or_default() += took_ns;
                    self.limits.charge(charge.owner, self.now_ns, cost);
                    if cost == AccessCost::Late {
                        let progress = Arc::new(Progress::default());
                        let access = BlockedAccess::new(Arc::clone(&progress));
                        let late = Occupation::LateAccess;
                        self.limits.add_blocked(process(number), charge, late, access);
                        self.blocked.push((owner, progress));
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn time_and_threads_of_an_owner_are_bounded_whatever_its_clients_do(
            steps in prop::collection::vec(step(), 1..400),
        ) {
            let mut event_loop = Loop {
                limits: limits(),
                now_ns: 0,
                waited_ns: HashMap::new(),
                blocked: Vec::new(),
            };
            for (number, step) in (1..).zip(steps) {
                event_loop.execute(step, number);
                let refilled_ns = event_loop.now_ns / 1_000 * BUDGET.per_second / 1_000_000;
                let bound_ns = BUDGET.burst + refilled_ns + LATE_NS;
                for (owner, waited_ns) in &event_loop.waited_ns {
                    prop_assert!(*waited_ns <= bound_ns, "{owner}: {waited_ns} of {bound_ns}");
                    let blocked = event_loop.blocked.iter().filter(|(of, _)| of == owner).count();
                    prop_assert!(blocked <= THREADS.of_an_owner);
                }
                prop_assert!(event_loop.blocked.len() <= THREADS.slots);
                let root = start(&mut event_loop.limits, 0, Uid::ROOT, event_loop.now_ns);
                prop_assert_eq!(root, Start::Now);
            }
        }
    }
}
