//! Death notifications, freezing and freeze notifications; the notifications that a process was
//! sent and has not acknowledged.

pub mod death;
pub mod freeze;
pub mod freeze_notification;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The notifications by cookie. An acknowledgement names the cookie alone, which several may share:
/// it is that of the oldest delivery.
#[derive(Debug)]
pub struct Delivered<Id> {
    /// By cookie and number of the delivery.
    by_cookie: BTreeMap<(u64, u64), Id>,
    places: BTreeMap<Id, (u64, u64)>,
    next_number: u64,
}

impl<Id: Copy + Ord> Delivered<Id> {
    /// Adds a notification that was sent now.
    pub fn insert(&mut self, cookie: u64, id: Id) {
        self.remove(id);
        let place = (cookie, self.next_number);
        self.next_number += 1;
        self.by_cookie.insert(place, id);
        self.places.insert(id, place);
    }

    /// Removes the oldest one with this cookie.
    pub fn acknowledge(&mut self, cookie: u64) -> Option<Id> {
        let (_, &id) = self.by_cookie.range((cookie, 0)..=(cookie, u64::MAX)).next()?;
        self.remove(id);
        Some(id)
    }

    /// Removes one that may be absent.
    pub fn remove(&mut self, id: Id) {
        if let Some(place) = self.places.remove(&id) {
            self.by_cookie.remove(&place);
        }
    }

    /// Any of them.
    pub fn first(&self) -> Option<Id> {
        self.by_cookie.values().next().copied()
    }

    /// Whether it is one of them, with this cookie.
    pub fn contains(&self, cookie: u64, id: Id) -> bool {
        self.places.get(&id).is_some_and(|&(own, _)| own == cookie)
    }

    /// All of them.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        self.by_cookie.values().copied()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl<Id> Default for Delivered<Id> {
    fn default() -> Self {
        Self { by_cookie: BTreeMap::new(), places: BTreeMap::new(), next_number: 0 }
    }
}

/// Cookies and ids, those with the same cookie in the order of their delivery.
impl<Id: Serialize> Serialize for Delivered<Id> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.by_cookie.iter().map(|(&(cookie, _), id)| (cookie, id)))
    }
}

impl<'de, Id: Deserialize<'de> + Copy + Ord> Deserialize<'de> for Delivered<Id> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut delivered = Self::default();
        for (cookie, id) in Vec::<(u64, Id)>::deserialize(deserializer)? {
            delivered.insert(cookie, id);
        }
        Ok(delivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_that_of_the_oldest_delivery_also_after_a_restore() {
        let mut delivered = Delivered::default();
        for (cookie, id) in [(7, 3u32), (7, 1), (6, 0), (7, 2)] {
            delivered.insert(cookie, id);
        }
        delivered.insert(7, 3);
        let state = postcard::to_stdvec(&delivered).unwrap();
        let mut restored: Delivered<u32> = postcard::from_bytes(&state).unwrap();
        for delivered in [&mut delivered, &mut restored] {
            delivered.remove(2);
            assert!(delivered.contains(7, 3) && !delivered.contains(6, 3));
            let all: Vec<_> = (0..3).map(|_| delivered.acknowledge(7)).collect();
            assert_eq!(all, [Some(1), Some(3), None]);
            assert_eq!((delivered.first(), delivered.acknowledge(6)), (Some(0), Some(0)));
            assert!(delivered.is_empty());
        }
    }
}
