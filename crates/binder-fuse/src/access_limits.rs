//! Limits what an owner can cost the others by clients whose memory is slow or never answers.
//!
//! * An owner has a budget of event loop time for accesses that take long. While less than half of
//!   it is left, calls of the owner's clients are not started. The budget that is left bounds the
//!   next access of a call that was started before; while none is left, it is refused.
//! * A late access blocks a thread until the client's memory answers. Until then no call of that
//!   client is started and no other access to it is made. The number of blocked threads is bounded
//!   per owner and in total; the same applies to an owner that has reached its bound.
//!
//! Root and the server's own user could stop the server anyway: their time is not limited.

use std::time::Duration;

use binder_driver::ProcessId;
use owners::{Owner, Quota, QuotaSize, Rate, TokenBuckets, Uid};

use crate::client_access::BlockedAccess;
use crate::files::Charge;

/// Longest time of an access. No client is served meanwhile, so it must be short; but memory that
/// is read from a busy disk must not be taken for memory that never answers, so it must not be too
/// short either: this is some tens of disk accesses.
pub(crate) const LONGEST_ACCESS: Duration = Duration::from_millis(250);
/// Time of the event loop that an owner may use for long accesses: four late ones at once, and one
/// part in twenty. One token is one nanosecond.
const BUDGET: Rate = Rate { per_second: 50_000_000, burst: 1_000_000_000 };
/// Budget with which a call is started: enough for some accesses of the call that take long.
const BUDGET_TO_START: u64 = BUDGET.burst / 2;
/// Number of threads that may be blocked. Each pins the address space of a client.
const BLOCKED_THREADS: QuotaSize =
    QuotaSize { slots: 128, reserved: 8, of_an_owner: BLOCKED_OF_AN_OWNER };
const BLOCKED_OF_AN_OWNER: usize = 8;

/// See the module's documentation.
pub(crate) struct AccessLimits {
    own: Owner,
    /// Time of an access that is not charged, nanoseconds.
    free_ns: u64,
    budgets: TokenBuckets<Owner>,
    threads: Quota,
    blocked: Vec<BlockedThread>,
}

struct BlockedThread {
    process: ProcessId,
    charge: Charge,
    access: BlockedAccess,
}

impl AccessLimits {
    /// `own_uid` is the server's user. `tick_ns` is the resolution of the clock that all times are
    /// read from: an access that takes no time may seem to take that long.
    pub(crate) fn new(own_uid: Uid, tick_ns: u64) -> Self {
        Self {
            own: Owner::User(own_uid),
            free_ns: tick_ns,
            budgets: TokenBuckets::new(BUDGET),
            threads: Quota::new(BLOCKED_THREADS),
            blocked: Vec::new(),
        }
    }

    /// No owner has used its budget, and no thread is blocked: each access is admitted.
    pub(crate) fn is_unused(&self) -> bool {
        self.blocked.is_empty() && self.budgets.is_unused()
    }

    /// How long an access to a client may take; `None`: it is refused.
    pub(crate) fn admit(
        &mut self,
        process: ProcessId,
        charge: Charge,
        now_ns: u64,
    ) -> Option<Duration> {
        if !self.may_block(process, charge) {
            return None;
        }
        let left_ns = self.budget_ns(charge.owner, now_ns);
        (left_ns > 0).then(|| LONGEST_ACCESS.min(Duration::from_nanos(left_ns)))
    }

    /// Whether a call of a client may be started. If so, its first access is admitted.
    pub(crate) fn may_start_call(
        &mut self,
        process: ProcessId,
        charge: Charge,
        now_ns: u64,
    ) -> bool {
        self.may_block(process, charge) && self.budget_ns(charge.owner, now_ns) >= BUDGET_TO_START
    }

    /// Whether one more thread may be blocked, in the memory of this client.
    fn may_block(&mut self, process: ProcessId, Charge { owner, uid }: Charge) -> bool {
        self.remove_returned();
        // The quota bounds every owner but root; this bounds root as well.
        self.threads.held(owner) < BLOCKED_OF_AN_OWNER
            && self.threads.check(owner, uid).is_ok()
            && self.blocked.iter().all(|blocked| blocked.process != process)
    }

