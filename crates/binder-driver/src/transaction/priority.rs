//! Priorities: a call is served with its caller's nice value, or with the minimum of the node if
//! the caller's is weaker, and the server's own priority is restored when it replies.
//!
//! A node may require more: to inherit the real-time policy of its callers, or to be served with a
//! minimum real-time policy. Otherwise a server with a real-time policy of its own keeps it.
//!
//! What a node requires is applied before the server runs. A nice value that comes from the caller
//! is applied once the call has been served for a tick, and its server has had CPU time in one. A
//! client of nice -20 whose server has -20 as well before it runs leaves the CPU to nobody, also
//! not to the server of a real-time caller.
//! Short calls so cost no system calls for it. A real-time caller lends the strongest nice value
//! to a call that lasts longer.

use binder_uapi::{
    FLAT_BINDER_FLAG_INHERIT_RT, FLAT_BINDER_FLAG_PRIORITY_MASK,
    FLAT_BINDER_FLAG_SCHED_POLICY_MASK, FLAT_BINDER_FLAG_SCHED_POLICY_SHIFT,
};
use owners::{FairQueue, Owner};

use crate::driver::{Driver, ProcessId, ThreadId, TransactionId};
use crate::host::{Caller, Freshness, Host, Policy, Priority};

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

/// The priorities that the node requires for a call of this caller, other than the thread's own;
/// the strongest comes first.
fn required(flags: u32, callers: Priority, own: Priority) -> impl Iterator<Item = Priority> {
    let wanted = real_time(flags, callers.policy).map(|policy| Priority {
        policy,
        reset_on_fork: true,
        nice: callers.nice.min(min_nice(flags)),
    });
    // A thread that may not run at real-time priority gets at least the nice value.
    let nice_only = Priority { nice: own.nice.min(min_nice(flags)), ..own };
    [wanted, Some(nice_only)].into_iter().flatten().filter(move |way| *way != own)
}

/// The nice value that a call of this caller deserves once it is late.
fn late_nice(flags: u32, callers: Priority) -> i32 {
    let lent = if callers.policy.level() > 0 { STRONGEST_NICE } else { callers.nice };
    lent.min(min_nice(flags))
}

const STRONGEST_NICE: i32 = -20;

/// Calls of a tick's end that are examined, and whose servers are looked at: bounds on the work of
/// one tick. Most calls have ended by then.
const MAX_EXAMINED: usize = 256;

const MAX_SERVERS: usize = 32;

/// Ticks after which a call's server is changed even if it had no CPU time in one: it sleeps, or it
/// starves. 10 ms are some slices of the kernel's scheduler.
const MOST_TICKS: u64 = 20;

/// A call that is served with another nice value once it is late.
#[derive(Clone, Copy, Debug)]
struct LateCall {
    call: TransactionId,
    /// The tick in which it was delivered.
    since: u64,
    /// The server's CPU time at the end of a tick, nanoseconds.
    run_ns: Option<u64>,
}

/// Calls that are served with another nice value once they have lasted a tick.
#[derive(Debug)]
pub(crate) struct LateCalls {
    /// In turns of the callers' owners.
    queue: FairQueue<Owner, LateCall>,
    tick: u64,
}

impl Default for LateCalls {
    fn default() -> Self {
        Self { queue: FairQueue::new(1), tick: 0 }
    }
}

/// Whether calls wait for the end of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitsTick {
    /// [`Driver::end_tick`] is to be called some 500 us from now.
    Yes,
    /// No call waits.
    No,
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
        let Some(recent) = host.priority(tid, Freshness::Recent) else { return };
        if required(flags, callers, recent).next().is_some()
            // The reply restores this one, so it must be the current one.
            && let Some(own) = host.priority(tid, Freshness::Current)
            && let Some(way) =
                required(flags, callers, own).find(|way| host.inherit_priority(tid, *way))
        {
            self.transactions[call].own_priority = Some(own);
            if way.policy.level() > 0 {
                return;
            }
        }
        if late_nice(flags, callers) != recent.nice {
            self.await_tick(call);
        }
    }

    fn await_tick(&mut self, call: TransactionId) {
        self.await_next_tick(LateCall { call, since: self.late_calls.tick, run_ns: None });
    }

    fn await_next_tick(&mut self, late: LateCall) {
        let Some(entry) = self.transactions.get(late.call) else { return };
        let Some(caller) = entry.from else { return };
        let owner = self.processes[self.threads[caller].process].opener.owner;
        self.late_calls.queue.push(owner, entry.sender_euid, 1, late);
    }

    /// Whether calls wait for the end of a tick.
    pub fn awaits_tick(&self) -> AwaitsTick {
        if self.late_calls.queue.is_empty() { AwaitsTick::No } else { AwaitsTick::Yes }
    }

    /// A tick has ended: calls that have been served for one get the nice values that they deserve.
    ///
    /// A server that waits for its CPU is not changed. A strong nice value lets it gain precedence
    /// while it waits, which it keeps when it is restored: two servers that are changed in turns
    /// then leave nothing to a client of nice 19.
    pub fn end_tick<H: Host>(&mut self, host: &mut H) {
        let now = self.late_calls.tick;
        self.late_calls.tick += 1;
        let (mut again, mut looked) = (Vec::new(), 0);
        for _ in 0..MAX_EXAMINED {
            if looked == MAX_SERVERS {
                break;
            }
            let Some(late) = self.late_calls.queue.pop() else { break };
            let Some(tid) = self.serving_thread(late.call) else { continue };
            looked += 1;
            let run_ns = host.run_time_ns(tid);
            let has_run = match (late.run_ns, run_ns) {
                (Some(before), Some(run_ns)) => before != run_ns,
                _ => late.since < now,
            };
            if has_run || now - late.since >= MOST_TICKS {
                self.change_nice(host, late.call, tid);
            } else {
                again.push(LateCall { run_ns, ..late });
            }
        }
        for late in again {
            self.await_next_tick(late);
        }
    }

    /// The thread that serves a call, and no other within it.
    fn serving_thread(&self, call: TransactionId) -> Option<u32> {
        let thread = self.transactions.get(call)?.to_thread?;
        // Another call that the thread serves within this one restores the priority that the
        // thread has now. The outer call waits again when that one has ended.
        (self.served_by(thread) == Some(call)).then(|| self.threads[thread].tid)
    }

    /// Changes the nice value of the thread that serves a late call.
    fn change_nice<H: Host>(&mut self, host: &mut H, call: TransactionId, tid: u32) {
        let entry = &self.transactions[call];
        let node = entry.buffer.and_then(|buffer| self.buffers[buffer].target);
        let (Some(callers), Some(node)) = (entry.priority, node) else { return };
        let nice = late_nice(self.nodes[node].flags, callers);
        let Some(own) = host.priority(tid, Freshness::Current) else { return };
        if own.nice != nice && host.inherit_priority(tid, Priority { nice, ..own }) {
            self.transactions[call].own_priority.get_or_insert(own);
        }
    }

    /// The innermost call that a thread serves.
    fn served_by(&self, thread: ThreadId) -> Option<TransactionId> {
        self.stack_of(thread).find(|&call| self.transactions[call].to_thread == Some(thread))
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
        let thread = self.transactions[call].to_thread;
        if let Some(outer) = thread.and_then(|thread| self.served_by(thread)) {
            self.await_tick(outer);
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
