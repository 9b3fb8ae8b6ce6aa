//! Taking over the accounts of a daemon that was killed.

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use libbpf_rs::MapCore;
use libbpf_rs::MapFlags;

use super::Notifier;
use super::map;
use super::wire;
use crate::error::NotifierError;
use crate::watch::Inherited;
use crate::watch::SlotLimit;
use crate::watch::Watch;

impl Notifier {
    /// Adopts the users in the maps, and puts our own program in place of the one that has kept their
    /// accounts. The error: what makes no sense in them.
    pub(super) fn take_over(&mut self) -> Result<(), String> {
        let text = |e: NotifierError| e.to_string();
        let users = self.users_in_maps().map_err(text)?;
        let (mut taken, mut unfinished) = (HashSet::new(), Vec::new());
        for (uid, index) in users {
            if index as usize >= wire::MAX_SLOTS || !taken.insert(index) {
                return Err(format!("uid {uid} is said to have slot {index}"));
            }
            let slots = map(&self.object, "slots").map_err(text)?;
            self.slots.reach(&slots, index as usize).map_err(text)?;
            let slot = self.slots.get(index as usize).ok_or("a slot is missing")?;
            let limit = SlotLimit {
                soft_pages: slot.soft_pages.load(Relaxed),
                hard_pages: slot.hard_pages.load(Relaxed),
            };
            let found = slot.uid.load(Relaxed);
            if found != uid {
                return Err(format!("the slot of uid {uid} is that of uid {found}"));
            }
            if limit.hard_pages == 0 || limit.soft_pages > limit.hard_pages {
                return Err(format!("uid {uid} has the limits {limit:?}"));
            }
            // Those who were promised memory say so again.
            slot.exact.store(0, Relaxed);
            self.index_of.insert(uid, index);
            if limit.hard_pages < i64::MAX as u64 {
                let memo = slot.memo.load(Relaxed);
                self.inherited.push(Inherited { uid, limit, memo });
            } else {
                unfinished.push(uid);
            }
        }
        // The daemon died while it set these.
        for uid in unfinished {
            self.remove_user(uid).map_err(text)?;
        }
        self.inherited.sort_unstable_by_key(|inherited| inherited.uid);
        if self.index_of.is_empty() {
            self.detach();
            return Ok(());
        }
        self.attach().map_err(text)?;
        self.reconcile().map(drop).map_err(text)
    }

    fn users_in_maps(&self) -> Result<Vec<(u32, u32)>, NotifierError> {
        let slot_of_uid = map(&self.object, "slot_of_uid")?;
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
        let mut users = Vec::new();
        for key in slot_of_uid.keys() {
            let index = slot_of_uid
                .lookup(&key, MapFlags::ANY)
                .map_err(|e| NotifierError::bpf("read map slot_of_uid", e))?;
            let index = index.and_then(|index| number(&index));
            users.extend(number(&key).zip(index));
        }
        Ok(users)
    }
}
