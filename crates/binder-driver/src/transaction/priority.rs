//! Priorities: a call is served with its caller's nice value, or with the minimum of the node if
//! the caller's is weaker, and the server's own priority is restored when it replies.
//!
//! A node may require more: to inherit the real-time policy of its callers, or to be served with a
//! minimum real-time policy. Otherwise a server with a real-time policy of its own keeps it.

use binder_uapi::{
    FLAT_BINDER_FLAG_INHERIT_RT, FLAT_BINDER_FLAG_PRIORITY_MASK,
    FLAT_BINDER_FLAG_SCHED_POLICY_MASK, FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT,
};

use crate::driver::Driver;
use crate::host::{Caller, Freshness, Host, Policy, Priority};
use crate::keys::{ProcessId, ThreadId, TransactionId};

/// The weakest nice value that a node with these flags is served with.
fn min_nice(flags: u32) -> i32 {
    match min_real_time(flags) {
        Some(_) => i32::MAX,
        None => (flags & FLAT_BINDER_FLAG_PRIORITY_MASK) as i32,
    }
}

/// The weakest real-time policy that a node with these flags is served with; `None`: no minimum.
fn min_real_time(flags: u32) -> Option<Policy> {
    let level = (flags & FLAT_BINDER_FLAG_PRIORITY_MASK).min(99) as u8;
    let policy =
        (flags & FLAT_BINDER_FLAG_SCHED_POLICY_MASK) >> FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT;
    match (policy, level) {
        (1, 1..) => Some(Policy::Fifo(level)),
        (2, 1..) => Some(Policy::RoundRobin(level)),
        _ => None,
    }
}

/// The real-time policy with which a node with these flags serves this caller.
fn real_time(flags: u32, callers: Policy) -> Option<Policy> {
    let inherits = flags & FLAT_BINDER_FLAG_INHERIT_RT != 0 && callers.level() > 0;
    let inherited = inherits.then_some(callers);
    let minimum = min_real_time(flags);
    // If both are equally strong, the caller's is used.
    if minimum.map_or(0, Policy::level) > inherited.map_or(0, Policy::level) {
        minimum
    } else {
        inherited
    }
}

/// The priorities with which a thread may serve a call of this caller, other than its own; the
/// strongest comes first.
fn inherited(flags: u32, callers: Priority, own: Priority) -> impl Iterator<Item = Priority> {
    let nice_only = Priority { nice: callers.nice.min(min_nice(flags)), ..own };
    let wanted = real_time(flags, callers.policy).map_or(nice_only, |policy| Priority {
        policy,
        reset_on_fork: true,
        ..nice_only
    });
    // A thread that may not run at real-time priority gets at least the nice value.
    let next_best = (wanted.policy != own.policy).then_some(nice_only);
    [Some(wanted), next_best].into_iter().flatten().filter(move |way| *way != own)
}

impl Driver {
    /// The thread starts to serve a call.
    pub(crate) fn inherit_priority<H: Host>(
        &mut self,
        host: &mut H,
        thread: ThreadId,
        call: TransactionId,
    ) {
        let entry = &self.transactions[call];
        let node = entry.buffer.and_then(|buffer| self.buffers[buffer].target);
        let (Some(callers), Some(node)) = (entry.priority, node) else { return };
        let tid = self.threads[thread].tid;
        let flags = self.nodes[node].flags;
        let changes = |own| inherited(flags, callers, own).next().is_some();
        if !host.priority(tid, Freshness::Recent).is_some_and(changes) {
            return;
        }
        // The reply restores this one, so it must be the current one.
        let Some(own) = host.priority(tid, Freshness::Current) else { return };
        if inherited(flags, callers, own).any(|way| host.inherit_priority(tid, way)) {
            self.transactions[call].own_priority = Some(own);
        }
    }

    /// The thread replies to a call.
    pub(crate) fn restore_priority<H: Host>(
        &mut self,
        host: &mut H,
        caller: Caller,
        call: TransactionId,
    ) {
        if let Some(own) = self.transactions[call].own_priority.take() {
            host.restore_priority(caller.tid, own);
        }
    }

    /// The thread will not reply to any of its calls: restores the priority that it had before the
    /// first of them.
    pub(crate) fn restore_first_priority<H: Host>(
        &mut self,
        host: &mut H,
        process: ProcessId,
        tid: u32,
    ) {
        let Some(thread) = self.known_thread(process, tid) else { return };
        let calls: Vec<_> = self
            .stack_of(thread)
            .filter(|&call| self.transactions[call].to_thread == Some(thread))
            .collect();
        let own = calls.into_iter().filter_map(|call| self.transactions[call].own_priority.take());
        if let Some(own) = own.last() {
            host.restore_priority(tid, own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIFO: u32 = 1 << FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT;
    const ROUND_ROBIN: u32 = 2 << FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT;

    #[test]
    fn nodes_with_the_inherit_flag_inherit_real_time() {
        let inherit = FLAT_BINDER_FLAG_INHERIT_RT;
        assert_eq!(real_time(inherit, Policy::Fifo(7)), Some(Policy::Fifo(7)));
        assert_eq!(real_time(inherit, Policy::Fair(0)), None);
        assert_eq!(real_time(0, Policy::Fifo(7)), None);
    }

    #[test]
    fn the_stronger_of_minimum_and_caller_counts() {
        let node = FLAT_BINDER_FLAG_INHERIT_RT | ROUND_ROBIN | 10;
        assert_eq!(real_time(node, Policy::Fifo(9)), Some(Policy::RoundRobin(10)));
        assert_eq!(real_time(node, Policy::Fifo(10)), Some(Policy::Fifo(10)));
        assert_eq!(real_time(node, Policy::Fair(3)), Some(Policy::RoundRobin(10)));
        assert_eq!(real_time(FIFO | 5, Policy::RoundRobin(50)), Some(Policy::Fifo(5)));
    }

    #[test]
    fn a_minimum_is_a_nice_value_or_a_real_time_priority_and_never_both() {
        assert_eq!((min_nice(5), min_real_time(5)), (5, None));
        assert_eq!(
            (min_nice(FIFO | 5), min_real_time(FIFO | 5)),
            (i32::MAX, Some(Policy::Fifo(5)))
        );
        assert_eq!(min_real_time(FIFO | 0xff), Some(Policy::Fifo(99)));
        assert_eq!(min_real_time(FIFO), None, "there is no real-time priority 0");
        assert_eq!(min_real_time(FLAT_BINDER_FLAG_SCHED_POLICY_MASK | 5), None);
    }
}
