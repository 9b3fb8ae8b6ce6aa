//! A ring's memory: its layout, and the contents of a call and of its result.
//!
//! All of it is atomic words: the other side may write at any time. Bytes are copied to and from
//! them in whole words.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use binder_uapi::BinderWriteRead;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::RING_BYTES;
use crate::turn::Words;

const WORD: usize = size_of::<u64>();
/// Words of the heads of a call and of its result.
const HEAD_WORDS: usize = 96;

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
    const BYTES: usize = WORDS * WORD;

    /// Writes bytes from the start of the word `first` on; those that do not fit are dropped.
    fn write(&self, first: usize, bytes: &[u8]) {
        let words = self.0.iter().skip(first);
        for (word, bytes) in words.zip(bytes.chunks(WORD)) {
            let mut value = [0; WORD];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Relaxed);
        }
    }

    /// Fills `into` from the start of the word `first` on; what lies behind the end stays as it is.
    fn read(&self, first: usize, into: &mut [u8]) {
        let words = self.0.iter().skip(first);
        for (word, into) in words.zip(into.chunks_mut(WORD)) {
            into.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..into.len()]);
        }
    }
}

/// Maximum number of descriptors that a result tells the client to close, and that a call tells the
/// daemon to have arrived.
pub const MAX_FILES: usize = 128;

/// A range of the client's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Range {
    /// Address in the client.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

impl Range {
    /// The offset in this range of a part of it.
    pub fn offset_of(&self, address: u64, len: usize) -> Option<usize> {
        let offset = address.checked_sub(self.address)?;
        let end = offset.checked_add(len as u64)?;
        (end <= self.len).then_some(offset as usize)
    }
}

/// Numbers of descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Files {
    count: u32,
    /// The word is whole.
    padding: u32,
    numbers: [u32; MAX_FILES],
}

impl Files {
    /// The first [`MAX_FILES`] of these numbers.
    pub fn new(numbers: &[u32]) -> Self {
        let mut files = Self::new_zeroed();
        let count = numbers.len().min(MAX_FILES);
        files.numbers[..count].copy_from_slice(&numbers[..count]);
        files.count = count as u32;
        files
    }

    /// The numbers.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers[..(self.count as usize).min(MAX_FILES)]
    }
}

/// What a call consists of, besides its bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct CallHead {
    argument: BinderWriteRead,
    parcel: Range,
    offsets: Range,
    files: Files,
}

/// What a result consists of, besides its bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct ResultHead {
    argument: BinderWriteRead,
    errno: u32,
    outcome: u32,
    closes: Files,
}

const _: () = assert!(size_of::<CallHead>() <= Area::<HEAD_WORDS>::BYTES);
const _: () = assert!(size_of::<ResultHead>() <= Area::<HEAD_WORDS>::BYTES);

/// A call that the daemon has taken, copied.
#[derive(Debug)]
pub struct TakenCall {
    /// The argument of the `BINDER_WRITE_READ`.
    pub argument: BinderWriteRead,
    /// Numbers of the files that the client has received before it.
    pub arrived: Files,
    commands: Range,
    parcel: Range,
    offsets: Range,
    /// The bytes of these ranges, one after the other.
    bytes: Vec<u8>,
}

impl Default for TakenCall {
    fn default() -> Self {
        Self {
            argument: BinderWriteRead::new_zeroed(),
            arrived: Files::new(&[]),
            commands: Range::default(),
            parcel: Range::default(),
            offsets: Range::default(),
            bytes: Vec::new(),
        }
    }
}

impl TakenCall {
    /// Number of bytes that were submitted with the call.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes at an address of the client, if the client has submitted them with the call.
    pub fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let mut start = 0;
        for range in [self.commands, self.parcel, self.offsets] {
            if let Some(offset) = range.offset_of(address, len) {
                return self.bytes.get(start + offset..start + offset + len);
            }
            start += range.len as usize;
        }
        None
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// The ioctl has returned with this result.
    Returned = 0,
    /// The rest of the call is to be made by a system call: the daemon has ended the ring, or has
    /// to access the thread for it.
    Unfinished = 1,
    /// The read takes a transaction with files: fetch them by [`RING_FILES`](crate::RING_FILES),
    /// then make the rest of the call.
    FetchFiles = 2,
}

/// The result of a call.
#[derive(Debug)]
pub struct CallResult {
    /// The argument with its consumed counts.
    pub argument: BinderWriteRead,
    /// Errno of the ioctl (positive), or 0.
    pub errno: u32,
    /// How the call ended.
    pub outcome: Outcome,
    /// Descriptors that the client has to close.
    pub closes: Files,
}