    fn budget_ns(&mut self, owner: Owner, now_ns: u64) -> u64 {
        if self.is_exempt(owner) { BUDGET.burst } else { self.budgets.tokens(owner, now_ns) }
    }

    fn is_exempt(&self, owner: Owner) -> bool {
        owner.is_root() || owner == self.own
    }

    /// Whether an access that took this long is to be charged.
    pub(crate) fn is_long(&self, took_ns: u64) -> bool {
        took_ns > self.free_ns
    }

    /// Charges the time of an access.
    pub(crate) fn charge(&mut self, owner: Owner, now_ns: u64, took_ns: u64) {
        let spent_ns = took_ns.saturating_sub(self.free_ns);
        if spent_ns > 0 && !self.is_exempt(owner) {
            self.budgets.charge(owner, now_ns, spent_ns);
        }
    }

    /// Records that an access of a client was late: its thread is blocked.
    pub(crate) fn add_blocked(
        &mut self,
        process: ProcessId,
        charge: Charge,
        access: BlockedAccess,
    ) {
        self.threads.insert(charge.owner, charge.uid);
        self.blocked.push(BlockedThread { process, charge, access });
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

    use keyed_slab::Key;
    use proptest::prelude::*;

    use super::*;

    const TICK_NS: u64 = 4_000_000;
    const LONGEST_NS: u64 = LONGEST_ACCESS.as_nanos() as u64;
    const SERVER: Uid = Uid(900);
    const USER: Uid = Uid(1000);

    fn limits() -> AccessLimits {
        AccessLimits::new(SERVER, TICK_NS)
    }

    fn process(number: u64) -> ProcessId {
        ProcessId::from_number(1 << 32 | number)
    }

    fn charge(owner: Uid) -> Charge {
        Charge { owner: Owner::User(owner), uid: owner }
    }

    /// A late access; it returns when the result is dropped.
    fn be_late(limits: &mut AccessLimits, number: u64, owner: Uid) -> Arc<()> {
        let exists = Arc::new(());
        limits.add_blocked(process(number), charge(owner), BlockedAccess::of(&exists));
        exists
    }

    #[test]
    fn a_client_is_refused_until_its_late_access_has_returned() {
        let mut limits = limits();
        assert!(limits.is_unused());
        let late = be_late(&mut limits, 1, USER);
        assert!(!limits.is_unused());
        assert_eq!(limits.admit(process(1), charge(USER), 0), None);
        assert!(!limits.may_start_call(process(1), charge(USER), 0));
        assert_eq!(limits.admit(process(2), charge(USER), 0), Some(LONGEST_ACCESS));
        assert!(limits.may_start_call(process(2), charge(USER), 0));
        drop(late);
        assert_eq!(limits.admit(process(1), charge(USER), 0), Some(LONGEST_ACCESS));
        assert!(limits.may_start_call(process(1), charge(USER), 0));
        assert!(limits.is_unused());
    }

    #[test]
    fn the_budget_of_an_owner_bounds_its_next_access() {
        let mut limits = limits();
        let owner = Owner::User(USER);
        limits.charge(owner, 0, BUDGET.burst - LONGEST_NS / 2 + TICK_NS);
        assert_eq!(limits.admit(process(1), charge(USER), 0), Some(LONGEST_ACCESS / 2));
        limits.charge(owner, 0, LONGEST_NS / 2 + TICK_NS);
        assert_eq!(limits.admit(process(1), charge(USER), 0), None);
        // A twentieth of a second per second.
        let admitted = limits.admit(process(1), charge(USER), 1_000_000_000);
        assert_eq!(admitted, Some(Duration::from_millis(50)));
        // Calls start again with half of the budget.
        let starts_at = |limits: &mut AccessLimits, seconds: u64| {
            limits.may_start_call(process(1), charge(USER), seconds * 1_000_000_000)
        };
        assert_eq!([9, 10].map(|seconds| starts_at(&mut limits, seconds)), [false, true]);
        let other = limits.admit(process(2), charge(Uid(1001)), 0);
        assert_eq!(other, Some(LONGEST_ACCESS));
    }

    #[test]
    fn short_accesses_cost_nothing() {
        let mut limits = limits();
        for _ in 0..1_000_000 {
            limits.charge(Owner::User(USER), 0, TICK_NS);
        }
        assert!(!limits.is_long(TICK_NS) && limits.is_long(TICK_NS + 1) && limits.is_unused());
    }

    #[test]
    fn root_and_the_servers_user_have_unlimited_time_and_limited_threads() {
        for uid in [Uid::ROOT, SERVER] {
            let mut limits = limits();
            limits.charge(Owner::User(uid), 0, u64::MAX);
            assert_eq!(limits.admit(process(0), charge(uid), 0), Some(LONGEST_ACCESS));
            let late: Vec<_> = (0..8).map(|number| be_late(&mut limits, number, uid)).collect();
            assert_eq!(limits.admit(process(8), charge(uid), 0), None, "{} blocked", late.len());
        }
    }

    /// One access, or the return of a late one.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Access { owner: u32, uid: u32, takes_ns: u64 },
        Return { which: usize },
        Pause { ns: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let takes_ns = prop_oneof![0..LONGEST_NS * 2, Just(u64::MAX)];
        let access = (0..40_u32, 0..65_536_u32, takes_ns);
        prop_oneof![
            8 => access.prop_map(|(owner, uid, takes_ns)| Step::Access { owner, uid, takes_ns }),
            1 => any::<usize>().prop_map(|which| Step::Return { which }),
            1 => (0..10_000_000_000_u64).prop_map(|ns| Step::Pause { ns }),
        ]
    }

    /// An event loop that aborts each access at its limit, and at its next tick.
    struct Loop {
        limits: AccessLimits,
        now_ns: u64,
        /// Waited for the accesses of each owner.
        waited_ns: HashMap<u32, u64>,
        blocked: Vec<(u32, Arc<()>)>,
    }

    impl Loop {
        fn execute(&mut self, step: Step, number: u64) {
            match step {
                Step::Pause { ns } => self.now_ns += ns,
                Step::Return { which } if !self.blocked.is_empty() => {
                    self.blocked.swap_remove(which % self.blocked.len());
                }
                Step::Return { .. } => {}
                Step::Access { owner, uid, takes_ns } => {
                    let charge = Charge { owner: Owner::User(Uid(1000 + owner)), uid: Uid(uid) };
                    let admitted = self.limits.admit(process(number), charge, self.now_ns);
                    let Some(longest) = admitted else { return };
                    let took_ns = takes_ns.min(longest.as_nanos() as u64);
                    self.now_ns += took_ns;
                    *self.waited_ns.entry(owner).or_default() += took_ns;
                    self.limits.charge(charge.owner, self.now_ns, took_ns + TICK_NS);
                    if took_ns < takes_ns {
                        let exists = Arc::new(());
                        let access = BlockedAccess::of(&exists);
                        self.limits.add_blocked(process(number), charge, access);
                        self.blocked.push((owner, exists));
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
                let bound_ns = BUDGET.burst + event_loop.now_ns / 20;
                for (owner, waited_ns) in &event_loop.waited_ns {
                    prop_assert!(*waited_ns <= bound_ns, "{owner}: {waited_ns} of {bound_ns}");
                    let blocked = event_loop.blocked.iter().filter(|(of, _)| of == owner).count();
                    prop_assert!(blocked <= BLOCKED_OF_AN_OWNER);
                }
                prop_assert!(event_loop.blocked.len() <= BLOCKED_THREADS.slots);
                for number in 0..40 {
                    // A call that is started makes progress.
                    let (process, charge) = (process(0), charge(Uid(1000 + number)));
                    let limits = &mut event_loop.limits;
                    let starts = limits.may_start_call(process, charge, event_loop.now_ns);
                    let admitted = limits.admit(process, charge, event_loop.now_ns);
                    prop_assert!(!starts || admitted == Some(LONGEST_ACCESS));
                }
                let root = event_loop.limits.admit(process(0), charge(Uid::ROOT), 0);
                prop_assert_eq!(root, Some(LONGEST_ACCESS));
            }
        }
    }
}
