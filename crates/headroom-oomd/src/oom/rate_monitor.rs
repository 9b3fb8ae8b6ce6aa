//! Counts decisions to kill, and logs when they are too many.

use std::collections::BTreeSet;

use control::oomd::Trigger;
use memory_ledger::{AccountId, KillRate, PressureTrigger, RateLimit, Sake};

use crate::clock::monotonic_ns;

/// Decisions of late, by what they were for.
#[derive(Default)]
pub(super) struct RateMonitor {
    rate: KillRate,
    /// Those that exceed the limit: logged once until it is over.
    too_many: BTreeSet<Sake>,
}

impl RateMonitor {
    /// Another limit from now on.
    pub(super) fn set_limit(&mut self, limit: RateLimit) {
        self.rate.set_limit(limit);
    }

    /// Counts a decision. Text for the record if that was one too many.
    pub(super) fn count(&mut self, trigger: Trigger, account: AccountId) -> String {
        let system = trigger.is_of_the_machine();
        let sake = if system { Sake::Machine } else { Sake::Account(account) };
        if !self.rate.note(sake, monotonic_ns()) {
            self.too_many.remove(&sake);
            return String::new();
        }
        let RateLimit { most, within_ms } = self.rate.limit();
        if self.too_many.insert(sake) && !system {
            tracing::warn!(
                %account,
                "more than {most} victims within {within_ms} ms: the limit is enforced all the \
                 same; does something start them again and again?"
            );
        }
        format!("; more than {most} victims within {within_ms} ms")
    }

    /// So many were killed for the system that one more is no help, and it can still do without.
    pub(super) fn should_wait(&mut self, trigger: &PressureTrigger) -> bool {
        let spent = self.rate.is_spent(Sake::Machine, monotonic_ns());
        if !spent {
            self.too_many.remove(&Sake::Machine);
        }
        if !spent || !trigger.pressure.can_wait() {
            return false;
        }
        if self.too_many.insert(Sake::Machine) {
            let RateLimit { most, within_ms } = self.rate.limit();
            tracing::warn!(
                "{trigger}, and {most} victims within {within_ms} ms have not helped: only the \
                 hard level and the forecast kill until it is over; does something start them \
                 again and again?"
            );
        }
        true
    }
}
