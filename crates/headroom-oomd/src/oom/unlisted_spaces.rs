//! Address spaces of accounts that no process has: those of forks in progress, and those that a
//! system call of another process uses after their processes have exited.

use std::collections::BTreeMap;

use memory_ledger::AccountId;
use memory_watch::{SpaceState, UnlistedSpace};

use crate::clock::NS_PER_MS;

/// An address space that is used and does not grow notably for this long belongs to no fork in
/// progress: it is kept, milliseconds. The measurement and the kill follow within the second for
/// which an account may exceed its limit.
const KEPT_MS: u64 = 400;
/// Growth by this fraction is notable. A system call can add single pages to an address space that
/// it keeps; a fork copies faster.
const NOTABLE_SHARE: u64 = 8;

/// Memory of an account's address spaces that no process has, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnlistedPages {
    /// Address spaces that are kept: their memory is in use, and cannot be shared by a fork in
    /// progress.
    pub(super) kept: u64,
    /// All others that are used.
    pub(super) recent: u64,
    /// Shared memory of those that are not kept: used ones, and ones that the kernel is freeing.
    pub(super) shmem: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    pages: u64,
    /// Since when it has about this size, nanoseconds.
    since_ns: u64,
}

impl Seen {
    fn has_grown_to(&self, pages: u64) -> bool {
        pages > self.pages + self.pages / NOTABLE_SHARE
    }
}

/// The address spaces of accounts on which a kill depends.
#[derive(Debug, Default)]
pub(super) struct UnlistedSpaces {
    by_account: BTreeMap<AccountId, BTreeMap<u64, Seen>>,
}

impl UnlistedSpaces {
    /// Replaces the address spaces of an account.
    pub(super) fn replace(
        &mut self,
        account: AccountId,
        spaces: &[UnlistedSpace],
        now_ns: u64,
    ) -> UnlistedPages {
        let before = self.by_account.remove(&account).unwrap_or_default();
        let (mut now, mut unlisted) = (BTreeMap::new(), UnlistedPages::default());
        for space in spaces {
            let pages = space.pages;
            if space.state == SpaceState::Freed {
                unlisted.shmem += space.shmem_pages;
                continue;
            }
            let known = before.get(&space.mm_id).filter(|seen| !seen.has_grown_to(pages));
            let seen = known.copied().unwrap_or(Seen { pages, since_ns: now_ns });
            if now_ns - seen.since_ns >= KEPT_MS * NS_PER_MS {
                unlisted.kept += pages;
            } else {
                unlisted.recent += pages;
                unlisted.shmem += space.shmem_pages;
            }
            now.insert(space.mm_id, seen);
        }
        if !now.is_empty() {
            self.by_account.insert(account, now);
        }
        unlisted
    }

    /// Drops the state of an account.
    pub(super) fn forget(&mut self, account: AccountId) {
        self.by_account.remove(&account);
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::Uid;

    use super::*;

    const ACCOUNT: AccountId = AccountId::User(Uid(1000));

    #[test]
    fn an_address_space_is_kept_if_it_is_used_and_does_not_grow() {
        let mut spaces = UnlistedSpaces::default();
        let mut look = |ms: u64, sizes: &[(u64, u64)], state| {
            let space = |(mm_id, pages): &(u64, u64)| UnlistedSpace {
                mm_id: *mm_id,
                pages: *pages,
                shmem_pages: *pages,
                state,
            };
            let list: Vec<UnlistedSpace> = sizes.iter().map(space).collect();
            let UnlistedPages { kept, recent, shmem } =
                spaces.replace(ACCOUNT, &list, ms * NS_PER_MS);
            (kept, recent, shmem)
        };
        assert_eq!(look(0, &[(1, 10), (2, 20)], SpaceState::Used), (0, 30, 30));
        assert_eq!(look(200, &[(1, 10), (2, 25)], SpaceState::Used), (0, 35, 35), "a fork grows");
        assert_eq!(look(400, &[(1, 10), (2, 25)], SpaceState::Used), (10, 25, 25));
        assert_eq!(look(500, &[(1, 11), (2, 26)], SpaceState::Used), (11, 26, 26), "single pages");
        assert_eq!(look(600, &[(1, 10), (2, 25)], SpaceState::Freed), (0, 0, 35));
        assert_eq!(look(800, &[(1, 10), (2, 25)], SpaceState::Used), (0, 35, 35), "others by now");
    }
}
