//! What an account holds, and how large its processes are by that.

use memory_ledger::{AccountId, Count, Ledger, Uid};
use memory_watch::{Charge, NotifierError, ProcessSample};

use super::Killer;

/// What a process has by its account's count, bytes: in memory, and swapped.
pub(super) fn sizes(
    ledger: &Ledger,
    account: AccountId,
    sample: &ProcessSample,
    page_bytes: u64,
) -> (u64, u64) {
    let count = ledger.account(account).map(|account| account.limit().count());
    sizes_by(count.unwrap_or_default(), sample, page_bytes)
}

pub(super) fn sizes_by(count: Count, sample: &ProcessSample, page_bytes: u64) -> (u64, u64) {
    let swapped = Count { swap: true, ..Count::of([]) };
    let pages = |count: Count| sample.counted_pages(count);
    let swap_pages = if count.swap { pages(swapped) } else { 0 };
    (pages(Count { swap: false, ..count }) * page_bytes, swap_pages * page_bytes)
}

/// The account that a process is charged to, if there is one: that of whose namespace it is in before that of
/// its own uid.
pub(super) fn account_of(ledger: &Ledger, sample: &ProcessSample) -> AccountId {
    let account_of = |user: Uid| ledger.groups().account_of(user);
    let owners = account_of(sample.namespace_owner);
    if ledger.account(owners).is_some() { owners } else { account_of(sample.uid) }
}

impl Killer {
    /// The account that this process is charged to, if there is one.
    pub fn account_of_process(&self, process: &ProcessSample) -> AccountId {
        account_of(&self.ledger, process)
    }

    /// The watch knows who shares an account, and what of their memory it counts.
    pub(super) fn say_what_is_charged(
        &mut self,
        account: AccountId,
        count: Count,
    ) -> Result<(), NotifierError> {
        let charge = match self.ledger.groups().get(account) {
            Some(group) => Charge { uids: group.uids.clone(), count },
            None => Charge { count, ..Charge::of(account) },
        };
        self.watch.charge(account, charge)
    }

    /// The processes are as large as this counts, whatever their users' limits say: for the machine, or for a cgroup.
    pub(super) fn size_by(&mut self, count: Count) {
        let page_bytes = self.page_bytes;
        // One sample a process, in their order.
        for (process, sample) in self.processes.iter_mut().zip(&self.samples) {
            (process.rss_bytes, process.swap_bytes) = sizes_by(count, sample, page_bytes);
            process.grown_bytes = process.grown_bytes.min(process.charged_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::{Asker, Groups, Limit, Source};

    use super::*;

    #[test]
    fn a_process_in_a_namespace_is_charged_to_its_owner_if_that_has_a_limit() {
        let mut ledger = Ledger::default();
        ledger.set_groups(Groups::new([("students".to_owned(), vec![Uid(1001)])]));
        let group = ledger.groups().account_of(Uid(1001));
        let user = |uid| AccountId::User(Uid(uid));
        let limit = Limit::new(1 << 30, None).unwrap();
        for account in [user(1000), group] {
            ledger.apply(ledger.plan_set(account, limit, Source::Config, Asker::Root).unwrap());
        }
        let of = |uid, owner| {
            let (uid, namespace_owner) = (Uid(uid), Uid(owner));
            let sample = ProcessSample { uid, namespace_owner, ..ProcessSample::default() };
            account_of(&ledger, &sample)
        };
        assert_eq!((of(1000, 1000), of(100_005, 1000)), (user(1000), user(1000)));
        assert_eq!(of(100_005, 1001), group);
        assert_eq!(of(100_005, 1002), user(100_005), "its owner has none");
        assert_eq!(of(1000, 0), user(1000));
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
        let sizes = |names: &[&str]| sizes_by(Count::of(names.iter().copied()), &sample, 1);
        assert_eq!(sizes_by(Count::default(), &sample, 2), (42, 600));
        assert_eq!(sizes(&["anon", "file"]), (4001, 0));
        assert_eq!(sizes(&["swap"]), (0, 300));
    }
}
