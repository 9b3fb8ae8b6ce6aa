//! A slab: objects of one kind by a key of an index and a generation. The key of a removed object
//! returns no entry, even after another object has taken its index.
//!
//! A slab that is serialised and read back behaves exactly like the original: each object keeps its
//! key, and later objects get the same keys, because the order of the free indices is part of the
//! serialised form.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use crate::key_types;
#[doc(hidden)]
pub use serde;

/// Index and generation of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RawKey {
    index: u32,
    /// Odd; not zero, so that an `Option` of a key is no larger than the key.
    generation: NonZeroU32,
}

impl RawKey {
    /// The key of no object.
    pub const NULL: Self = Self { index: u32::MAX, generation: NonZeroU32::MIN };

    fn new(index: u32, generation: u32) -> Self {
        Self { index, generation: NonZeroU32::MIN | generation }
    }

    fn index(self) -> u32 {
        self.index
    }

    fn generation(self) -> u32 {
        self.generation.get()
    }
}

/// A key of a slab, made by [`key_types!`](crate::key_types).
pub trait Key: Copy + Eq + Ord + Hash + Debug + Default {
    /// The key of no object.
    const NULL: Self;

    /// A key with this index and generation.
    fn from_raw(raw: RawKey) -> Self;

    /// Index and generation.
    fn raw(self) -> RawKey;

    /// Whether this is the key of no object.
    fn is_null(self) -> bool {
        self == Self::NULL
    }

    /// The key as a number.
    fn number(self) -> u64 {
        let raw = self.raw();
        u64::from(raw.generation()) << 32 | u64::from(raw.index())
    }

    /// The key with this [`number`](Self::number); the null key if no key has it.
    fn from_number(number: u64) -> Self {
        match (number >> 32) as u32 {
            generation if generation % 2 == 1 => {
                Self::from_raw(RawKey::new(number as u32, generation))
            }
            _ => Self::NULL,
        }
    }
}

/// Declares types of keys; the default of each is the null key.
#[macro_export]
macro_rules! key_types {
    ($($(#[$outer:meta])* $visibility:vis struct $name:ident;)*) => {$(
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility struct $name($crate::slab::RawKey);

        impl $crate::slab::Key for $name {
            const NULL: Self = Self($crate::slab::RawKey::NULL);

            #[inline]
            fn from_raw(raw: $crate::slab::RawKey) -> Self {
                Self(raw)
            }

            #[inline]
            fn raw(self) -> $crate::slab::RawKey {
                self.0
            }
        }

        impl ::std::default::Default for $name {
            fn default() -> Self {
                <Self as $crate::slab::Key>::NULL
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let number = $crate::slab::Key::number(*self);
                write!(f, "{}({}v{})", stringify!($name), number as u32, number >> 32)
            }
        }

        impl $crate::slab::serde::Serialize for $name {
            fn serialize<S: $crate::slab::serde::Serializer>(
                &self,
                serializer: S,
            ) -> ::std::result::Result<S::Ok, S::Error> {
                $crate::slab::serde::Serialize::serialize(&self.0, serializer)
            }
        }

        impl<'de> $crate::slab::serde::Deserialize<'de> for $name {
            fn deserialize<D: $crate::slab::serde::Deserializer<'de>>(
                deserializer: D,
            ) -> ::std::result::Result<Self, D::Error> {
                $crate::slab::serde::Deserialize::deserialize(deserializer).map(Self)
            }
        }
    )*};
}

/// Index that no object has: the end of the list of free indices.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
enum Content<V> {
    Occupied(V),
    /// The next free index.
    Vacant(u32),
}

#[derive(Clone, Debug)]
struct Slot<V> {
    /// Incremented by each insertion and each removal: odd while the slot is occupied.
    generation: u32,
    content: Content<V>,
}

/// Objects of type `V` with keys of type `K`.
#[derive(Clone, Debug)]
pub struct Slab<K, V> {
    slots: Vec<Slot<V>>,
    /// The index of the next object; the list continues in the vacant slots.
    first_free: u32,
    len: usize,
    key: PhantomData<fn(K) -> K>,
}

