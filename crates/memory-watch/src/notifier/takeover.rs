//! Takes over the accounts of a daemon that was killed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::MapCore;
use memory_ledger::{AccountId, Count, Uid};

use super::Notifier;
use super::map;
use super::users::slot_of;
use crate::error::NotifierError;
use crate::watch::{Inherited, SlotLimit, Watch};

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
