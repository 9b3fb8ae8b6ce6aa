//! Limits of the kernel's memory controller behind a user's limit, for memory that the accounts do
//! not contain and for the time without a daemon.

use crate::account_id::{AccountId, Uid};
use crate::limit::Limit;

/// The controller's limit is above the user's by this part of it, so that the daemon acts first.
const MARGIN_SHARE: u64 = 16;
/// Page cache and other memory of the kernel that the user may have besides, bytes: the controller
/// charges them, and a user's limit does not.
const PAGE_CACHE_BYTES: u64 = 256 << 20;

/// `memory.max` and `memory.swap.max` of a user's slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backstop {
    /// Memory, page cache included, bytes.
    pub memory_max_bytes: u64,
    /// Swap, bytes.
    pub swap_max_bytes: u64,
}

impl Backstop {
    /// The backstop of a user's limit.
    pub fn of(limit: Limit) -> Self {
        let hard_bytes = limit.hard_bytes();
        let with_margin = hard_bytes.saturating_add(hard_bytes / MARGIN_SHARE);
        Self {
            memory_max_bytes: with_margin.saturating_add(PAGE_CACHE_BYTES),
            swap_max_bytes: with_margin,
        }
    }
}

/// The user whose slice has the backstop of an account: groups and cgroups have no slice of a
/// user's, and root's slice contains what an administrator needs in a shortage.
pub fn user_of(account: AccountId) -> Option<Uid> {
    account.user().filter(|uid| *uid != Uid::ROOT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account_id::GroupId;

    #[test]
    fn a_backstop_is_a_sixteenth_and_the_page_cache_above_the_limit() {
        let limit = Limit::new(1600 << 20, None).unwrap();
        let backstop = Backstop::of(limit);
        assert_eq!(backstop.memory_max_bytes, (1600 + 100 + 256) << 20);
        assert_eq!(backstop.swap_max_bytes, (1600 + 100) << 20);
    }

    #[test]
    fn only_single_users_other_than_root_have_one() {
        let group = AccountId::Group(GroupId::new(3).unwrap());
        assert_eq!(user_of(AccountId::User(Uid(1000))), Some(Uid(1000)));
        assert_eq!(user_of(AccountId::User(Uid::ROOT)), None);
        assert_eq!(user_of(group), None);
    }
}
