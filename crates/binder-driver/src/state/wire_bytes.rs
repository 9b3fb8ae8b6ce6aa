//! Serialises structs of the binder protocol as their bytes.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// For `#[serde(with)]`.
pub fn serialize<T: IntoBytes + Immutable, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(value.as_bytes())
}

/// For `#[serde(with)]`.
pub fn deserialize<'de, T: FromBytes, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let bytes = Vec::<u8>::deserialize(deserializer)?;
    T::read_from_bytes(&bytes).map_err(|_| D::Error::custom("a struct has another size"))
}
