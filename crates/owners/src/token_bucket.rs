//! A bounded rate: tokens come at a steady rate, up to a bound, and each piece of work takes some.

use std::collections::BTreeMap;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Rate at which tokens are added, and the bound on saved tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that are added per second; at least 1.
    pub per_second: u64,
    /// Maximum number of tokens in a bucket; at least 1.
    pub burst: u64,
}

/// A bucket of tokens. It starts full.
///
/// Work whose cost is known only afterwards is admitted by [`is_ready`](Self::is_ready) and paid
/// for with [`charge`](Self::charge), which may leave a debt: the next work waits until that is
/// paid off.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate: Rate,
    /// Negative: a debt.
    tokens: i64,
    /// Time for which `tokens` is valid, nanoseconds. Not later than the last refill: the time that
    /// has earned part of a token still counts.
    at_ns: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, now_ns: u64) -> Self {
        let rate = Rate { per_second: rate.per_second.max(1), burst: rate.burst.max(1) };
        Self { rate, tokens: signed(rate.burst), at_ns: now_ns }
    }

    fn refill(&mut self, now_ns: u64) {
        let elapsed_ns = u128::from(now_ns.saturating_sub(self.at_ns));
        let new = elapsed_ns * u128::from(self.rate.per_second) / NS_PER_SECOND;
        let missing = u128::from(signed(self.rate.burst).abs_diff(self.tokens));
        if new >= missing {
            self.tokens = signed(self.rate.burst);
            self.at_ns = self.at_ns.max(now_ns);
        } else {
            // Less than `missing`, which fits in a u64, and less than `elapsed_ns` after `at_ns`.
            self.tokens = self.tokens.saturating_add(signed(new as u64));
            self.at_ns += (new * NS_PER_SECOND).div_ceil(u128::from(self.rate.per_second)) as u64;
        }
    }

    /// Returns whether there is at least one token.
    pub fn is_ready(&mut self, now_ns: u64) -> bool {
        self.refill(now_ns);
        self.tokens > 0
    }

    /// Number of tokens; 0 in debt.
    pub fn tokens(&mut self, now_ns: u64) -> u64 {
        self.refill(now_ns);
        u64::try_from(self.tokens).unwrap_or(0)
    }

    /// Number of tokens; negative for a debt.
    fn balance(mut self, now_ns: u64) -> i64 {
        self.refill(now_ns);
        self.tokens
    }

    /// Returns whether the bucket holds `burst` tokens, like a bucket that was never used.
    pub fn is_full(&mut self, now_ns: u64) -> bool {
        self.refill(now_ns);
        self.tokens == signed(self.rate.burst)
    }

    /// Takes the tokens for work that was done; the balance may become negative.
    pub fn charge(&mut self, now_ns: u64, tokens: u64) {
        self.refill(now_ns);
        self.tokens = self.tokens.saturating_sub(signed(tokens));
    }

    /// Takes the tokens for work that is to be done. `Err`: there are too few and none was taken;
    /// the value is the time at which there are enough, provided that `tokens` is within the burst.
    pub fn take(&mut self, now_ns: u64, tokens: u64) -> Result<(), u64> {
        self.refill(now_ns);
        if self.tokens >= signed(tokens) {
            self.tokens -= signed(tokens);
            return Ok(());
        }
        Err(self.holds_at_ns(tokens))
    }

    /// Time at which there is a token again, nanoseconds; in the past if there is one.
    pub fn ready_at_ns(&self) -> u64 {
        self.holds_at_ns(1)
    }

    fn holds_at_ns(&self, tokens: u64) -> u64 {
        let missing = i128::from(signed(tokens)) - i128::from(self.tokens);
        let missing = u128::try_from(missing).unwrap_or(0);
        let wait_ns = (missing * NS_PER_SECOND).div_ceil(u128::from(self.rate.per_second));
        self.at_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX))
    }
}

/// Tokens as a balance that can be negative.
fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// Number of buckets up to which full ones are kept.
const PRUNED_ABOVE: usize = 256;