impl<K, V> Default for Slab<K, V> {
    fn default() -> Self {
        Self { slots: Vec::new(), first_free: NONE, len: 0, key: PhantomData }
    }
}

impl<K: Key, V> Slab<K, V> {
    /// Number of objects.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an object.
    ///
    /// # Panics
    ///
    /// With 2^32 - 1 objects, far more than memory has room for.
    pub fn insert(&mut self, value: V) -> K {
        self.len += 1;
        let index = self.first_free;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.generation = slot.generation.wrapping_add(1);
            if let Content::Vacant(next) =
                std::mem::replace(&mut slot.content, Content::Occupied(value))
            {
                self.first_free = next;
            }
            return K::from_raw(RawKey::new(index, slot.generation));
        }
        let index = u32::try_from(self.slots.len()).ok().filter(|&index| index != NONE);
        let index = index.expect("2^32 objects do not fit in memory");
        self.slots.push(Slot { generation: 1, content: Content::Occupied(value) });
        K::from_raw(RawKey::new(index, 1))
    }

    /// Removes an object. `None`: the key is stale.
    pub fn remove(&mut self, key: K) -> Option<V> {
        let raw = key.raw();
        let slot = self.slots.get_mut(raw.index() as usize)?;
        if slot.generation != raw.generation() {
            return None;
        }
        slot.generation = slot.generation.wrapping_add(1);
        let content = std::mem::replace(&mut slot.content, Content::Vacant(self.first_free));
        self.first_free = raw.index();
        self.len -= 1;
        match content {
            Content::Occupied(value) => Some(value),
            Content::Vacant(_) => None,
        }
    }

    /// The object. `None`: the key is stale.
    #[inline]
    pub fn get(&self, key: K) -> Option<&V> {
        let raw = key.raw();
        match self.slots.get(raw.index() as usize) {
            Some(Slot { generation, content: Content::Occupied(value) })
                if *generation == raw.generation() =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// The object, for changes. `None`: the key is stale.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let raw = key.raw();
        match self.slots.get_mut(raw.index() as usize) {
            Some(Slot { generation, content: Content::Occupied(value) })
                if *generation == raw.generation() =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// Whether the key is that of an object.
    pub fn contains_key(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// All objects with their keys, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| match &slot.content {
            Content::Occupied(value) => {
                Some((K::from_raw(RawKey::new(index, slot.generation)), value))
            }
            Content::Vacant(_) => None,
        })
    }

    /// All objects with their keys, for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        (0..).zip(&mut self.slots).filter_map(|(index, slot)| match &mut slot.content {
            Content::Occupied(value) => {
                Some((K::from_raw(RawKey::new(index, slot.generation)), value))
            }
            Content::Vacant(_) => None,
        })
    }

    /// The keys of all objects.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// All objects, for changes.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// A slab of objects that are made from those of this one, and have their keys.
    pub fn map<W>(&self, mut make: impl FnMut(&V) -> W) -> Slab<K, W> {
        let content = |content: &Content<V>| match content {
            Content::Occupied(value) => Content::Occupied(make(value)),
            Content::Vacant(next) => Content::Vacant(*next),
        };
        let generations = self.slots.iter().map(|slot| slot.generation);
        let contents = self.slots.iter().map(|slot| &slot.content).map(content);
        let slots = generations.zip(contents);
        let slots = slots.map(|(generation, content)| Slot { generation, content }).collect();
        Slab { slots, first_free: self.first_free, len: self.len, key: PhantomData }
    }

    /// Like [`map`](Self::map), with objects that may fail to be made.
    pub fn try_into_map<W, E>(
        self,
        mut make: impl FnMut(V) -> Result<W, E>,
    ) -> Result<Slab<K, W>, E> {
        let slot = |slot: Slot<V>| {
            let content = match slot.content {
                Content::Occupied(value) => Content::Occupied(make(value)?),
                Content::Vacant(next) => Content::Vacant(next),
            };
            Ok(Slot { generation: slot.generation, content })
        };
        let slots = self.slots.into_iter().map(slot).collect::<Result<_, E>>()?;
        Ok(Slab { slots, first_free: self.first_free, len: self.len, key: PhantomData })
    }

    /// Free indices, the next one first.
    fn free(&self) -> Vec<u32> {
        let next = |&index: &u32| match self.slots.get(index as usize)?.content {
            Content::Vacant(next) => Some(next),
            Content::Occupied(_) => None,
        };
        std::iter::successors(Some(self.first_free), next).take_while(|&at| at != NONE).collect()
    }

    /// The slab of these slots. `Err`: the slots and the free indices do not agree.
    fn of_parts(slots: Vec<(u32, Option<V>)>, free: &[u32]) -> Result<Self, &'static str> {
        let vacant = slots.iter().filter(|(_, value)| value.is_none()).count();
        if vacant != free.len() || slots.len() >= NONE as usize {
            return Err("not as many free indices as vacant slots");
        }
        let len = slots.len() - vacant;
        let mut all: Vec<Slot<V>> = Vec::with_capacity(slots.len());
        for (generation, value) in slots {
            if (generation % 2 == 1) != value.is_some() {
                return Err("the generation of a slot contradicts its content");
            }
            // A vacant slot links to itself until it was found among the free indices.
            let itself = Content::Vacant(all.len() as u32);
            all.push(Slot { generation, content: value.map_or(itself, Content::Occupied) });
        }
        let mut first_free = NONE;
        for &index in free.iter().rev() {
            match all.get_mut(index as usize).map(|slot| &mut slot.content) {
                Some(Content::Vacant(next)) if *next == index => *next = first_free,
                _ => return Err("a free index is that of an object, or listed twice"),
            }
            first_free = index;
        }
        Ok(Self { slots: all, first_free, len, key: PhantomData })
    }
}

