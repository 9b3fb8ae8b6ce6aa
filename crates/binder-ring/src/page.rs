//! The layout of a ring's memory.
//!
//! All of it is atomic words: the other side may write at any time. Bytes are copied to and from
//! them in whole words.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::RING_BYTES;
use crate::turn::Words;

const WORD: usize = size_of::<u64>();
/// Words of the heads of a call and of its result.
pub(crate) const HEAD_WORDS: usize = 96;

/// Maximum bytes of a call's commands, and of its returns. libbinder's buffers have 256 bytes to
/// begin with.
pub const STREAM_BYTES: usize = 4 << 10;
/// Maximum bytes of a parcel that is submitted with its command; larger ones are read from the
/// client's memory, which costs a system call and saves a copy.
pub const PARCEL_BYTES: usize = 16 << 10;

/// A ring's memory.
#[repr(C, align(64))]
pub struct Page {
    /// The words that change hands.
    pub words: Words,
    token: AtomicU64,
    pub(crate) head: Area<HEAD_WORDS>,
    pub(crate) commands: Area<{ STREAM_BYTES / WORD }>,
    pub(crate) returns: Area<{ STREAM_BYTES / WORD }>,
    pub(crate) parcel: Area<{ PARCEL_BYTES / WORD }>,
}

const _: () = assert!(size_of::<Page>() <= RING_BYTES);

impl Page {
    /// A new page.
    pub(crate) fn new() -> Self {
        Self {
            words: Words::new(),
            token: AtomicU64::new(0),
            head: Area::new(),
            commands: Area::new(),
            returns: Area::new(),
            parcel: Area::new(),
        }
    }

    /// The number by which the daemon recognises the memory at its attachment.
    pub fn token(&self) -> u64 {
        self.token.load(Relaxed)
    }

    /// Client: sets the [`token`](Self::token).
    pub fn set_token(&self, token: u64) {
        self.token.store(token, Relaxed);
    }
}

/// Bytes in words.
#[repr(transparent)]
pub(crate) struct Area<const WORDS: usize>(pub(crate) [AtomicU64; WORDS]);

impl<const WORDS: usize> Area<WORDS> {
    fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Bytes of the area.
    pub(crate) const BYTES: usize = WORDS * WORD;

    /// Writes bytes from the start of the word `first` on; those that do not fit are dropped.
    pub(crate) fn write(&self, first: usize, bytes: &[u8]) {
        let words = self.0.iter().skip(first);
        for (word, bytes) in words.zip(bytes.chunks(WORD)) {
            let mut value = [0; WORD];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
    }

    /// Fills `into` from the start of the word `first` on; what lies behind the end stays as it is.
    pub(crate) fn read(&self, first: usize, into: &mut [u8]) {
        let words = self.0.iter().skip(first);
        for (word, into) in words.zip(into.chunks_mut(WORD)) {
            into.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..into.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_are_read_as_they_were_written(
            bytes in proptest::collection::vec(any::<u8>(), 0..100), first in 0_usize..6
        ) {
            let area = Area::<16>::new();
            area.write(first, &bytes);
            let fit = bytes.len().min(Area::<16>::BYTES - first * WORD);
            let mut read = vec![0; fit];
            area.read(first, &mut read);
            prop_assert_eq!(&read, &bytes[..fit]);
        }
    }
}