/// One bucket per key, all with the same rate. Full buckets are dropped, so memory is bounded by
/// the keys that were charged within the time in which a bucket fills.
#[derive(Clone, Debug)]
pub struct TokenBuckets<K> {
    rate: Rate,
    used: BTreeMap<K, TokenBucket>,
    /// Number of buckets at which full ones are dropped: twice the number that remained the last
    /// time, so that the cost of a charge is constant on average.
    prune_at: usize,
}

impl<K: Copy + Ord> TokenBuckets<K> {
    /// All full.
    pub fn new(rate: Rate) -> Self {
        Self { rate, used: BTreeMap::new(), prune_at: PRUNED_ABOVE }
    }

    /// Returns whether the key has a token.
    pub fn is_ready(&mut self, key: K, now_ns: u64) -> bool {
        self.used.get_mut(&key).is_none_or(|bucket| bucket.is_ready(now_ns))
    }

    /// Number of tokens that the key has; 0 in debt.
    pub fn tokens(&mut self, key: K, now_ns: u64) -> u64 {
        let burst = self.rate.burst;
        let Some(bucket) = self.used.get_mut(&key) else { return burst };
        let tokens = bucket.tokens(now_ns);
        if tokens == burst {
            self.used.remove(&key);
        }
        tokens
    }

    /// Returns whether no bucket is kept: all are full.
    pub fn is_unused(&self) -> bool {
        self.used.is_empty()
    }

    /// Takes the tokens for work that was done for the key; the balance may become negative.
    pub fn charge(&mut self, key: K, now_ns: u64, tokens: u64) {
        let rate = self.rate;
        let bucket = self.used.entry(key).or_insert_with(|| TokenBucket::new(rate, now_ns));
        bucket.charge(now_ns, tokens);
        if self.used.len() > self.prune_at {
            self.used.retain(|_, bucket| !bucket.is_full(now_ns));
            self.prune_at = PRUNED_ABOVE.max(2 * self.used.len());
        }
    }

    /// Takes a token of the key; false if it has none.
    pub fn take(&mut self, key: K, now_ns: u64) -> bool {
        let is_ready = self.is_ready(key, now_ns);
        if is_ready {
            self.charge(key, now_ns, 1);
        }
        is_ready
    }

    /// The balances of the keys whose buckets are not full: negative for a debt.
    pub fn balances(&self, now_ns: u64) -> BTreeMap<K, i64> {
        let used = self.used.iter().map(|(key, bucket)| (*key, bucket.balance(now_ns)));
        used.filter(|(_, tokens)| *tokens < signed(self.rate.burst)).collect()
    }

    /// Replaces all buckets by those with these balances, up to the burst.
    pub fn restore(&mut self, balances: BTreeMap<K, i64>, now_ns: u64) {
        let rate = self.rate;
        let bucket = |tokens| TokenBucket { tokens, ..TokenBucket::new(rate, now_ns) };
        let used = balances.into_iter().filter(|(_, tokens)| *tokens < signed(rate.burst));
        self.used = used.map(|(key, tokens)| (key, bucket(tokens))).collect();
    }

