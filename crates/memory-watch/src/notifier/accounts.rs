//! Access to the account table from user space: reads it, and finds errors that the programs cannot
//! find: accounts without an address space, and sums that differ from the total of their accounts.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use libbpf_rs::{Map, MapCore, MapFlags};
use zerocopy::FromBytes;

use super::wire::{Account, Slot};
use crate::error::NotifierError;
use crate::watch::Reconciled;

/// An account that no process uses is dropped after this long without a change. Address spaces that
/// are being freed (a large `exit`) have no process either, but they do change.
const STRAY_GRACE: Duration = Duration::from_secs(2);
/// A difference between a slot's sum and its accounts that is the same in this number of scans is
/// an error and not a snapshot taken during a change.
const RESIDUE_ROUNDS: u32 = 3;
const BATCH: u32 = 4096;

/// All accounts, by address of the mm.
pub fn read_all(accounts: &Map<'_>) -> Result<HashMap<u64, Account>, NotifierError> {
    let mut all = HashMap::new();
    let batches = accounts
        .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)
        .map_err(|e| NotifierError::bpf("read map accounts", e))?;
    for (key, value) in batches {
        if let (Ok(key), Ok(account)) =
            (<[u8; 8]>::try_from(key.as_slice()), Account::read_from_bytes(&value))
        {
            all.insert(u64::from_ne_bytes(key), account);
        }
    }
    Ok(all)
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
    /// long enough.
    pub fn sweep<'s>(
        &mut self,
        accounts: &Map<'_>,
        round: u32,
        slots: impl Iterator<Item = (u32, &'s Slot)>,
        result: &mut Reconciled,
    ) -> Result<(), NotifierError> {
        let slots: HashMap<u32, &Slot> = slots.collect();
        let all = read_all(accounts)?;
        let mut sums: HashMap<u32, i64> = HashMap::new();
        let mut unused = std::mem::take(&mut self.unused);
        for (mm, account) in &all {
            let counted = slots.get(&account.slot()).map(|slot| slot.counts()).unwrap_or_default();
            let charged = account.charged(counted);
            let stray = (account.round != round).then(|| match unused.remove(mm) {
                Some(stray) if stray.charged == charged => stray,
                _ => Stray { since: Instant::now(), charged },
            });
            match stray {
                Some(stray) if stray.since.elapsed() >= STRAY_GRACE => {
                    self.drop_account(accounts, *mm, &slots, result);
                    continue;
                }
                Some(stray) => {
                    self.unused.insert(*mm, stray);
                }
                None => (),
            }
            *sums.entry(account.slot()).or_default() += charged;
            result.accounts += 1;
        }
        for (index, slot) in slots {
            self.correct_sum(index, slot, sums.get(&index).copied().unwrap_or(0), result);
        }
        Ok(())
    }

    fn drop_account(
        &self,
        accounts: &Map<'_>,
        mm: u64,
        slots: &HashMap<u32, &Slot>,
        result: &mut Reconciled,
    ) {
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
        }
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
