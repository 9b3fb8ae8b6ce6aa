//! Adds and removes accounts, changes their users, and takes over the accounts of a daemon that was
//! killed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::{Map, MapCore, MapFlags};
use memory_ledger::{AccountId, Count, Uid};

use super::wire::{self, Slot};
use super::{Notifier, accounts, map, wait_for_running_programs};
use crate::NotifierError;
use crate::watch::{Charge, Inherited, SlotLimit, Watch};

impl Notifier {
    fn charge_of(&self, account: AccountId) -> Charge {
        self.charges.get(&account).cloned().unwrap_or_else(|| Charge::of(account))
    }

    /// Allocates a slot for the account and publishes it to the programs.
    pub(super) fn add_user(&mut self, account: AccountId) -> Result<(), NotifierError> {
        let slots = map(&self.object, "slots")?;
        let index = self.slots.allocate(&slots)?.ok_or_else(|| NotifierError::TooManyLimits {
            account,
            slots: slots.max_entries() * wire::CHUNK_SLOTS,
        })?;
        self.slots.clear(index);
        let Charge { uids, count } = self.charge_of(account);
        if let Some(slot) = self.slots.get(index) {
            slot.key.store(wire::key_of_account(account), Relaxed);
            slot.index.store(index, Relaxed);
            slot.counted.store(wire::bits_of_count(count), Relaxed);
            // Until the actual limits follow, no limit can be exceeded.
            slot.soft_pages.store(i64::MAX as u64, Relaxed);
            slot.hard_pages.store(i64::MAX as u64, Relaxed);
        }
        self.index_of.insert(account, index);
        let published = self.publish(index, &uids);
        if published.is_err() {
            let _ = self.remove_user(account);
        }
        published
    }

    /// Charges these users' processes to the slot from now on.
    fn publish(&self, index: u32, uids: &[Uid]) -> Result<(), NotifierError> {
        let slot_of_uid = map(&self.object, "slot_of_uid")?;
        let filter = self.limited_uids.get(0);
        for uid in uids {
            if let Some(filter) = filter {
                filter.add(*uid);
            }
            slot_of_uid.update(&uid.0.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY).map_err(
                |e| {
                    let room = slot_of_uid.max_entries();
                    NotifierError::bpf(
                        format!(
                            "add uid {uid} to map slot_of_uid, which has room for {room} users"
                        ),
                        e,
                    )
                },
            )?;
        }
        Ok(())
    }

    /// Stops charging these users' processes to the slot; they may be charged to another one.
    fn withdraw(&self, index: u32, uids: impl Iterator<Item = Uid>) -> Result<(), NotifierError> {
        let slot_of_uid = map(&self.object, "slot_of_uid")?;
        for uid in uids {
            if slot_of(&slot_of_uid, uid)? == Some(index) {
                slot_of_uid.delete(&uid.0.to_ne_bytes()).map_err(|e| {
                    NotifierError::bpf(format!("take uid {uid} from map slot_of_uid"), e)
                })?;
            }
        }
        Ok(())
    }

    /// Frees the slot of an account. Its charge is kept.
    pub(super) fn remove_user(&mut self, account: AccountId) -> Result<(), NotifierError> {
        let Some(index) = self.index_of.remove(&account) else { return Ok(()) };
        if self.index_of.is_empty() {
            self.detach();
        }
        self.withdraw(index, self.charge_of(account).uids.into_iter())?;
        // A program that looked the user up a moment ago may still be running; when this returns,
        // none is.
        wait_for_running_programs();
        accounts::remove_slot(&map(&self.object, "accounts")?, index)?;
        self.slots.release(index);
        Ok(())
    }

    /// Changes the users or the kinds of memory of an account.
    pub(super) fn change_charge(
        &mut self,
        account: AccountId,
        mut charge: Charge,
    ) -> Result<(), NotifierError> {
        charge.uids.sort_unstable();
        charge.uids.dedup();
        let before = self.charge_of(account);
        // A user is charged to one account: to the latest one.
        for (_, other) in self.charges.iter_mut().filter(|(other, _)| **other != account) {
            other.uids.retain(|uid| charge.uids.binary_search(uid).is_err());
        }
        let Some(index) = self.index_of.get(&account).copied() else {
            self.charges.insert(account, charge);
            return Ok(());
        };
        if before == charge {
            return Ok(());
        }
        if before.count != charge.count {
            return self.begin_anew(account, charge);
        }
        self.publish(index, &charge.uids)?;
        let gone = before.uids.into_iter().filter(|uid| !charge.uids.contains(uid));
        self.withdraw(index, gone)?;
        self.charges.insert(account, charge);
        wait_for_running_programs();
        // Moves charges to their new accounts.
        self.reconcile().map(|_| ())
    }

