//! The account that a process is charged to, and the size of a process as that account counts it.

use memory_ledger::{AccountId, Count, Ledger, Uid};
use memory_watch::ProcessSample;

/// The memory of a process of the kinds that its account counts, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rss_bytes: u64,
    pub(super) swap_bytes: u64,
}

/// The memory of a process of these kinds.
pub(super) fn size_by(count: Count, sample: &ProcessSample, page_bytes: u64) -> Size {
    let swapped = Count { swap: true, ..Count::of([]) };
    let swap_pages = if count.swap { sample.counted_pages(swapped) } else { 0 };
    let rss_pages = sample.counted_pages(Count { swap: false, ..count });
    Size { rss_bytes: rss_pages * page_bytes, swap_bytes: swap_pages * page_bytes }
}

/// The account that a process is charged to, which may have no limit: the account of the owner of
/// its user namespace, if that is limited, otherwise that of its own uid.
pub(super) fn account_of(ledger: &Ledger, sample: &ProcessSample) -> AccountId {
    let account_of = |uid: Uid| ledger.groups().account_of(uid);
    let owners = account_of(sample.namespace_owner);
    if ledger.account(owners).is_some() { owners } else { account_of(sample.uid) }
}

#[cfg(test)]
mod tests {
    use memory_ledger::{Groups, Limit, Requester, Source};

    use super::*;

    #[test]
    fn a_process_in_a_namespace_is_charged_to_its_owner_if_that_has_a_limit() {
        let mut ledger = Ledger::default();
        ledger.set_groups(Groups::new([("students".to_owned(), vec![Uid(1001)])]));
        let user = AccountId::User(Uid(1000));
        let group = ledger.groups().account_of(Uid(1001));
        let limit = Limit::new(1 << 30, None).unwrap();
        for account in [user, group] {
            ledger.apply(ledger.plan_set(account, limit, Source::Config, Requester::Root).unwrap());
        }
        let of = |uid, namespace_owner| {
            let (uid, namespace_owner) = (Uid(uid), Uid(namespace_owner));
            let sample = ProcessSample { uid, namespace_owner, ..ProcessSample::default() };
            account_of(&ledger, &sample)
        };
        assert_eq!((of(1000, 1000), of(100_005, 1000)), (user, user));
        assert_eq!(of(100_005, 1001), group);
        assert_eq!(of(100_005, 1002), AccountId::User(Uid(100_005)), "its owner has none");
        assert_eq!(of(1000, 0), user);
    }

    #[test]
    fn a_process_is_as_large_as_its_limit_counts() {
        let sample = ProcessSample {
            anon_pages: 1,
            shmem_pages: 20,
            swap_pages: 300,
            file_pages: 4000,
            ..ProcessSample::default()
        };
        let size = |count, page_bytes| {
            let Size { rss_bytes, swap_bytes } = size_by(count, &sample, page_bytes);
            (rss_bytes, swap_bytes)
        };
        let of = |names: &[&str]| size(Count::of(names.iter().copied()), 1);
        assert_eq!(size(Count::default(), 2), (42, 600));
        assert_eq!(of(&["anon", "file"]), (4001, 0));
        assert_eq!(of(&["swap"]), (0, 300));
    }
}
