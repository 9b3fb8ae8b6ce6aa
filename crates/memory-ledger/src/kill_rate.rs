//! Rate of recent kills. A process that is killed repeatedly is started repeatedly: a service that
//! is restarted, a build that goes on. Another kill does not help, so kills that can wait are
//! delayed; limits are still enforced, and so are the hard level and the forecast of the machine.

use std::collections::{BTreeMap, VecDeque};

use crate::NS_PER_MS;
use crate::account::AccountId;

/// Maximum rate of kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Number of decisions to kill (a herd is one) ...
    pub most: u32,
    /// ... within this window, milliseconds; 0: no maximum.
    pub within_ms: u64,
}

impl Default for RateLimit {
    /// One kill in two seconds for a minute. A user with one faulty program is far below that, and
    /// so is a machine under memory pressure: a victim's memory is awaited before the next kill.
    fn default() -> Self {
        Self { most: 30, within_ms: 60_000 }
    }
}

/// Purpose of a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sake {
    /// The machine's free memory.
    Machine,
    /// An account's limit.
    Account(AccountId),
}

/// Times of the decisions that are within the window.
#[derive(Clone, Debug, Default)]
pub struct KillRate {
    limit: RateLimit,
    /// Nanoseconds, the oldest first; at most [`RateLimit::most`] and one more for each purpose.
    times: BTreeMap<Sake, VecDeque<u64>>,
}

impl KillRate {
    /// Changes the maximum; past decisions are kept.
    pub fn set_limit(&mut self, limit: RateLimit) {
        self.limit = limit;
    }

    /// The maximum in force.
    pub fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Records a kill. Returns whether the maximum is exceeded.
    pub fn note(&mut self, sake: Sake, now_ns: u64) -> bool {
        self.forget_old(now_ns);
        if self.limit.within_ms == 0 {
            return false;
        }
        let most = self.limit.most as usize;
        let times = self.times.entry(sake).or_default();
        times.push_back(now_ns);
        let exceeded = times.len() > most;
        // Only whether the maximum is exceeded matters: older decisions need not be kept.
        while times.len() > most + 1 {
            times.pop_front();
        }
        exceeded
    }

    /// The maximum is reached: kills that can wait should be delayed.
    pub fn is_spent(&self, sake: Sake, now_ns: u64) -> bool {
        let counts = |at: &&u64| now_ns.saturating_sub(**at) < self.window_ns();
        let of_late = self.times.get(&sake).map_or(0, |times| times.iter().filter(counts).count());
        self.limit.within_ms > 0 && of_late >= self.limit.most as usize
    }

    fn window_ns(&self) -> u64 {
        self.limit.within_ms.saturating_mul(NS_PER_MS)
    }

    fn forget_old(&mut self, now_ns: u64) {
        let window_ns = self.window_ns();
        self.times.retain(|_, times| {
            times.retain(|at| now_ns.saturating_sub(*at) < window_ns);
            !times.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Uid;

    const S: u64 = 1_000_000_000;
    const BOB: Sake = Sake::Account(AccountId::User(Uid(1001)));
    const CAROL: Sake = Sake::Account(AccountId::User(Uid(1002)));
    const ALICE: Sake = Sake::Account(AccountId::User(Uid(1000)));

    fn rate(most: u32, within_ms: u64) -> KillRate {
        let mut rate = KillRate::default();
        let limit = RateLimit { most, within_ms };
        rate.set_limit(limit);
        assert_eq!(rate.limit(), limit);
        rate
    }

    #[test]
    fn one_more_than_allowed_is_too_many() {
        let mut rate = rate(3, 10_000);
        let exceeded: Vec<bool> = (0..5).map(|at| rate.note(ALICE, at * S)).collect();
        assert_eq!(exceeded, [false, false, false, true, true]);
    }

    #[test]
    fn old_decisions_do_not_count() {
        let mut rate = rate(2, 10_000);
        assert!(!rate.note(ALICE, 0) && !rate.note(ALICE, S));
        assert!(rate.is_spent(ALICE, 9 * S), "two within ten seconds");
        assert!(!rate.is_spent(ALICE, 10 * S), "the first was ten seconds ago");
        assert!(!rate.note(ALICE, 10 * S));
        assert!(rate.note(ALICE, 10 * S));
    }

    #[test]
    fn a_rate_that_goes_on_is_exceeded_until_it_falls() {
        let mut rate = rate(2, 10_000);
        for at in 0..1000 {
            assert_eq!(rate.note(ALICE, at * S), at >= 2, "second {at}");
        }
        assert!(rate.is_spent(ALICE, 1000 * S) && !rate.is_spent(ALICE, 1010 * S));
    }

    #[test]
    fn users_and_the_machine_are_counted_separately() {
        let mut rate = rate(1, 10_000);
        assert!(!rate.note(ALICE, S) && !rate.note(BOB, S));
        assert!(!rate.note(Sake::Machine, S));
        assert!(rate.is_spent(ALICE, S) && rate.is_spent(Sake::Machine, S));
        assert!(!rate.is_spent(CAROL, S));
    }

    #[test]
    fn without_a_window_or_a_maximum_the_rate_is_unlimited() {
        let mut any = rate(0, 0);
        assert!((0..100).all(|_| !any.note(ALICE, S)) && !any.is_spent(ALICE, S));
        let mut none = rate(0, 1_000);
        assert!(none.is_spent(ALICE, S) && none.note(ALICE, S));
    }

    #[test]
    fn the_history_is_bounded() {
        let mut rate = rate(5, 1_000_000);
        for at in 0..10_000 {
            rate.note(ALICE, at);
        }
        assert_eq!(rate.times[&ALICE].len(), 6);
        rate.note(Sake::Machine, 2_000 * S);
        assert!(!rate.times.contains_key(&ALICE));
    }
}
