//! Ordinary users come under everybody's limit when their first process is seen, and are forgotten when the last one
//! has been gone for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use memory_ledger::{Limit, Uid};

use super::{CALM_SCAN_SHARE, Killer};
use crate::clock::{NS_PER_MS, monotonic_ns};

/// How often is looked for new users, milliseconds. A look at a thousand processes takes 0.2 ms; with very
/// many less often, as for calm scans.
const LOOK_MS: u64 = 100;
/// A user without a process keeps its account for so long, milliseconds: jobs come and go.
const FORGET_MS: u64 = 60_000;

/// Who is ordinary, and what they may have.
pub(super) struct Newcomers {
    ordinary: RangeInclusive<Uid>,
    /// `None`: nobody looks for them.
    limit: Option<Limit>,
    /// When a process of a user was last seen, nanoseconds.
    seen_ns: BTreeMap<Uid, u64>,
    /// Those that could not be limited: said once.
    refused: BTreeSet<Uid>,
    next_look_ns: u64,
}

impl Newcomers {
    pub(super) fn new() -> Self {
        Self {
            ordinary: crate::users::ORDINARY,
            limit: None,
            seen_ns: BTreeMap::new(),
            refused: BTreeSet::new(),
            next_look_ns: 0,
        }
    }

    /// What they may have.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// When a look is due.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.limit.map(|_| self.next_look_ns)
    }

    /// What is lost, a sentence; `None`: nothing.
    pub(super) fn lost(&self) -> Option<String> {
        let uids: Vec<String> = self.refused.iter().map(Uid::to_string).collect();
        let lost =
            || format!("these ordinary users have no limit, see the log: {}", uids.join(", "));
        (!uids.is_empty()).then(lost)
    }
}

impl Killer {
    /// These uids are ordinary users.
    pub fn set_ordinary(&mut self, uids: RangeInclusive<Uid>) {
        self.cgroups.accounts.set_ordinary(uids.clone());
        self.newcomers.ordinary = uids;
    }

    /// What every ordinary user may have of whom nothing else is said; `None`: anything. Those who have a
    /// process come under it at once.
    pub(super) fn limit_everyone(&mut self, limit: Option<Limit>) {
        self.newcomers.limit = limit;
        self.newcomers.refused.clear();
        self.newcomers.next_look_ns = 0;
        self.look_for_newcomers();
    }

    /// Looks if a look is due.
    pub(super) fn look_for_newcomers(&mut self) {
        let now_ns = monotonic_ns();
        let Some(limit) = self.newcomers.limit else { return };
        if now_ns < self.newcomers.next_look_ns {
            return;
        }
        if let Err(error) = self.watch.processes(&mut self.samples) {
            tracing::warn!(
                "cannot list processes: {error}; users who come now are not limited yet"
            );
            self.newcomers.next_look_ns = now_ns + LOOK_MS * NS_PER_MS;
            return;
        }
        let Newcomers { ordinary, seen_ns, .. } = &mut self.newcomers;
        // Of whom nothing is left but a namespace, that is its memory still.
        let users = self.samples.iter().flat_map(|sample| [sample.uid, sample.namespace_owner]);
        for user in users.filter(|user| ordinary.contains(user)) {
            seen_ns.insert(user, now_ns);
        }
        let uids: Vec<Uid> = self.newcomers.seen_ns.keys().copied().collect();
        for user in uids {
            let seen_ns = self.newcomers.seen_ns[&user];
            if seen_ns == now_ns {
                self.bring_in(user, limit);
            } else if now_ns - seen_ns >= FORGET_MS * NS_PER_MS {
                self.forget_user(user);
            }
        }
        let took_ns = monotonic_ns() - now_ns;
        let pause_ns = (LOOK_MS * NS_PER_MS).max(took_ns * CALM_SCAN_SHARE);
        self.newcomers.next_look_ns = now_ns + pause_ns;
    }

    fn bring_in(&mut self, user: Uid, limit: Limit) {
        let Some(change) = self.ledger.plan_default(user, limit) else { return };
        match self.put_into_force(change) {
            Ok(()) => drop(self.newcomers.refused.remove(&user)),
            Err(error) => {
                if self.newcomers.refused.insert(user) {
                    tracing::error!(%user, "an ordinary user has no limit: {error}");
                }
            }
        }
    }

    fn forget_user(&mut self, user: Uid) {
        self.newcomers.seen_ns.remove(&user);
        self.newcomers.refused.remove(&user);
        if let Some(change) = self.ledger.plan_forget(user)
            && let Err(error) = self.put_into_force(change)
        {
            tracing::warn!(%user, "the account of a user that is gone cannot be closed: {error}");
        }
    }
}
