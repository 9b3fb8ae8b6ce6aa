//! Detects ordinary users without a limit of their own: each gets the default limit when its first
//! process is seen, and loses it some time after its last process has exited.
//!
//! The same check finds the users whose groups are needed for limits of groups.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use headroom_linux::clock::monotonic_ns;
use memory_ledger::{Change, Limit, NS_PER_MS, Uid, is_ordinary};
use memory_watch::NotifierError;

use super::scan_timer::CALM_SCAN_SHARE;
use super::shared_state::SharedState;
use crate::names::GroupMembers;

/// Interval of checking for new users, milliseconds. A check of a thousand processes takes 0.2 ms;
/// with very many processes the interval is longer, as for calm scans.
const LOOK_MS: u64 = 100;
/// How long a user without a process keeps its account, milliseconds, so that it outlives the
/// pauses between short jobs.
const FORGET_MS: u64 = 60_000;

/// The detector of ordinary users.
pub(super) struct DefaultLimits {
    ordinary: RangeInclusive<Uid>,
    /// The default limit; `None`: ordinary users have no limit by default.
    limit: Option<Limit>,
    /// When a process of each user was last seen, nanoseconds, CLOCK_MONOTONIC.
    seen_ns: BTreeMap<Uid, u64>,
    /// Users whose limit could not be set; logged once.
    refused: BTreeSet<Uid>,
    next_look_ns: u64,
    /// Users that have had a process, if a limit of a group needs to know them.
    owners: Option<BTreeSet<Uid>>,
    /// Those of them that were found since the last call of [`take_owners`](Self::take_owners).
    new_owners: Vec<Uid>,
}

impl DefaultLimits {
    pub(super) fn new(ordinary: RangeInclusive<Uid>) -> Self {
        let (seen_ns, refused) = (BTreeMap::new(), BTreeSet::new());
        let (owners, new_owners) = (None, Vec::new());
        Self { ordinary, limit: None, seen_ns, refused, next_look_ns: 0, owners, new_owners }
    }

    /// Collects users that have a process, if they are needed.
    pub(super) fn collect_owners(&mut self, members: GroupMembers) {
        let wanted = members == GroupMembers::Needed;
        if wanted != self.owners.is_some() {
            self.owners = wanted.then(BTreeSet::new);
            self.next_look_ns = 0;
        }
    }

    /// Users that were found to have a process since the last call, each of them once.
    pub(super) fn take_owners(&mut self) -> Vec<Uid> {
        std::mem::take(&mut self.new_owners)
    }

    /// The default limit of ordinary users.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// The default limit if it is to apply to this user once it has a process.
    pub(super) fn limit_of(&self, uid: Uid) -> Option<Limit> {
        self.limit.filter(|_| is_ordinary(&self.ordinary, uid))
    }

    /// Sets the default limit and makes a check due at once.
    pub(super) fn set_limit(&mut self, limit: Option<Limit>) {
        self.limit = limit;
        self.refused.clear();
        self.next_look_ns = 0;
    }

    /// When a check is due, nanoseconds, CLOCK_MONOTONIC.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        (self.limit.is_some() || self.owners.is_some()).then_some(self.next_look_ns)
    }

    /// The current degradation as a sentence; `None`: there is none.
    pub(super) fn degraded(&self) -> Option<String> {
        let uids: Vec<String> = self.refused.iter().map(Uid::to_string).collect();
        let message =
            || format!("these ordinary users have no limit, see the log: {}", uids.join(", "));
        (!uids.is_empty()).then(message)
    }

    /// The changes of limits that a check yields; none if no check is due.
    pub(super) fn due_changes(&mut self, state: &mut SharedState) -> Vec<Change> {
        let now_ns = monotonic_ns();
        if self.next_deadline_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return Vec::new();
        }
        let samples = match state.snapshot.list(state.accounts.watch()) {
            Ok(samples) => samples,
            Err(error) => {
                tracing::warn!("cannot list processes: {error}; new users are not limited yet");
                self.next_look_ns = now_ns + LOOK_MS * NS_PER_MS;
                return Vec::new();
            }
        };
        // A user namespace can outlive its owner's last process, and its memory is charged to the
        // owner.
        let users = samples.iter().flat_map(|sample| [sample.uid, sample.namespace_owner]);
        for uid in users.filter(|uid| self.ordinary.contains(uid)) {
            self.seen_ns.insert(uid, now_ns);
        }
        // Other large uids in a user namespace are subordinate ones, or those of containers.
        let in_initial_namespace = samples.iter().map(|sample| sample.namespace_owner);
        for uid in in_initial_namespace {
            if is_ordinary(&self.ordinary, uid) {
                self.seen_ns.insert(uid, now_ns);
            }
            if let Some(owners) = &mut self.owners
                && uid.is_limitable()
                && owners.insert(uid)
            {
                self.new_owners.push(uid);
            }
        }
        let (ledger, limit) = (state.accounts.ledger(), self.limit);
        let mut changes = Vec::new();
        let refused = &mut self.refused;
        self.seen_ns.retain(|uid, seen_ns| {
            let present = now_ns - *seen_ns < FORGET_MS * NS_PER_MS;
            if *seen_ns == now_ns {
                changes.extend(limit.and_then(|limit| ledger.plan_default(*uid, limit)));
            } else if !present {
                refused.remove(uid);
                changes.extend(ledger.plan_forget(*uid));
            }
            present
        });
        let took_ns = monotonic_ns() - now_ns;
        let pause_ns = (LOOK_MS * NS_PER_MS).max(took_ns * CALM_SCAN_SHARE);
        self.next_look_ns = now_ns + pause_ns;
        changes
    }

    /// Handles the result of applying a change.
    pub(super) fn on_applied(&mut self, uid: Uid, applied: Result<(), NotifierError>) {
        match applied {
            Ok(()) => {
                self.refused.remove(&uid);
            }
            Err(error) if !self.seen_ns.contains_key(&uid) => {
                tracing::warn!(%uid, "the account of a user without a process stays: {error}");
            }
            Err(error) => {
                if self.refused.insert(uid) {
                    tracing::error!(%uid, "an ordinary user has no limit: {error}");
                }
            }
        }
    }
}
