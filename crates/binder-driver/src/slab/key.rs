//! Keys: an index and a generation, with a type of its own for each kind of object.

use std::fmt::Debug;
use std::hash::Hash;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

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

    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self { index, generation: NonZeroU32::MIN | generation }
    }

    pub(crate) fn index(self) -> u32 {
        self.index
    }

    pub(crate) fn generation(self) -> u32 {
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
