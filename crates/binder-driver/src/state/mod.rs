//! The driver's state as bytes, and its verification when it is read back.
//!
//! [`write`] and [`read`] add and check the envelope of a whole daemon's state; [`SavedDriver`] is
//! the driver's part. The format is documented in `docs/design/upgrade.md`.

mod invariants;
mod keys;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::buffer::pages::PageSize;
use crate::driver::{ContextId, Driver, FreezeId, ProcessId};
use crate::host::FileToken;

const MAGIC: [u8; 8] = *b"HDRMSTAT";

/// The format's version. It changes with each change of a serialised type. Until the first release
/// no other one is read.
pub const VERSION: u32 = 3;

/// Magic, version, checksum, length.
const HEADER: usize = 8 + 4 + 4 + 8;

/// Why a state cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The bytes do not start with the magic number, or end too early.
    #[error("this is not a state of headroom-binderd")]
    NotAState,
    /// The state was written by a later program.
    #[error(
        "the state has format {0}, but this program reads format {VERSION} at most: upgrade to a \
         program that is as new as the running one"
    )]
    Newer(u32),
    /// The format of the state is no longer supported.
    #[error(
        "the state has format {0}, which this program does not read: restart the daemon instead, \
         which ends its clients' connections"
    )]
    Older(u32),
    /// The bytes were changed since they were written.
    #[error("the checksum or the length of the state is wrong")]
    Corrupt,
    /// A value cannot be decoded.
    #[error("the state cannot be decoded: {0}")]
    Malformed(String),
    /// The decoded values contradict each other.
    #[error("the state is inconsistent: {0}")]
    Inconsistent(String),
}

/// Serialises a state with its envelope.
pub fn write(state: &impl Serialize) -> Result<Vec<u8>, StateError> {
    let malformed = |error: postcard::Error| StateError::Malformed(error.to_string());
    postcard::to_extend(state, vec![0; HEADER]).map(seal).map_err(malformed)
}

/// Fills the header in front of a payload.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let (header, payload) = bytes.split_at_mut(HEADER);
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    header[16..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes
}

/// Corrects the header of changed bytes, so that a fuzzer reaches what is behind it. False: there
/// is no room for a header.
#[doc(hidden)]
pub fn reseal(bytes: &mut Vec<u8>) -> bool {
    let has_header = bytes.len() >= HEADER;
    if has_header {
        *bytes = seal(std::mem::take(bytes));
    }
    has_header
}

