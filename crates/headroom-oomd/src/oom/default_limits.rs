//! Detects ordinary users without a limit of their own: they get the default limit when their
//! first process is seen, and lose it when the last one has been gone for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use memory_ledger::{Change, Limit, Uid};
use memory_watch::NotifierError;

use super::scan_timer::CALM_SCAN_SHARE;
use super::shared_state::SharedState;
use crate::clock::{NS_PER_MS, monotonic_ns};

/// How often new users are looked for, milliseconds. A look at a thousand processes takes 0.2 ms;
/// with very many less often, as for calm scans.
const LOOK_MS: u64 = 100;
/// A user without a process keeps its account for so long, milliseconds: jobs come and go.
const FORGET_MS: u64 = 60_000;

/// The detector of ordinary users.
pub(super) struct DefaultLimits {
    ordinary: RangeInclusive<Uid>,
    /// `None`: ordinary users have no limit by default.
    limit: Option<Limit>,
    /// When a process of a user was last seen, nanoseconds.
    seen_ns: BTreeMap<Uid, u64>,
    /// Users whose limit could not be set: logged once.
    refused: BTreeSet<Uid>,
    next_look_ns: u64,
}

impl DefaultLimits {
    pub(super) fn new(ordinary: RangeInclusive<Uid>) -> Self {
        let (seen_ns, refused) = (BTreeMap::new(), BTreeSet::new());
        Self { ordinary, limit: None, seen_ns, refused, next_look_ns: 0 }
    }

    /// The limit of every ordinary user without one of its own.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// Another limit from now on; a look is due at once.
    pub(super) fn set_limit(&mut self, limit: Option<Limit>) {
        self.limit = limit;
        self.refused.clear();
        self.next_look_ns = 0;
    }

    /// When a look is due, nanoseconds.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.limit.map(|_| self.next_look_ns)
    }

    /// What does not work, a sentence; `None`: everything does.
    pub(super) fn degraded(&self) -> Option<String> {
        let uids: Vec<String> = self.refused.iter().map(Uid::to_string).collect();
        let message =
            || format!("these ordinary users have no limit, see the log: {}", uids.join(", "));
        (!uids.is_empty()).then(message)
    }

    /// The changes of limits that are due, if a look is.
    pub(super) fn due_changes(&mut self, state: &mut SharedState) -> Vec<Change> {
        let now_ns = monotonic_ns();
        let Some(limit) = self.limit.filter(|_| now_ns >= self.next_look_ns) else {
            return Vec::new();
        };
        let samples = match state.snapshot.list(state.accounts.watch()) {
            Ok(samples) => samples,
            Err(error) => {
                tracing::warn!("cannot list processes: {error}; new users are not limited yet");
                self.next_look_ns = now_ns + LOOK_MS * NS_PER_MS;
                return Vec::new();
            }
        };
        // A namespace can outlive its owner's last process, and its memory is the owner's.
        let users = samples.iter().flat_map(|sample| [sample.uid, sample.namespace_owner]);
        for uid in users.filter(|uid| self.ordinary.contains(uid)) {
            self.seen_ns.insert(uid, now_ns);
        }
        let ledger = state.accounts.ledger();
        let mut changes = Vec::new();
        let refused = &mut self.refused;
        self.seen_ns.retain(|uid, seen_ns| {
            let present = now_ns - *seen_ns < FORGET_MS * NS_PER_MS;
            if *seen_ns == now_ns {
                changes.extend(ledger.plan_default(*uid, limit));
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

    /// Whether a change could be put into force.
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
