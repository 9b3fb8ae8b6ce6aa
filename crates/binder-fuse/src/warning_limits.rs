//! Rate limit of warnings that a client can cause by opening a device again: a burst, then one a
//! minute per owner.

use std::time::Instant;

use owners::bounds::{WARNING_TOKENS, WARNINGS};
use owners::{Owner, TokenBuckets};

/// See the module's documentation.
pub(crate) struct WarningLimits {
    begun: Instant,
    buckets: TokenBuckets<Owner>,
}

impl WarningLimits {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), buckets: TokenBuckets::new(WARNINGS.of_an_owner()) }
    }

    /// Whether a warning about a client of this owner may be logged; charges it if so.
    pub(crate) fn admit(&mut self, owner: Owner) -> bool {
        let now_ns = self.begun.elapsed().as_nanos() as u64;
        if !self.buckets.is_ready(owner, now_ns) {
            return false;
        }
        self.buckets.charge(owner, now_ns, WARNING_TOKENS);
        true
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    #[test]
    fn warnings_of_one_owner_are_bounded_and_do_not_suppress_those_of_another() {
        let mut limits = WarningLimits::new();
        let [first, second] = [1, 2].map(|uid| Owner::User(Uid(uid)));
        assert_eq!((0..1000).filter(|_| limits.admit(first)).count(), 5);
        assert!(limits.admit(second));
    }
}