impl Page {
    /// Client: writes a call. `commands` are the bytes that the argument names, `parcel` those of
    /// its first command and where they are. False: the call does not fit.
    pub fn write_call(
        &self,
        argument: BinderWriteRead,
        commands: &[u8],
        parcel: Option<ParcelBytes<'_>>,
        arrived: &[u32],
    ) -> bool {
        if commands.len() > STREAM_BYTES || argument.read_size > STREAM_BYTES as u64 {
            return false;
        }
        let mut head = CallHead {
            argument,
            parcel: Range::default(),
            offsets: Range::default(),
            files: Files::new(arrived),
        };
        if let Some(ParcelBytes { at, bytes, offsets_at, offsets }) = parcel {
            let offsets_first = bytes.len().div_ceil(8);
            if offsets_first * 8 + offsets.len() <= PARCEL_BYTES {
                head.parcel = Range { address: at, len: bytes.len() as u64 };
                head.offsets = Range { address: offsets_at, len: offsets.len() as u64 };
                self.parcel.write(0, bytes);
                self.parcel.write(offsets_first, offsets);
            }
        }
        self.commands.write(0, commands);
        let used = size_of::<CallHead>() - 4 * (MAX_FILES - head.files.numbers().len());
        self.head.write(0, &head.as_bytes()[..used]);
        true
    }

    /// Daemon: copies the call that it has taken.
    pub fn read_call(&self, call: &mut TakenCall) {
        let mut head = CallHead::new_zeroed();
        self.head.read(0, &mut head.as_mut_bytes()[..size_of::<CallHead>() - 4 * MAX_FILES]);
        if head.files.count > 0 {
            self.head.read(0, head.as_mut_bytes());
        }
        let left = head.argument.write_size.saturating_sub(head.argument.write_consumed);
        let address = head.argument.write_buffer.wrapping_add(head.argument.write_consumed);
        call.commands = Range { address, len: left.min(STREAM_BYTES as u64) };
        let offsets_first = (head.parcel.len as usize).div_ceil(8);
        let fits = |len: u64| len <= PARCEL_BYTES as u64;
        let is_whole = fits(head.parcel.len)
            && fits(head.offsets.len)
            && offsets_first * 8 + head.offsets.len as usize <= PARCEL_BYTES;
        (call.parcel, call.offsets) =
            if is_whole { (head.parcel, head.offsets) } else { Default::default() };
        let [commands, parcel, offsets] =
            [call.commands, call.parcel, call.offsets].map(|range| range.len as usize);
        call.bytes.resize(commands + parcel + offsets, 0);
        self.commands.read(0, &mut call.bytes[..commands]);
        self.parcel.read(0, &mut call.bytes[commands..][..parcel]);
        self.parcel.read(offsets_first, &mut call.bytes[commands + parcel..]);
        (call.argument, call.arrived) = (head.argument, head.files);
    }

    /// Daemon: writes the result of a call. `returns` are the bytes from the start of the read
    /// buffer on.
    pub fn write_result(&self, result: &CallResult, returns: &[u8]) {
        let CallResult { argument, errno, outcome, closes } = *result;
        let head = ResultHead { argument, errno, outcome: outcome as u32, closes };
        self.returns.write(0, returns);
        let used = size_of::<ResultHead>() - 4 * (MAX_FILES - head.closes.numbers().len());
        self.head.write(0, &head.as_bytes()[..used]);
    }

    /// Client: copies the result of its call.
    pub fn read_result(&self) -> CallResult {
        let mut head = ResultHead::new_zeroed();
        self.head.read(0, &mut head.as_mut_bytes()[..size_of::<ResultHead>() - 4 * MAX_FILES]);
        if head.closes.count > 0 {
            self.head.read(0, head.as_mut_bytes());
        }
        let outcome = match head.outcome {
            1 => Outcome::Unfinished,
            2 => Outcome::FetchFiles,
            _ => Outcome::Returned,
        };
        let ResultHead { argument, errno, closes, .. } = head;
        CallResult { argument, errno, outcome, closes }
    }

    /// Client: copies the returns, from the start of the read buffer on.
    pub fn read_returns(&self, into: &mut [u8]) {
        self.returns.read(0, into);
    }
}