impl<K: Key, V> Index<K> for Slab<K, V> {
    type Output = V;

    #[inline]
    fn index(&self, key: K) -> &V {
        match self.get(key) {
            Some(value) => value,
            None => panic!("{key:?} is stale"),
        }
    }
}

impl<K: Key, V> IndexMut<K> for Slab<K, V> {
    #[inline]
    fn index_mut(&mut self, key: K) -> &mut V {
        match self.get_mut(key) {
            Some(value) => value,
            None => panic!("{key:?} is stale"),
        }
    }
}

/// The slots of a slab as pairs of a generation and an object.
struct Slots<'a, V>(&'a [Slot<V>]);

impl<V: Serialize> Serialize for Slots<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|slot| match &slot.content {
            Content::Occupied(value) => (slot.generation, Some(value)),
            Content::Vacant(_) => (slot.generation, None),
        }))
    }
}

impl<K: Key, V: Serialize> Serialize for Slab<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (Slots(&self.slots), self.free()).serialize(serializer)
    }
}

impl<'de, K: Key, V: Deserialize<'de>> Deserialize<'de> for Slab<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (slots, free) = Deserialize::deserialize(deserializer)?;
        let free: Vec<u32> = free;
        Self::of_parts(slots, &free).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    key_types! {
        /// A key of the tests.
        struct Id;
    }

    fn read_back(slab: &Slab<Id, u8>) -> Slab<Id, u8> {
        postcard::from_bytes(&postcard::to_stdvec(slab).unwrap()).unwrap()
    }

    #[test]
    fn numbers_and_keys_are_the_same_for_odd_generations_only() {
        let mut slab: Slab<Id, u8> = Slab::default();
        let keys = [slab.insert(1), slab.insert(2)];
        for key in keys {
            assert!(!key.is_null());
            assert_eq!(Id::from_number(key.number()), key);
        }
        assert_eq!(keys.map(Id::number), [1 << 32, 1 << 32 | 1]);
        assert!(Id::NULL.is_null() && Id::default().is_null());
        assert_eq!([0, 7, 2 << 32, 2 << 32 | 1].map(Id::from_number), [Id::NULL; 4]);
    }

    #[test]
    fn a_stale_key_returns_nothing_although_its_index_is_taken_again() {
        let mut slab: Slab<Id, u8> = Slab::default();
        let first = slab.insert(1);
        assert_eq!(slab.remove(first), Some(1));
        assert_eq!(slab.remove(first), None);
        let second = slab.insert(2);
        assert_eq!(first.raw().index(), second.raw().index());
        assert_eq!((slab.get(first), slab.get(second)), (None, Some(&2)));
        assert_eq!(slab.get(Id::NULL), None);
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_number_of_a_key_is_the_key_again() {
        let mut slab: Slab<Id, u8> = Slab::default();
        let keys = [1, 2, 3].map(|value| slab.insert(value));
        for key in keys.into_iter().chain([Id::NULL]) {
            assert_eq!(Id::from_number(key.number()), key);
        }
        assert_eq!(format!("{:?}", keys[1]), "Id(1v1)");
    }

    #[test]
    fn objects_that_are_made_from_others_have_their_keys() {
        let mut slab: Slab<Id, u8> = Slab::default();
        let [first, removed, last] = [1, 2, 3].map(|value| slab.insert(value));
        slab.remove(removed);
        let mut texts = slab.map(u8::to_string);
        let key = slab.insert(4);
        assert_eq!(texts.insert("4".to_owned()), key);
        let numbers: Slab<Id, u8> = texts.try_into_map(|text| text.parse()).unwrap();
        assert_eq!([first, key, last].map(|key| numbers[key]), [1, 4, 3]);
        assert_eq!((numbers.get(removed), numbers.len()), (None, 3));
        assert_eq!(numbers.try_into_map(|_| Err::<u8, _>("no")).err(), Some("no"));
    }

    #[test]
    fn parts_that_contradict_each_other_are_refused() {
        let parts = |slots: &[(u32, Option<u8>)], free: &[u32]| {
            Slab::<Id, u8>::of_parts(slots.to_vec(), free).map(|slab| slab.len())
        };
        assert_eq!(parts(&[(1, Some(7)), (2, None), (4, None)], &[2, 1]), Ok(1));
        assert!(parts(&[(1, Some(7)), (2, None)], &[]).is_err(), "a vacant slot is missing");
        assert!(parts(&[(1, Some(7)), (2, None)], &[0]).is_err(), "an object is free");
        assert!(parts(&[(2, None), (2, None)], &[0, 0]).is_err(), "a slot is free twice");
        assert!(parts(&[(2, None)], &[7]).is_err(), "a free index is outside");
        assert!(parts(&[(2, Some(7))], &[]).is_err(), "an object with an even generation");
        assert!(parts(&[(1, None)], &[0]).is_err(), "a vacant slot with an odd generation");
    }

    proptest! {
        /// The model has the values by key; the twin is written and read back after each step.
        #[test]
        fn a_slab_that_is_read_back_gives_the_same_keys(
            steps in prop::collection::vec(
                (any::<bool>(), any::<u8>(), any::<prop::sample::Index>()), 1..200,
            ),
        ) {
            let (mut slab, mut twin) = (Slab::<Id, u8>::default(), Slab::<Id, u8>::default());
            let mut model = std::collections::BTreeMap::new();
            for (insert, value, which) in steps {
                twin = read_back(&twin);
                if insert || model.is_empty() {
                    let key = slab.insert(value);
                    prop_assert_eq!(twin.insert(value), key);
                    prop_assert_eq!(model.insert(key, value), None);
                } else {
                    let key = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    let value = model.remove(&key);
                    prop_assert_eq!((slab.remove(key), twin.remove(key)), (value, value));
                }
                prop_assert_eq!(slab.len(), model.len());
                prop_assert!(slab.iter().map(|(key, value)| (key, *value)).eq(model.clone()));
                prop_assert!(twin.iter().eq(slab.iter()));
            }
        }
    }
}