    /// Time at which the key has a token again, nanoseconds; `None` if no bucket is kept for the
    /// key, which then has a token.
    pub fn ready_at_ns(&self, key: K) -> Option<u64> {
        self.used.get(&key).map(TokenBucket::ready_at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const RATE: Rate = Rate { per_second: 10, burst: 3 };

    #[test]
    fn a_burst_is_served_at_once_and_the_rest_at_the_rate() {
        let mut bucket = TokenBucket::new(RATE, 0);
        assert_eq!([(); 4].map(|()| bucket.take(0, 1)), [Ok(()), Ok(()), Ok(()), Err(SECOND / 10)]);
        assert_eq!(bucket.take(SECOND / 10 - 1, 1), Err(SECOND / 10));
        assert_eq!(bucket.take(SECOND / 10, 1), Ok(()));
        // Tokens are saved up to the burst, and no further.
        assert_eq!(bucket.take(100 * SECOND, 3), Ok(()));
        assert!(bucket.take(100 * SECOND, 1).is_err());
    }

    #[test]
    fn the_time_of_a_part_of_a_token_is_not_lost() {
        let mut bucket = TokenBucket::new(RATE, 0);
        bucket.take(0, 3).unwrap();
        // 30 ms apart, each less than a token's 100 ms.
        let taken = (1..=100).filter(|i| bucket.take(i * 30_000_000, 1).is_ok()).count();
        assert_eq!(taken, 30);
    }

    #[test]
    fn a_debt_is_paid_off_first() {
        let mut bucket = TokenBucket::new(RATE, 0);
        assert!(bucket.is_ready(0));
        bucket.charge(0, 13);
        assert!(!bucket.is_ready(SECOND));
        assert_eq!(bucket.ready_at_ns(), SECOND + SECOND / 10);
        assert!(bucket.is_ready(bucket.ready_at_ns()));
    }

    #[test]
    fn a_clock_that_goes_back_adds_no_tokens() {
        let mut bucket = TokenBucket::new(RATE, 10 * SECOND);
        bucket.take(10 * SECOND, 3).unwrap();
        assert!(!bucket.is_ready(0));
        assert!(bucket.is_ready(11 * SECOND));
    }

    #[test]
    fn full_buckets_are_dropped() {
        let mut buckets = TokenBuckets::new(RATE);
        assert!(buckets.is_unused());
        for key in 0..1000 {
            assert_eq!((buckets.is_ready(key, 0), buckets.tokens(key, 0)), (true, 3));
            buckets.charge(key, 0, 5);
            assert_eq!((buckets.is_ready(key, 0), buckets.tokens(key, 0)), (false, 0));
        }
        assert_eq!(buckets.ready_at_ns(7), Some(3 * SECOND / 10));
        assert_eq!(buckets.ready_at_ns(7777), None);
        assert_eq!(buckets.used.len(), 1000, "none of them is full");
        (1000..1100).for_each(|key| buckets.charge(key, SECOND, 5));
        assert!(buckets.used.len() <= 100, "{}", buckets.used.len());
        assert!(!buckets.is_ready(1099, SECOND) && !buckets.is_unused());
    }

    #[test]
    fn full_buckets_are_dropped_when_there_are_twice_as_many_as_were_left() {
        let mut buckets = TokenBuckets::new(RATE);
        let mut charge = |keys: std::ops::Range<u32>, now_ns| {
            keys.for_each(|key| buckets.charge(key, now_ns, 1));
            buckets.used.len()
        };
        assert_eq!([charge(0..255, 0), charge(255..256, SECOND)], [255, 256]);
        assert_eq!(charge(256..257, SECOND), 2, "the 255 were full");
        // None of these is full when their number passes 256, so the next limit is 514.
        assert_eq!([charge(1000..1255, SECOND), charge(2000..2257, 2 * SECOND)], [257, 514]);
        assert_eq!(charge(3000..3001, 2 * SECOND), 258, "the 256 before them were full");
    }

    #[test]
    fn each_key_takes_one_token_at_a_time() {
        let mut buckets = TokenBuckets::new(RATE);
        assert_eq!([(); 5].map(|()| buckets.take('a', 0)), [true, true, true, false, false]);
        assert_eq!((buckets.take('b', 0), buckets.tokens('b', 0)), (true, 2));
        assert_eq!([(); 2].map(|()| buckets.take('a', SECOND / 10)), [true, false]);
    }

    #[test]
    fn balances_continue_in_other_buckets_with_another_clock() {
        let mut buckets = TokenBuckets::new(RATE);
        buckets.charge('d', 0, 5);
        buckets.charge('t', 0, 2);
        buckets.charge('f', 0, 1);
        let balances = buckets.balances(SECOND / 10);
        assert_eq!(balances, BTreeMap::from([('d', -1), ('t', 2)]), "one is full again");
        let mut others = TokenBuckets::new(RATE);
        others.restore(balances.into_iter().chain([('o', 4)]).collect(), 50 * SECOND);
        assert_eq!(others.ready_at_ns('d'), Some(50 * SECOND + SECOND / 5));
        assert_eq!(others.tokens('t', 50 * SECOND), 2);
        assert_eq!(others.tokens('o', 50 * SECOND), 3, "no more than the burst");
        others.restore(BTreeMap::from([('o', 4), ('u', 3)]), 50 * SECOND);
        assert!(others.is_unused(), "full buckets are not kept");
    }

    /// A bucket without rounding: what it holds in units of a token divided by 10^9, and its time.
    #[derive(Clone, Copy)]
    struct Exact {
        rate: Rate,
        units: i128,
        at_ns: u64,
    }

    impl Exact {
        fn refill(&mut self, now_ns: u64) {
            let elapsed_ns = now_ns.saturating_sub(self.at_ns);
            let earned = i128::from(elapsed_ns) * i128::from(self.rate.per_second);
            self.units = (self.units + earned).min(i128::from(self.rate.burst) * UNITS);
            self.at_ns = self.at_ns.max(now_ns);
        }
    }

    const UNITS: i128 = NS_PER_SECOND as i128;

    /// Each call at each time, then all sequences of `depth` further ones. `lag_ns`: time that the
    /// roundings of the earlier calls may have cost; none at a rate that divides 10^9.
    fn explore((exact, bucket): (Exact, TokenBucket), lag_ns: i128, depth: u32) -> u64 {
        let per_second = exact.rate.per_second;
        let token_ns = SECOND.div_ceil(per_second);
        let lag_ns = lag_ns + i128::from(!SECOND.is_multiple_of(per_second));
        let lag = lag_ns * i128::from(per_second);
        let now = exact.at_ns;
        let times = [now - 1, now, now + token_ns - 1, now + token_ns, now + 2 * token_ns];
        let mut explored = 1;
        for now_ns in times {
            for take in [true, false] {
                for tokens in [1, 2] {
                    let (mut exact, mut bucket) = (exact, bucket);
                    exact.refill(now_ns);
                    let price = i128::from(tokens) * UNITS;
                    if take {
                        match bucket.take(now_ns, tokens) {
                            Ok(()) => {
                                assert!(exact.units >= price, "more than the rate");
                                exact.units -= price;
                            }
                            Err(at_ns) => {
                                assert!(exact.units - lag < price, "less than the rate");
                                assert!(bucket.balance(at_ns - 1) < signed(tokens));
                                let enough = tokens <= exact.rate.burst;
                                assert_eq!(bucket.balance(at_ns) >= signed(tokens), enough);
                            }
                        }
                    } else {
                        bucket.charge(now_ns, tokens);
                        exact.units -= price;
                    }
                    let (units, held) = (exact.units, bucket.balance(now_ns));
                    assert!(i128::from(held) <= units.div_euclid(UNITS));
                    assert!(i128::from(held) >= (units - lag).div_euclid(UNITS));
                    assert_eq!(bucket.is_ready(now_ns), held > 0);
                    assert_eq!(i128::from(bucket.tokens(now_ns)), i128::from(held.max(0)));
                    assert_eq!(bucket.is_full(now_ns), held == signed(exact.rate.burst));
                    if depth > 1 {
                        explored += explore((exact, bucket), lag_ns, depth - 1);
                    }
                }
            }
        }
        explored
    }

    #[test]
    fn all_short_sequences_agree_with_a_bucket_without_rounding() {
        for per_second in [1, 3, 1000, 700_000_000, SECOND, 3 * SECOND] {
            for burst in [1, 2] {
                let rate = Rate { per_second, burst };
                let exact = Exact { rate, units: i128::from(burst) * UNITS, at_ns: SECOND };
                let bucket = TokenBucket::new(rate, SECOND);
                assert_eq!(explore((exact, bucket), 0, 4), 1 + 20 + 400 + 8000);
            }
        }
    }

    #[test]
    fn rates_and_prices_at_the_ends_of_their_range_do_not_overflow() {
        let rate = Rate { per_second: u64::MAX, burst: u64::MAX };
        let mut bucket = TokenBucket::new(rate, 0);
        bucket.charge(0, u64::MAX);
        bucket.charge(0, u64::MAX);
        assert!(!bucket.is_ready(0));
        assert!(bucket.is_ready(u64::MAX));
        let mut bucket = TokenBucket::new(Rate { per_second: 0, burst: 0 }, 0);
        assert_eq!(bucket.take(0, 1), Ok(()));
        bucket.charge(0, u64::MAX);
        assert!(!bucket.is_ready(u64::MAX));
    }
}
