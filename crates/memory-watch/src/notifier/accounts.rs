//! Access to the account table from user space: reads it, and finds errors that the programs cannot
//! find: accounts without an address space, and sums that differ from the total of their accounts.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use libbpf_rs::{Map, MapCore, MapFlags};
use zerocopy::FromBytes;

use super::wire::{Account, Slot};
use crate::NotifierError;
use crate::watch::Reconciled;

/// An account of an address space without users is dropped after this long without a change. One
/// that is being freed (a large `exit`) has none either, but it does change.
const STRAY_GRACE: Duration = Duration::from_secs(2);
/// A difference between a slot's sum and its accounts that is the same in this number of scans is
/// an error and not a snapshot taken during a change.
const RESIDUE_ROUNDS: u32 = 3;
/// Maximum number of accounts that are read at a time; far above the number in one bucket.
const BATCH: usize = 1024;

/// All accounts, by address of the mm.
///
/// Not by libbpf-rs: its iterator ends at the first batch that is not full, and a batch of a hash
/// table ends before a bucket that does not fit.
pub fn read_all(accounts: &Map<'_>) -> Result<HashMap<u64, Account>, NotifierError> {
    let mut all = HashMap::new();
    let mut keys = vec![0_u64; BATCH];
    let mut values = vec![Account::default(); BATCH];
    let mut position = 0_u32;
    let mut from = std::ptr::null_mut();
    loop {
        let mut count = BATCH as u32;
        // SAFETY: `keys` and `values` have room for `count` elements of the map's sizes, which
        // `require_size` has compared; `position` is the batch position of a hash table, a u32.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                accounts.as_fd().as_raw_fd(),
                from,
                (&raw mut position).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut count,
                std::ptr::null(),
            )
        };
        if result != 0 && result != -libc::ENOENT {
            let error = std::io::Error::from_raw_os_error(-result);
            return Err(NotifierError::os("read map accounts", error));
        }
        let read = keys.iter().copied().zip(values.iter().copied());
        all.extend(read.take(count as usize));
        // The end of the table, with its last accounts.
        if result != 0 {
            return Ok(all);
        }
        from = (&raw mut position).cast();
    }
}

/// Checks that the map has elements of type [`Account`].
pub fn require_size(accounts: &Map<'_>) -> Result<(), NotifierError> {
    let bytes = accounts.value_size() as usize;
    if bytes == size_of::<Account>() {
        return Ok(());
    }
    let expected = size_of::<Account>();
    let text = format!("map accounts has elements of {bytes} bytes, expected {expected}");
    Err(NotifierError::Unsupported(text))
}

/// One address space's account, if it has one.
pub fn read(accounts: &Map<'_>, mm: u64) -> Result<Option<Account>, NotifierError> {
    let value = accounts
        .lookup(&mm.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| NotifierError::bpf("read map accounts", e))?;
    Ok(value.and_then(|value| Account::read_from_bytes(&value).ok()))
}

/// Deletes all accounts of a slot, which is not written any more.
pub fn remove_slot(accounts: &Map<'_>, slot: u32) -> Result<(), NotifierError> {
    for (mm, account) in read_all(accounts)? {
        if account.slot() == slot {
            // Deleted already if its process has just exited.
            let _ = accounts.delete(&mm.to_ne_bytes());
        }
    }
    Ok(())
}

struct Stray {
    since: Instant,
    charged: i64,
}

/// Inconsistencies that earlier scans found.
#[derive(Default)]
pub struct Strays {
    unused: HashMap<u64, Stray>,
    residue: HashMap<u32, (i64, u32)>,
}

impl Strays {
    /// Checks all accounts after scan number `round` and corrects inconsistencies that have lasted
    /// long enough. `used_spaces` lists the address spaces that have users.
    pub fn sweep<'s>(
        &mut self,
        accounts: &Map<'_>,
        round: u32,
        slots: impl Iterator<Item = (u32, &'s Slot)>,
        used_spaces: impl FnOnce() -> Result<HashSet<u64>, NotifierError>,
    ) -> Result<Reconciled, NotifierError> {
        let mut result = Reconciled::default();
        let slots: HashMap<u32, &Slot> = slots.collect();
        let mut all = read_all(accounts)?;
        let charged = |account: &Account| {
            let counted = slots.get(&account.slot()).map(|slot| slot.counts()).unwrap_or_default();
            account.charged(counted)
        };
        let mut unused = std::mem::take(&mut self.unused);
        for (mm, account) in all.iter().filter(|(_, account)| account.round != round) {
            let charged = charged(account);
            let stray = match unused.remove(mm) {
                Some(stray) if stray.charged == charged => stray,
                _ => Stray { since: Instant::now(), charged },
            };
            self.unused.insert(*mm, stray);
        }
        let overdue = |stray: &Stray| stray.since.elapsed() >= STRAY_GRACE;
        if self.unused.values().any(overdue) {
            let used = used_spaces()?;
            let gone = |mm: &u64, stray: &mut Stray| overdue(stray) && !used.contains(mm);
            for (mm, _) in self.unused.extract_if(gone) {
                drop_account(accounts, mm, &slots, &mut result);
                all.remove(&mm);
            }
        }
        let mut sums: HashMap<u32, i64> = HashMap::new();
        for account in all.values() {
            *sums.entry(account.slot()).or_default() += charged(account);
        }
        result.accounts = all.len() as u64;
        for (index, slot) in slots {
            self.correct_sum(index, slot, sums.get(&index).copied().unwrap_or(0), &mut result);
        }
        Ok(result)
    }

    fn correct_sum(&mut self, index: u32, slot: &Slot, sum: i64, result: &mut Reconciled) {
        let difference = slot.pages.load(Relaxed) - sum;
        if difference == 0 {
            self.residue.remove(&index);
            return;
        }
        let (last, rounds) = self.residue.entry(index).or_insert((difference, 0));
        if *last != difference {
            (*last, *rounds) = (difference, 0);
        }
        *rounds += 1;
        if *rounds >= RESIDUE_ROUNDS {
            self.residue.remove(&index);
            slot.pages.fetch_sub(difference, Relaxed);
            result.drift_pages += difference.unsigned_abs();
        }
    }
}

fn drop_account(accounts: &Map<'_>, mm: u64, slots: &HashMap<u32, &Slot>, result: &mut Reconciled) {
    let Ok(Some(last)) = accounts.lookup_and_delete(&mm.to_ne_bytes()) else { return };
    let Ok(last) = Account::read_from_bytes(&last) else { return };
    result.dropped += 1;
    if let Some(slot) = slots.get(&last.slot()) {
        let charged = last.charged(slot.counts());
        result.drift_pages += charged.unsigned_abs();
        slot.pages.fetch_sub(charged, Relaxed);
        if slot.victim_mm.compare_exchange(mm, 0, Relaxed, Relaxed).is_ok() {
            slot.dying_pages.store(0, Relaxed);
        }
        if slot.largest_mm.compare_exchange(mm, 0, Relaxed, Relaxed).is_ok() {
            slot.largest_score.store(0, Relaxed);
        }
    }
}
