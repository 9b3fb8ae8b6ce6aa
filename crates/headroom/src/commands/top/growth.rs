//! Growth of each user's memory between snapshots.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use control::oomd::AccountRef;

use super::snapshot::Snapshot;

/// Period over which growth is averaged: shorter ones make it fluctuate, longer ones delay it.
const WINDOW: Duration = Duration::from_secs(5);
/// Forecasts beyond this are not shown, seconds.
const FAR: u64 = 24 * 3600;

/// Usage in the last snapshots.
#[derive(Debug, Default)]
pub struct Growth {
    seen: HashMap<AccountRef, VecDeque<(Instant, u64)>>,
}

impl Growth {
    /// Adds a snapshot. Users that are missing in it are removed.
    pub fn look(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at;
        self.seen
            .retain(|account, _| snapshot.limits.iter().any(|limit| limit.account == *account));
        for limit in &snapshot.limits {
            let seen = self.seen.entry(limit.account).or_default();
            seen.push_back((at, limit.used_bytes));
            // One sample that is older than the window stays, so that the window is covered
            // completely.
            while seen.get(1).is_some_and(|(then, _)| at.duration_since(*then) >= WINDOW) {
                seen.pop_front();
            }
        }
    }

    /// Growth, bytes per second; `None` before the second snapshot.
    pub fn of(&self, account: AccountRef) -> Option<i64> {
        let seen = self.seen.get(&account)?;
        let (first, last) = (seen.front()?, seen.back()?);
        let micros = i128::try_from(last.0.duration_since(first.0).as_micros()).ok()?;
        let grown = i128::from(last.1) - i128::from(first.1);
        i64::try_from((grown * 1_000_000).checked_div(micros)?).ok()
    }
}

/// Seconds until `left` bytes are used up at this rate; `None`: it shrinks, or that is far away.
pub fn forecast(left: u64, bytes_per_s: i64) -> Option<u64> {
    let rate = u64::try_from(bytes_per_s).ok()?;
    left.checked_div(rate).filter(|seconds| *seconds <= FAR)
}

#[cfg(test)]
mod tests {
    use control::Uid;

    use super::super::view::tests::snapshot;
    use super::*;

    #[test]
    fn growth_is_an_average_over_the_last_seconds() {
        let of_user = |growth: &Growth, uid| growth.of(AccountRef::user(Uid(uid)));
        let mut growth = Growth::default();
        let start = Instant::now();
        assert_eq!(of_user(&growth, 7), None);
        for second in 0..10u64 {
            let mut seen = snapshot(&[(7, 100 + second * second, 1000)]);
            seen.at = start + Duration::from_secs(second);
            growth.look(&seen);
        }
        assert_eq!(of_user(&growth, 7), Some((81 - 16) / 5));
        growth.look(&snapshot(&[(8, 1, 2)]));
        assert_eq!((of_user(&growth, 7), of_user(&growth, 8)), (None, None));
    }

    #[test]
    fn only_growing_users_have_a_forecast() {
        assert_eq!(forecast(100, 10), Some(10));
        assert_eq!(forecast(100, 0), None);
        assert_eq!(forecast(100, -10), None);
        assert_eq!(forecast(u64::MAX, 1), None);
        assert_eq!(forecast(0, 1), Some(0));
    }
}