    /// Recreates an account with the same limits and nothing charged.
    fn begin_anew(&mut self, account: AccountId, charge: Charge) -> Result<(), NotifierError> {
        let kept = |slot: &Slot| {
            let fields = [&slot.soft_pages, &slot.hard_pages, &slot.clear_pages, &slot.memo];
            let flags = [&slot.spare_unarmed, &slot.exact];
            (fields.map(|field| field.load(Relaxed)), flags.map(|flag| flag.load(Relaxed)))
        };
        let Some((fields, flags)) = self.slot(account).map(kept) else { return Ok(()) };
        self.remove_user(account)?;
        self.charges.insert(account, charge);
        self.attach()?;
        self.add_user(account)?;
        if let Some(slot) = self.slot(account) {
            let [soft_pages, hard_pages, clear_pages, memo] = fields;
            let [spare_unarmed, exact] = flags;
            slot.spare_unarmed.store(spare_unarmed, Relaxed);
            slot.exact.store(exact, Relaxed);
            slot.memo.store(memo, Relaxed);
            slot.clear_pages.store(clear_pages, Relaxed);
            slot.hard_pages.store(hard_pages, Relaxed);
            slot.soft_pages.store(soft_pages, Relaxed);
        }
        self.reconcile().map(|_| ())
    }

    /// Sets the charge of a slot that was taken over.
    fn adopt_charge(&mut self, account: AccountId, mut uids: Vec<Uid>, count: Count) {
        uids.sort_unstable();
        self.charges.insert(account, Charge { uids, count });
    }
}

/// The index of a user's slot.
fn slot_of(slot_of_uid: &Map<'_>, uid: Uid) -> Result<Option<u32>, NotifierError> {
    let index = slot_of_uid
        .lookup(&uid.0.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| NotifierError::bpf("read map slot_of_uid", e))?;
    Ok(index.and_then(|index| index.try_into().ok()).map(u32::from_ne_bytes))
}

impl Notifier {
    /// Adopts the accounts in the maps, and replaces the program that has updated them by that of
    /// this daemon. The error describes inconsistent map contents.
    pub(super) fn take_over(&mut self) -> Result<(), String> {
        let text = |e: NotifierError| e.to_string();
        let mut uids_of: BTreeMap<u32, Vec<Uid>> = BTreeMap::new();
        for (uid, index) in self.users_in_maps().map_err(text)? {
            uids_of.entry(index).or_default().push(uid);
        }
        let mut unfinished = Vec::new();
        for (index, uids) in uids_of {
            let slots = map(&self.object, "slots").map_err(text)?;
            if !self.slots.adopt(&slots, index).map_err(text)? {
                return Err(format!("uids {uids:?} share slot {index}"));
            }
            let slot = self.slots.get(index).ok_or("a slot is missing")?;
            let limit = SlotLimit {
                soft_pages: slot.soft_pages.load(Relaxed),
                hard_pages: slot.hard_pages.load(Relaxed),
            };
            let account = slot.account();
            if slot.index.load(Relaxed) != index {
                return Err(format!("slot {index} takes itself for another"));
            }
            // A user's account has exactly this user; a cgroup has no account in the maps.
            let wrong = match account {
                AccountId::User(uid) => uids != [uid],
                AccountId::Group(_) => false,
                AccountId::Cgroup(_) => true,
            };
            if wrong || slot.counts() == Count::of([]) {
                return Err(format!("the slot of {account} is that of uids {uids:?}"));
            }
            if limit.hard_pages == 0 || limit.soft_pages > limit.hard_pages {
                return Err(format!("{account} has the limits {limit:?}"));
            }
            if self.index_of.insert(account, index).is_some() {
                return Err(format!("{account} has two slots"));
            }
            // Clients with leases register again and set this.
            slot.exact.store(0, Relaxed);
            let (memo, count) = (slot.memo.load(Relaxed), slot.counts());
            self.adopt_charge(account, uids, count);
            if limit.hard_pages < i64::MAX as u64 {
                self.inherited.push(Inherited { account, limit, count, memo });
            } else {
                unfinished.push(account);
            }
        }
        // The previous daemon was killed before it had set the limits of these.
        for account in unfinished {
            self.remove_user(account).map_err(text)?;
        }
        self.inherited.sort_unstable_by_key(|inherited| inherited.account);
        if self.index_of.is_empty() {
            self.detach();
            return Ok(());
        }
        self.attach().map_err(text)?;
        self.reconcile().map(drop).map_err(text)
    }

    fn users_in_maps(&self) -> Result<Vec<(Uid, u32)>, NotifierError> {
        let slot_of_uid = map(&self.object, "slot_of_uid")?;
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
        let mut users = Vec::new();
        for key in slot_of_uid.keys() {
            let Some(uid) = number(&key).map(Uid) else { continue };
            users.extend(slot_of(&slot_of_uid, uid)?.map(|index| (uid, index)));
        }
        Ok(users)
    }
}
