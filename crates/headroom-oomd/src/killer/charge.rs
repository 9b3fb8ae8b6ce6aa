//! What an account holds, and how large its processes are by that.

use memory_ledger::{Count, Ledger};
use memory_watch::{Charge, Counted, NotifierError, ProcessSample};

use super::Killer;

/// As the watch says it.
fn counted(count: Count) -> Counted {
    let kinds = [
        (count.anon, Counted::ANON),
        (count.shmem, Counted::SHMEM),
        (count.swap, Counted::SWAP),
        (count.file, Counted::FILE),
    ];
    let wanted = kinds.into_iter().filter(|(counts, _)| *counts).map(|(_, kind)| kind);
    wanted.fold(Counted::NONE, Counted::and)
}

/// As the ledger says it.
pub(super) fn count(counted: Counted) -> Count {
    Count {
        anon: counted.contains(Counted::ANON),
        shmem: counted.contains(Counted::SHMEM),
        swap: counted.contains(Counted::SWAP),
        file: counted.contains(Counted::FILE),
    }
}

/// What a process has by its account's count, bytes: in memory, and swapped.
pub(super) fn sizes(
    ledger: &Ledger,
    account: u32,
    sample: &ProcessSample,
    page_bytes: u64,
) -> (u64, u64) {
    let count = ledger.account(account).map(|account| account.limit().count());
    sizes_by(count.unwrap_or_default(), sample, page_bytes)
}

pub(super) fn sizes_by(count: Count, sample: &ProcessSample, page_bytes: u64) -> (u64, u64) {
    let swapped = Count { swap: true, ..Count::of([]) };
    let pages = |count: Count| sample.counted_pages(counted(count));
    let swap_pages = if count.swap { pages(swapped) } else { 0 };
    (pages(Count { swap: false, ..count }) * page_bytes, swap_pages * page_bytes)
}

/// The number of the account that a process is charged to, if there is one: that of whose namespace it is in before that of
/// its own uid.
pub(super) fn account_of(ledger: &Ledger, sample: &ProcessSample) -> u32 {
    let account_of = |uid: u32| ledger.groups().account_of(uid);
    let owners = account_of(sample.namespace_owner);
    if ledger.account(owners).is_some() { owners } else { account_of(sample.uid) }
}

impl Killer {
    /// The number of the account that this process is charged to, if there is one.
    pub fn account_of_process(&self, process: &ProcessSample) -> u32 {
        account_of(&self.ledger, process)
    }

    /// The watch knows who shares an account, and what of their memory it counts.
    pub(super) fn say_what_is_charged(
        &mut self,
        account: u32,
        count: Count,
    ) -> Result<(), NotifierError> {
        let charge = match self.ledger.groups().get(account) {
            Some(group) => Charge { uids: group.uids.clone(), counted: counted(count) },
            None => Charge { counted: counted(count), ..Charge::of_user(account) },
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
        ledger.set_groups(Groups::new([("students".to_owned(), vec![1001])]));
        let group = ledger.groups().account_of(1001);
        let limit = Limit::new(1 << 30, None).unwrap();
        for account in [1000, group] {
            ledger.apply(ledger.plan_set(account, limit, Source::Config, Asker::Root).unwrap());
        }
        let of = |uid, namespace_owner| {
            let sample = ProcessSample { uid, namespace_owner, ..ProcessSample::default() };
            account_of(&ledger, &sample)
        };
        assert_eq!((of(1000, 1000), of(100_005, 1000)), (1000, 1000));
        assert_eq!(of(100_005, 1001), group);
        assert_eq!(of(100_005, 1002), 100_005, "its owner has none");
        assert_eq!(of(1000, 0), 1000);
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
        for names in [&Count::NAMES[..], &["file"], &["anon", "swap"]] {
            let count_of = Count::of(names.iter().copied());
            assert_eq!(count(counted(count_of)), count_of);
        }
    }
}