/// The bytes of the parcel of a call's first command.
#[derive(Clone, Copy, Debug)]
pub struct ParcelBytes<'a> {
    /// Address of the data in the client.
    pub at: u64,
    /// The data.
    pub bytes: &'a [u8],
    /// Address of the offsets.
    pub offsets_at: u64,
    /// The offsets.
    pub offsets: &'a [u8],
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

    fn argument(numbers: [u64; 6]) -> BinderWriteRead {
        BinderWriteRead::read_from_bytes(numbers.as_bytes()).unwrap()
    }

    proptest! {
        #[test]
        fn a_call_is_read_as_it_was_written(
            commands in proptest::collection::vec(any::<u8>(), 0..300),
            parcel in proptest::collection::vec(any::<u8>(), 0..300),
            offsets in proptest::collection::vec(any::<u8>(), 0..64),
            arrived in proptest::collection::vec(any::<u32>(), 0..MAX_FILES),
            consumed in 0_u64..1 << 40,
        ) {
            let page = Page::new();
            let len = commands.len() as u64;
            let argument = argument([consumed + len, consumed, 1 << 50, 256, 4, 1 << 51]);
            let (bytes, offsets_at) = (&parcel[..], 1 << 53);
            let bytes = ParcelBytes { at: 1 << 52, bytes, offsets_at, offsets: &offsets };
            prop_assert!(page.write_call(argument, &commands, Some(bytes), &arrived));
            let mut call = TakenCall::default();
            page.read_call(&mut call);
            prop_assert_eq!(call.argument, argument);
            prop_assert_eq!(call.arrived.numbers(), &arrived[..]);
            let at = (1 << 50) + consumed;
            if !commands.is_empty() {
                prop_assert_eq!(call.bytes(at, commands.len()), Some(&commands[..]));
            }
            prop_assert_eq!(call.bytes(at, commands.len() + 1), None);
            if !parcel.is_empty() {
                prop_assert_eq!(call.bytes(1 << 52, parcel.len()), Some(&parcel[..]));
            }
            if !offsets.is_empty() {
                prop_assert_eq!(call.bytes(1 << 53, offsets.len()), Some(&offsets[..]));
            }
        }

        #[test]
        fn a_result_is_read_as_it_was_written(
            returns in proptest::collection::vec(any::<u8>(), 0..STREAM_BYTES),
            closes in proptest::collection::vec(any::<u32>(), 0..MAX_FILES),
            errno in 0_u32..200,
        ) {
            let page = Page::new();
            let argument = argument([1, 2, 3, 4, 5, 6]);
            let closes = Files::new(&closes);
            let outcome = Outcome::FetchFiles;
            page.write_result(&CallResult { argument, errno, outcome, closes }, &returns);
            let result = page.read_result();
            prop_assert_eq!((result.argument, result.errno), (argument, errno));
            prop_assert_eq!(result.outcome, Outcome::FetchFiles);
            prop_assert_eq!(result.closes.numbers(), closes.numbers());
            let mut read = vec![0; returns.len()];
            page.read_returns(&mut read);
            prop_assert_eq!(read, returns);
        }

        #[test]
        fn any_memory_is_a_call_of_bounded_size(
            head in proptest::collection::vec(prop_oneof![any::<u64>(), 0_u64..40_000], HEAD_WORDS),
            address in any::<u64>(), len in 0_usize..30_000,
        ) {
            let page = Page::new();
            page.head.write(0, head.as_bytes());
            let mut call = TakenCall::default();
            page.read_call(&mut call);
            prop_assert!(call.len() <= STREAM_BYTES + PARCEL_BYTES);
            prop_assert!(call.arrived.numbers().len() <= MAX_FILES);
            let bytes = call.bytes(address, len);
            prop_assert!(bytes.is_none_or(|bytes| bytes.len() == len));
            let result = page.read_result();
            prop_assert!(result.closes.numbers().len() <= MAX_FILES);
        }
    }

    #[test]
    fn a_call_that_does_not_fit_is_not_written() {
        let page = Page::new();
        let large = vec![0; STREAM_BYTES + 1];
        assert!(!page.write_call(argument([0; 6]), &large, None, &[]));
        assert!(!page.write_call(argument([0, 0, 0, large.len() as u64, 0, 0]), &[], None, &[]));
        // A parcel that does not fit is read from the client's memory instead.
        let bytes = vec![0; PARCEL_BYTES];
        let parcel = ParcelBytes { at: 8, bytes: &bytes, offsets_at: 0, offsets: &[1] };
        assert!(page.write_call(argument([0; 6]), &[], Some(parcel), &[]));
        let mut call = TakenCall::default();
        page.read_call(&mut call);
        assert_eq!(call.bytes(8, 1), None);
    }
}
