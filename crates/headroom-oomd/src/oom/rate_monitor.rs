//! Counts decisions to kill, and logs when the rate is too high.

use std::collections::BTreeSet;

use control::oomd::Trigger;
use headroom_linux::clock::monotonic_ns;
use memory_ledger::{AccountId, KillRate, PressureTrigger, RateLimit, Sake};

/// Recent decisions, by the account or system for which they were made.
#[derive(Default)]
pub(super) struct RateMonitor {
    rate: KillRate,
    /// Accounts that exceed the rate limit; logged once until the rate has dropped.
    too_many: BTreeSet<Sake>,
}

impl RateMonitor {
    /// Sets the rate limit.
    pub(super) fn set_limit(&mut self, limit: RateLimit) {
        self.rate.set_limit(limit);
    }

    /// Counts a decision. Returns a note for its record if the rate limit is exceeded.
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

    /// Whether a kill for the system should wait: the rate limit is used up without relief, and the
    /// pressure does not require a kill yet.
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
