//! Clients whose memory is the fuzzer's input.

use binder_driver::*;

/// Address of a client's commands and read buffer.
pub const ROOM: u64 = 0x1000;
/// Size of that area, bytes.
pub const ROOM_LEN: usize = 16 << 10;
/// Address at which the input itself is mapped.
pub const INPUT: u64 = 0x10_0000;
/// Size of a mapping, bytes.
const MAPPING: u64 = 256 << 10;
const MAPPED_AT: u64 = 0x7000_0000_0000;

/// See the module's documentation.
pub struct FuzzHost {
    pub room: Vec<u8>,
    pub input: Vec<u8>,
    /// Tokens of files that were taken and not dropped.
    pub files: std::collections::BTreeSet<u64>,
    next_file: u64,
    /// Accesses to the memory of this open fail.
    pub faulting: Option<ProcessId>,
    /// Stores into this open's mapping fail.
    pub unwritable: Option<ProcessId>,
}

impl FuzzHost {
    pub fn new(input: &[u8]) -> Self {
        Self {
            room: vec![0; ROOM_LEN],
            input: input.to_vec(),
            files: Default::default(),
            next_file: 0,
            faulting: None,
            unwritable: None,
        }
    }
}

impl ClientMemory for FuzzHost {
    fn read(&mut self, from: Caller, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        if self.faulting == Some(from.process) {
            return Err(Fault::BadAddress);
        }
        for (base, bytes) in [(ROOM, &self.room), (INPUT, &self.input)] {
            let start = usize::try_from(address.wrapping_sub(base)).unwrap_or(usize::MAX);
            let part = start.checked_add(into.len()).and_then(|end| bytes.get(start..end));
            if let Some(part) = part {
                into.copy_from_slice(part);
                return Ok(());
            }
        }
        Err(Fault::BadAddress)
    }

    fn write(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if self.faulting == Some(to.process) {
            return Err(Fault::BadAddress);
        }
        let start = usize::try_from(address.wrapping_sub(ROOM)).unwrap_or(usize::MAX);
        let end = start.checked_add(bytes.len()).ok_or(Fault::BadAddress)?;
        self.room.get_mut(start..end).ok_or(Fault::BadAddress)?.copy_from_slice(bytes);
        Ok(())
    }
}

impl Mappings for FuzzHost {
    fn mapping(&mut self, _: ProcessId) -> Result<Option<Mapping>, Fault> {
        Ok(Some(Mapping { address: MAPPED_AT, len: MAPPING }))
    }

    fn has_address_space(&mut self, _: ProcessId) -> bool {
        true
    }

    fn store(&mut self, process: ProcessId, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        assert!(offset + bytes.len() as u64 <= MAPPING, "a store behind the mapping");
        if self.unwritable == Some(process) { Err(StoreError) } else { Ok(()) }
    }

    fn zero(&mut self, _: ProcessId, offset: u64, len: u64) -> Result<(), StoreError> {
        assert!(offset + len <= MAPPING, "zeros behind the mapping");
        Ok(())
    }

    fn punch(&mut self, _: ProcessId, offset: u64, len: u64) -> Result<(), StoreError> {
        let whole = offset.is_multiple_of(4096) && len.is_multiple_of(4096);
        assert!(whole && offset + len <= MAPPING);
        Ok(())
    }
}

impl Files for FuzzHost {
    fn take_file(&mut self, _: Caller, fd: u32) -> Result<FileToken, Errno> {
        if fd % 7 == 6 {
            return Err(Errno::EBADF);
        }
        self.next_file += 1;
        self.files.insert(self.next_file);
        Ok(FileToken(self.next_file))
    }

    fn drop_file(&mut self, file: FileToken) {
        assert!(self.files.remove(&file.0), "a file is dropped twice");
    }

    fn close_on_return(&mut self, _: Caller, _: &[u32]) {}
}

impl Identity for FuzzHost {
    fn pid_seen_by(&mut self, _: ProcessId, _: ProcessId) -> i32 {
        1
    }

    fn uid_seen_by(&mut self, _: ProcessId, uid: Uid) -> u32 {
        uid.0
    }

    fn security_context(&mut self, _: Caller) -> Result<Vec<u8>, Errno> {
        Ok(b"fuzz".to_vec())
    }
}

impl Scheduler for FuzzHost {
    fn priority(&mut self, tid: u32, _: Freshness) -> Option<Priority> {
        let policy =
            if tid.is_multiple_of(3) { Policy::Fifo(tid as u8 % 99 + 1) } else { Policy::Fair(0) };
        Some(Priority { nice: tid as i32 % 20, policy, reset_on_fork: false })
    }

    fn run_time_ns(&mut self, tid: u32) -> Option<u64> {
        // Some never run; of the others it is not known.
        tid.is_multiple_of(3).then_some(0)
    }

    fn inherit_priority(&mut self, _: u32, _: Priority) -> bool {
        true
    }

    fn restore_priority(&mut self, _: u32, _: Priority) {}
}

#[cfg(test)]
#[path = "../../tests/contracts/host.rs"]
mod contract;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_the_fuzz_targets_fulfils_the_contract() {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        let opener = Opener { pid: 3, euid: Uid(1000), owner: Owner::User(Uid(1000)) };
        let process = driver.open(context, opener).unwrap();
        let mut host = FuzzHost::new(&[]);
        let caller = Caller { process, tid: 3, euid: Uid(1000) };
        let client = contract::Client { caller, memory: ROOM, open_fd: 0, closed_fd: 6 };
        contract::check_client(&mut host, &client);
        contract::check_mapping(&mut host, process, |_| None);
    }
}
