//! Strings and objects in parcels of Android's libbinder.

use binder_client::Parcel;
use binder_uapi::{
    BINDER_TYPE_BINDER, BINDER_TYPE_HANDLE, FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::names::Object;

/// Longest string that is read: UTF-16 units, or bytes with the NUL.
pub const LONGEST: usize = 1024;

/// A parcel does not contain what its code announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads a parcel from its begin.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    data: &'a [u8],
    offsets: &'a [u64],
    at: usize,
}

impl<'a> Reader<'a> {
    /// `offsets`: of the objects in `data`.
    pub fn new(data: &'a [u8], offsets: &'a [u64]) -> Self {
        Self { data, offsets, at: 0 }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let bytes = self.data.get(self.at..).and_then(|rest| rest.get(..len)).ok_or(Malformed)?;
        self.at = (self.at + len).next_multiple_of(4);
        Ok(bytes)
    }

    /// A 32-bit number.
    pub fn int(&mut self) -> Result<i32, Malformed> {
        let bytes = self.take(4)?.try_into().map_err(|_| Malformed)?;
        Ok(i32::from_ne_bytes(bytes))
    }

    /// A string of UTF-16 units.
    pub fn string(&mut self) -> Result<String, Malformed> {
        let len = usize::try_from(self.int()?).map_err(|_| Malformed)?;
        if len > LONGEST {
            return Err(Malformed);
        }
        let bytes = self.take((len + 1) * 2)?;
        let (units, _) = bytes.as_chunks::<2>();
        let units: Vec<u16> = units[..len].iter().map(|unit| u16::from_ne_bytes(*unit)).collect();
        String::from_utf16(&units).map_err(|_| Malformed)
    }

    /// A string of bytes with a NUL at its end.
    pub fn c_string(&mut self) -> Result<&'a str, Malformed> {
        let rest = self.data.get(self.at..).ok_or(Malformed)?;
        let len = rest.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        std::str::from_utf8(self.take(len + 1)?.get(..len).ok_or(Malformed)?).map_err(|_| Malformed)
    }

    /// A reference to an object of another process.
    pub fn object(&mut self) -> Result<u32, Malformed> {
        let bytes = self.any_object(size_of::<FlatBinderObject>())?;
        let object = FlatBinderObject::read_from_bytes(bytes).map_err(|_| Malformed)?;
        if object.ty == BINDER_TYPE_HANDLE { Ok(object.handle()) } else { Err(Malformed) }
    }

    /// Like [`object`](Self::object), or none: that is no object for the driver.
    pub fn nullable_object(&mut self) -> Result<Option<u32>, Malformed> {
        let mut ahead = self.clone();
        let bytes = ahead.take(size_of::<FlatBinderObject>())?;
        let object = FlatBinderObject::read_from_bytes(bytes).map_err(|_| Malformed)?;
        if object.ty == BINDER_TYPE_BINDER && object.binder == 0 {
            *self = ahead;
            return Ok(None);
        }
        self.object().map(Some)
    }

    /// An object of any type, of this size. One without an offset is not translated by the driver:
    /// its numbers would be the sender's.
    pub fn any_object(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let at = self.at as u64;
        let bytes = self.take(len)?;
        if self.offsets.contains(&at) { Ok(bytes) } else { Err(Malformed) }
    }
}

/// Appends a 32-bit number.
pub fn put_int(parcel: &mut Parcel, number: i32) {
    parcel.data.extend_from_slice(&number.to_ne_bytes());
}

/// Appends a string of UTF-16 units.
pub fn put_string(parcel: &mut Parcel, text: &str) {
    let units: Vec<u16> = text.encode_utf16().collect();
    put_int(parcel, units.len() as i32);
    for unit in units.iter().chain([&0]) {
        parcel.data.extend_from_slice(&unit.to_ne_bytes());
    }
    pad(parcel);
}

/// Appends a string of bytes with a NUL at its end.
pub fn put_c_string(parcel: &mut Parcel, text: &str) {
    parcel.data.extend_from_slice(text.as_bytes());
    parcel.data.push(0);
    pad(parcel);
}

fn pad(parcel: &mut Parcel) {
    parcel.data.resize(parcel.data.len().next_multiple_of(4), 0);
}

/// Appends a reference, or none: that is no object for the driver.
pub fn put_object(parcel: &mut Parcel, object: Option<Object>) {
    let flat = match object {
        Some(object) => {
            parcel.offsets.push(parcel.data.len() as u64);
            FlatBinderObject {
                ty: BINDER_TYPE_HANDLE,
                flags: FLAT_BINDER_FLAG_ACCEPTS_FDS,
                binder: object.handle.into(),
                cookie: 0,
            }
        }
        None => FlatBinderObject { ty: BINDER_TYPE_BINDER, ..FlatBinderObject::default() },
    };
    parcel.data.extend_from_slice(flat.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut parcel = Parcel::new();
        put_int(&mut parcel, -7);
        put_string(&mut parcel, "ä.b");
        put_string(&mut parcel, "");
        put_c_string(&mut parcel, "abc");
        put_object(&mut parcel, Some(Object { handle: 9, stability: 0 }));
        let mut reader = Reader::new(&parcel.data, &parcel.offsets);
        assert_eq!(reader.int(), Ok(-7));
        assert_eq!(reader.string().as_deref(), Ok("ä.b"));
        assert_eq!(reader.string().as_deref(), Ok(""));
        assert_eq!(reader.c_string(), Ok("abc"));
        assert_eq!(reader.object(), Ok(9));
        assert_eq!(reader.int(), Err(Malformed));
    }

    #[test]
    fn no_length_and_no_object_of_a_sender_is_believed() {
        let read = |bytes: &[u8]| Reader::new(bytes, &[]).string();
        for len in [-1, 2, 1024, 1025, i32::MAX] {
            assert_eq!(read(&[len.to_ne_bytes(), *b"a\0b\0"].concat()), Err(Malformed), "{len}");
        }
        let unpaired = [1i32.to_ne_bytes(), [0, 0xd8, 0, 0]].concat();
        assert_eq!(read(&unpaired), Err(Malformed));
        assert_eq!(Reader::new(b"no end", &[]).c_string(), Err(Malformed));
        let mut parcel = Parcel::new();
        put_object(&mut parcel, Some(Object { handle: 9, stability: 0 }));
        assert_eq!(Reader::new(&parcel.data, &[]).object(), Err(Malformed), "no offset");
        assert_eq!(Reader::new(&parcel.data, &[4]).object(), Err(Malformed));
        let mut none = Parcel::new();
        put_object(&mut none, None);
        assert!(none.offsets.is_empty());
        assert_eq!(Reader::new(&none.data, &[0]).object(), Err(Malformed));
        assert_eq!(Reader::new(&none.data, &[]).nullable_object(), Ok(None));
        assert_eq!(Reader::new(&parcel.data, &[0]).nullable_object(), Ok(Some(9)));
        assert_eq!(Reader::new(&parcel.data, &[]).nullable_object(), Err(Malformed), "no offset");
    }
}