/// The number at this offset of a header.
fn number(header: &[u8], at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Reads a state that [`write`] has written. Its memory is proportional to the length of `bytes`.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StateError> {
    let (header, payload) = bytes.split_at_checked(HEADER).ok_or(StateError::NotAState)?;
    if header[..8] != MAGIC {
        return Err(StateError::NotAState);
    }
    let length = header[16..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    match number(header, 8) {
        VERSION => {}
        newer if newer > VERSION => return Err(StateError::Newer(newer)),
        older => return Err(StateError::Older(older)),
    }
    if length != payload.len() as u64 || number(header, 12) != crc32fast::hash(payload) {
        return Err(StateError::Corrupt);
    }
    match postcard::take_from_bytes(payload) {
        Ok((state, [])) => Ok(state),
        Ok(_) => Err(StateError::Malformed("bytes follow its end".into())),
        Err(error) => Err(StateError::Malformed(error.to_string())),
    }
}

/// A driver that is written, or that was read and is not verified yet.
#[derive(Debug)]
pub struct SavedDriver<T>(T);

impl<'a> SavedDriver<&'a Driver> {
    /// The driver, to be written. A running trace is left out.
    pub fn new(driver: &'a Driver) -> Self {
        Self(driver)
    }
}

impl SavedDriver<Driver> {
    /// Verifies every invariant on a machine with such pages. The driver then behaves as the one
    /// that was written.
    pub fn verify(self, page_size: PageSize) -> Result<Driver, StateError> {
        let mut driver = self.0;
        driver.set_page_size(page_size);
        driver.restore().map_err(StateError::Inconsistent)?;
        Ok(driver)
    }
}

impl Serialize for SavedDriver<&Driver> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Driver::serialize(self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for SavedDriver<Driver> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Driver::deserialize(deserializer).map(Self)
    }
}

impl Driver {
    /// Completes a driver that was read back with what its state leaves out because it follows from
    /// the rest, and verifies it; the error names the first contradiction. No state makes it panic.
    fn restore(&mut self) -> Result<(), String> {
        // Everything after that may look up any key.
        self.check_keys()?;
        for (id, account) in self.accounts.iter() {
            self.accounts_by_owner.insert(account.owner, id);
        }
        for process in self.processes.values_mut() {
            process.refs.index_nodes(|reference| self.refs[reference].node);
        }
        for buffer in self.buffers.values().filter(|buffer| buffer.queued_for.is_some()) {
            if let Some(process) = self.processes.get_mut(buffer.process) {
                // Checked sums: the bytes may be those of a damaged state.
                let bytes = process.untaken_bytes.checked_add(buffer.layout.total);
                process.untaken_bytes = bytes.ok_or("untaken bytes overflow")?;
            }
        }
        for (place, process, page) in self.idle_pages.places() {
            let area = self.processes.get_mut(process).and_then(|entry| entry.area.as_mut());
            if !area.is_some_and(|area| area.pages.restore_place(page, place)) {
                return Err(format!("page {page} of {process:?} is listed but not idle"));
            }
        }
        self.check_invariants()
    }
}

/// The objects that a front end refers to, by which it verifies its own state.
impl Driver {
    /// All opens.
    pub fn opens(&self) -> impl Iterator<Item = ProcessId> {
        self.processes.keys()
    }

    /// Whether this is a device.
    pub fn has_context(&self, context: ContextId) -> bool {
        self.contexts.contains_key(context)
    }

    /// Opens and tids of all parked reads.
    pub fn parked_reads(&self) -> impl Iterator<Item = (ProcessId, u32)> {
        let parked = self.threads.values().filter(|thread| thread.parked.is_some());
        parked.map(|thread| (thread.process, thread.tid))
    }

    /// All freezes that wait.
    pub fn pending_freezes(&self) -> impl Iterator<Item = FreezeId> {
        self.freezes.keys()
    }

    /// Files of which the driver has a token.
    pub fn files_in_transit(&self) -> impl Iterator<Item = FileToken> {
        self.buffers.values().flat_map(|buffer| &buffer.files).map(|slot| slot.file)
    }
}

/// Serialises structs of the binder protocol as their bytes.
pub mod wire_bytes {
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
}

#[cfg(test)]
mod tests {
    use crate::slab::Key;

    use super::*;
    use crate::driver::{AccountId, NodeId, ThreadId, TransactionId};
    use crate::host::Caller;
    use crate::process::account::Account;
    use crate::process::thread::Thread;
    use crate::process::{Opener, Process};
    use crate::write_read::queue::QueueId;
    use crate::{Owner, Uid};

    fn state() -> Vec<u8> {
        let mut driver = Driver::new();
        driver.add_context("binder");
        write(&SavedDriver::new(&driver)).unwrap()
    }

    fn refusal(change: impl FnOnce(&mut Vec<u8>)) -> StateError {
        let mut bytes = state();
        change(&mut bytes);
        read::<SavedDriver<Driver>>(&bytes).unwrap_err()
    }

    #[test]
    fn a_driver_is_read_back() {
        let driver =
            read::<SavedDriver<Driver>>(&state()).unwrap().verify(PageSize::default()).unwrap();
        assert_eq!(driver.snapshot().contexts[0].name, "binder");
    }

    #[test]
    fn bytes_of_another_kind_version_or_content_are_refused() {
        assert_eq!(refusal(Vec::clear), StateError::NotAState);
        assert_eq!(refusal(|bytes| bytes[0] ^= 1), StateError::NotAState);
        assert_eq!(refusal(|bytes| bytes[8] = 4), StateError::Newer(4));
        assert_eq!(refusal(|bytes| bytes[8] = 0), StateError::Older(0));
        assert_eq!(refusal(|bytes| bytes.push(0)), StateError::Corrupt);
        assert_eq!(refusal(|bytes| *bytes.last_mut().unwrap() ^= 1), StateError::Corrupt);
    }

    /// A process that has called `ioctl` once, on a device of its own.
    fn driver_with_a_thread() -> (Driver, ProcessId) {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        let opener = Opener { pid: 1, euid: Uid(7), owner: Owner::User(Uid(7)) };
        let process = driver.open(context, opener).unwrap();
        driver.note_ioctl(Caller { process, tid: 1, euid: Uid(7) }).unwrap();
        (driver, process)
    }

    fn reason(change: impl FnOnce(&mut Driver, ProcessId)) -> String {
        let (mut driver, process) = driver_with_a_thread();
        change(&mut driver, process);
        let bytes = write(&SavedDriver::new(&driver)).unwrap();
        let verified = read::<SavedDriver<Driver>>(&bytes).unwrap().verify(PageSize::default());
        verified.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn counts_that_contradict_the_objects_are_refused() {
        let open = |change: fn(&mut Process)| {
            reason(|driver, process| change(&mut driver.processes[process]))
        };
        assert!(open(|open| open.deaths = 1).contains("counts 1 deaths"));
        assert!(open(|open| open.oneway_slots = 1).contains("one-way slots"));
        assert!(open(|open| open.freezer.outstanding = 1).contains("keeps 1 outstanding"));
        assert!(open(|open| open.freeze_notifications = 1).contains("keeps 1 notifications"));
        let account = |change: fn(&mut Account)| {
            reason(|driver, _| driver.accounts.values_mut().for_each(change))
        };
        assert!(account(|account| account.opens = 2).contains("opens: 2"));
        assert!(account(|account| account.objects = 1).contains("objects: 1"));
        assert!(account(|account| account.queued_bytes = 8).contains("queued_bytes: 8"));
        assert!(account(|account| account.touched_pages = 1).contains("touched_pages: 1"));
        let holding = reason(|driver, _| driver.holding.extend(driver.threads.keys()));
        assert!(holding.contains("listed as holding"), "{holding}");
    }

    #[test]
    fn keys_of_no_object_are_refused() {
        let open = |change: fn(&mut Process)| {
            reason(|driver, process| change(&mut driver.processes[process]))
        };
        assert!(open(|open| open.account = AccountId::NULL).contains("AccountId"));
        assert!(open(|open| open.context = ContextId::NULL).contains("ContextId"));
        assert!(open(|open| open.todo = QueueId::NULL).contains("QueueId"));
        assert!(open(|open| open.idle.push(ThreadId::NULL)).contains("stale thread"));
        assert!(open(|open| _ = open.nodes.insert(1, NodeId::NULL)).contains("node 0x1"));
        assert!(open(|open| open.threads.clear()).contains("0 of 1 threads"));
        let thread = |change: fn(&mut Thread)| {
            reason(|driver, _| driver.threads.values_mut().for_each(change))
        };
        assert!(thread(|thread| thread.stack = Some(TransactionId::NULL)).contains("stale"));
        assert!(thread(|thread| thread.process = ProcessId::NULL).contains("is another one"));
    }
}
