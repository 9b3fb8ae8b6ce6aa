//! A test environment for the driver: clients whose memory is byte vectors, and helpers for their
//! ioctls.
#![allow(dead_code)]

use std::collections::{BTreeMap, BTreeSet, HashSet};

use binder_driver::*;
use binder_uapi::*;
use zerocopy::IntoBytes;

/// Bytes of a normal client's mapping.
pub const MAPPING: u64 = 64 << 10;
/// Bytes of a normal read buffer, as in libbinder.
pub const READ_SIZE: u64 = 256;
const MAPPING_ADDRESS: u64 = 0x7000_0000_0000;
const READ_ADDRESS: u64 = 0x5000_0000_0000;
const WRITE_ADDRESS: u64 = 0x1000_0000;

/// Clients' memory and mappings.
#[derive(Default)]
pub struct FakeHost {
    /// Memory of clients, by address.
    pub memory: BTreeMap<(ProcessId, u64), Vec<u8>>,
    pub mappings: BTreeMap<ProcessId, Vec<u8>>,
    /// Offset of a process's next bytes; 0 again after each ioctl, as most clients reuse memory.
    next_address: BTreeMap<ProcessId, u64>,
    /// Opens whose memory cannot be accessed.
    pub faulting: BTreeSet<ProcessId>,
    /// Opens whose memory is late at the first access to each address in an ioctl.
    pub late: BTreeSet<ProcessId>,
    /// The memory of all opens is late.
    pub all_late: bool,
    /// Addresses of accesses in this ioctl that were late.
    answering: BTreeSet<(ProcessId, u64)>,
    /// Opens whose mappings cannot be written.
    pub unwritable: BTreeSet<ProcessId>,
    /// Processes whose address space has been replaced by execve.
    pub replaced: BTreeSet<ProcessId>,
    /// Processes to which the pids and uids of other processes are not visible.
    pub blind: BTreeSet<ProcessId>,
    /// Descriptor tables: the file behind each number.
    pub tables: BTreeMap<ProcessId, BTreeMap<u32, u64>>,
    /// Files in transit, by token.
    pub taken: BTreeMap<FileToken, u64>,
    next_token: u64,
    /// Nice values of threads, if not 0.
    pub nice: BTreeMap<u32, i32>,
    /// Real-time policies of threads.
    pub real_time: BTreeMap<u32, Policy>,
    /// Threads with `reset_on_fork`.
    pub reset_on_fork: BTreeSet<u32>,
    /// Threads that may not run at real-time priority.
    pub ordinary: BTreeSet<u32>,
    /// Threads whose priority cannot be changed.
    pub stubborn: BTreeSet<u32>,
    /// Threads that wait for a CPU all the time; others run in each tick.
    pub starved: BTreeSet<u32>,
    /// CPU time of all threads.
    pub run_time_ns: u64,
    /// The security context of all processes, if any.
    pub security_context: Option<Vec<u8>>,
    /// Number of calls of the host, by method.
    pub counts: BTreeMap<&'static str, usize>,
}

impl FakeHost {
    fn find(&mut self, process: ProcessId, address: u64, len: usize) -> Result<&mut [u8], Fault> {
        if self.faulting.contains(&process) {
            return Err(Fault::BadAddress);
        }
        let regions = self.memory.range_mut((process, 0)..=(process, address));
        let (&(owner, base), bytes) = regions.into_iter().next_back().ok_or(Fault::BadAddress)?;
        let start = (address - base) as usize;
        let end = start.checked_add(len).ok_or(Fault::BadAddress)?;
        if owner != process {
            Err(Fault::BadAddress)
        } else {
            bytes.get_mut(start..end).ok_or(Fault::BadAddress)
        }
    }

    fn be_late(&mut self, process: ProcessId, address: u64) -> Result<(), Fault> {
        let may_be_late = self.all_late || self.late.contains(&process);
        if may_be_late && self.answering.insert((process, address)) {
            Err(Fault::Late)
        } else {
            Ok(())
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    /// Reads pieces until one faults; returns how many were read.
    fn read_pieces(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        into: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        if let Err(late) = self.be_late(from.process, pieces[0].address) {
            // A blocked access keeps the buffer.
            *into = Vec::new();
            return Err(late);
        }
        let mut read = 0;
        for piece in pieces {
            if piece.len > 0 {
                let Ok(found) = self.find(from.process, piece.address, piece.len) else { break };
                into[piece.at..][..piece.len].copy_from_slice(found);
            }
            read += 1;
        }
        Ok(read)
    }
}

impl ClientMemory for FakeHost {
    fn read(&mut self, from: Caller, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.count("read");
        self.be_late(from.process, address)?;
        into.copy_from_slice(self.find(from.process, address, into.len())?);
        Ok(())
    }

    fn read_ahead(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        into: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        self.count("read_ahead");
        self.read_pieces(from, pieces, into)
    }

    fn read_parcel(
        &mut self,
        from: Caller,
        pieces: &[Piece],
        parcel: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        self.count("read_parcel");
        let read = self.read_pieces(from, pieces, parcel)?;
        if read == pieces.len() { Ok(()) } else { Err(Fault::BadAddress) }
    }

    fn write(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.be_late(to.process, address)?;
        self.write_returns(to, address, bytes)
    }

    fn write_returns(&mut self, to: Caller, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.count("write");
        self.find(to.process, address, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

impl Mappings for FakeHost {
    fn mapping(&mut self, process: ProcessId) -> Result<Option<Mapping>, Fault> {
        self.count("mapping");
        self.be_late(process, MAPPING_ADDRESS)?;
        let mapping = self.mappings.get(&process);
        Ok(mapping.map(|area| Mapping { address: MAPPING_ADDRESS, len: area.len() as u64 }))
    }

    fn has_address_space(&mut self, process: ProcessId) -> bool {
        !self.replaced.contains(&process)
    }

    fn store(&mut self, process: ProcessId, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.count("store");
        if self.unwritable.contains(&process) {
            return Err(StoreError);
        }
        let mapping = self.mappings.get_mut(&process).ok_or(StoreError)?;
        mapping[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.count("zero");
        let mapping = self.mappings.get_mut(&process).ok_or(StoreError)?;
        mapping[offset as usize..(offset + len) as usize].fill(0);
        Ok(())
    }

    fn punch(&mut self, process: ProcessId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.count("punch");
        if self.unwritable.contains(&process) {
            return Err(StoreError);
        }
        assert!(offset.is_multiple_of(4096) && len.is_multiple_of(4096) && len > 0);
        self.zero(process, offset, len)
    }
}

impl Identity for FakeHost {
    fn pid_seen_by(&mut self, receiver: ProcessId, _sender: ProcessId) -> i32 {
        if self.blind.contains(&receiver) { 0 } else { 4242 }
    }

    fn uid_seen_by(&mut self, receiver: ProcessId, uid: Uid) -> u32 {
        if self.blind.contains(&receiver) { u32::MAX } else { uid.0 }
    }

    fn security_context(&mut self, _caller: Caller) -> Result<Vec<u8>, Errno> {
        self.security_context.clone().ok_or(Errno::EINVAL)
    }
}

impl Scheduler for FakeHost {
    fn priority(&mut self, tid: u32, _: Freshness) -> Option<Priority> {
        let nice = self.nice.get(&tid).copied().unwrap_or(0);
        let policy = self.real_time.get(&tid).copied().unwrap_or(Policy::Fair(0));
        Some(Priority { nice, policy, reset_on_fork: self.reset_on_fork.contains(&tid) })
    }

    fn run_time_ns(&mut self, tid: u32) -> Option<u64> {
        if !self.starved.contains(&tid) {
            self.run_time_ns += 1;
        }
        Some(self.run_time_ns)
    }

    fn inherit_priority(&mut self, tid: u32, priority: Priority) -> bool {
        let may = match priority.policy {
            Policy::Fair(_) => !self.stubborn.contains(&tid),
            _ => !self.ordinary.contains(&tid),
        };
        if may {
            self.restore_priority(tid, priority);
        }
        may
    }

    fn restore_priority(&mut self, tid: u32, priority: Priority) {
        self.nice.insert(tid, priority.nice);
        match priority.policy {
            Policy::Fair(_) => self.real_time.remove(&tid),
            policy => self.real_time.insert(tid, policy),
        };
        if priority.reset_on_fork {
            self.reset_on_fork.insert(tid);
        } else {
            self.reset_on_fork.remove(&tid);
        }
    }
}

impl Files for FakeHost {
    fn take_file(&mut self, from: Caller, fd: u32) -> Result<FileToken, Errno> {
        let table = self.tables.get(&from.process);
        let file = *table.and_then(|table| table.get(&fd)).ok_or(Errno::EBADF)?;
        self.next_token += 1;
        let token = FileToken(self.next_token);
        self.taken.insert(token, file);
        Ok(token)
    }

    fn drop_file(&mut self, file: FileToken) {
        assert!(self.taken.remove(&file).is_some(), "{file:?} is dropped twice");
    }

    fn close_on_return(&mut self, caller: Caller, fds: &[u32]) {
        let table = self.tables.entry(caller.process).or_default();
        fds.iter().for_each(|fd| _ = table.remove(fd));
    }
}

impl FakeHost {
    /// Installs a file in a process under the lowest free number; returns the number.
    pub fn install(&mut self, process: ProcessId, file: u64) -> u32 {
        let table = self.tables.entry(process).or_default();
        let fd = (3..).find(|fd| !table.contains_key(fd)).unwrap();
        table.insert(fd, file);
        fd
    }
}

/// Result of an ioctl for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub returns: Vec<Return>,
    pub bwr: BinderWriteRead,
    pub result: Result<(), Errno>,
    pub parked: bool,
}

impl Seen {
    /// The returns without the initial `BR_NOOP` (or its replacement).
    pub fn work_returns(&self) -> &[Return] {
        assert_eq!(self.result, Ok(()), "{self:?}");
        assert!(!self.parked, "still parked");
        assert!(matches!(self.returns[0], Return::Noop | Return::SpawnLooper), "{self:?}");
        &self.returns[1..]
    }

    /// The only transaction or reply among the returns.
    pub fn parcel(&self) -> BinderTransactionData {
        let found: Vec<_> = self.returns.iter().filter_map(parcel_of).collect();
        assert_eq!(found.len(), 1, "{self:?}");
        found[0]
    }
}

pub fn parcel_of(value: &Return) -> Option<BinderTransactionData> {
    match value {
        Return::Transaction(data) | Return::Reply(data) => Some(*data),
        Return::TransactionSecCtx(data) => Some(data.transaction_data),
        _ => None,
    }
}

/// A parcel to send.
#[derive(Clone, Debug, Default)]
pub struct Parcel {
    pub data: Vec<u8>,
    pub offsets: Vec<u64>,
    pub buffers_size: Option<u64>,
}

impl Parcel {
    pub fn bytes(bytes: &[u8]) -> Self {
        Self { data: bytes.to_vec(), ..Self::default() }
    }

    pub fn object(mut self, object: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        self.offsets.push(self.data.len() as u64);
        self.data.extend_from_slice(object.as_bytes());
        self
    }

    pub fn flat(self, ty: u32, binder: u64, cookie: u64) -> Self {
        self.object(&FlatBinderObject { ty, flags: 0, binder, cookie })
    }

    pub fn bytes_behind(mut self, bytes: &[u8]) -> Self {
        self.data.extend_from_slice(bytes);
        self
    }

    pub fn fd(self, fd: u32) -> Self {
        self.flat(BINDER_TYPE_FD, fd.into(), 0)
    }

    pub fn binder(self, ptr: u64) -> Self {
        self.flat(BINDER_TYPE_BINDER, ptr, cookie_of(ptr))
    }

    pub fn handle(self, handle: u32) -> Self {
        self.flat(BINDER_TYPE_HANDLE, handle.into(), 0)
    }
}

/// The cookie that honest clients use for their object `ptr`.
pub fn cookie_of(ptr: u64) -> u64 {
    ptr ^ 0xc00c_1e00
}

pub fn name_of(ptr: u64) -> BinderPtrCookie {
    BinderPtrCookie { ptr, cookie: cookie_of(ptr) }
}

/// The driver and its clients.
#[derive(Default)]
pub struct World {
    pub driver: Driver,
    pub host: FakeHost,
    pub polled: Vec<ProcessId>,
    /// Results of freezes that waited.
    pub frozen: Vec<(FreezeId, Result<(), Errno>)>,
    /// The test checks the invariants itself.
    pub unchecked: bool,
    /// Reads that wait for files, if the test calls [`World::give`] itself.
    pub fd_deliveries: Option<Vec<(Caller, BinderWriteRead)>>,
    /// Threads that have made another ioctl first, as clients request the version.
    pub greeted: HashSet<Caller>,
}

/// Target and code of a `BC_TRANSACTION`; all zero for a `BC_REPLY`.
#[derive(Clone, Copy, Default)]
pub struct CallHead {
    pub handle: u32,
    pub code: u32,
    pub flags: u32,
}

impl World {
    pub fn new() -> (Self, ContextId) {
        let mut world = Self::default();
        let context = world.driver.add_context("binder");
        (world, context)
    }

    pub fn check(&self) {
        if !self.unchecked {
            self.driver.check_invariants().unwrap_or_else(|broken| panic!("{broken}"));
            self.check_files();
        }
    }

    /// Checks that exactly the files in transit are held by the host.
    pub fn check_files(&self) {
        let mut tokens: Vec<_> = self.driver.files_in_transit().collect();
        tokens.sort();
        assert_eq!(tokens, self.host.taken.keys().copied().collect::<Vec<_>>(), "files leak");
    }

    /// Installs a reader's files; returns the result of its read.
    pub fn give(&mut self, caller: Caller, bwr: BinderWriteRead) -> Seen {
        let files = self.driver.files_to_install(caller.process, caller.tid);
        assert!(!files.is_empty(), "nothing to give");
        let file_of = |token: &FileToken| self.host.taken[token];
        let files: Vec<u64> = files.iter().map(file_of).collect();
        let fds: Vec<u32> =
            files.into_iter().map(|file| self.host.install(caller.process, file)).collect();
        let answer = self.driver.files_installed(&mut self.host, caller.process, caller.tid, &fds);
        self.seen_or_read(caller, bwr, answer)
    }

    /// Fails to install a reader's files; returns the result of its read.
    pub fn refuse_files(&mut self, caller: Caller, bwr: BinderWriteRead) -> Seen {
        let files = self.driver.files_to_install(caller.process, caller.tid);
        assert!(!files.is_empty(), "nothing to give");
        let answer = self.driver.files_refused(&mut self.host, caller.process, caller.tid);
        self.seen_or_read(caller, bwr, answer)
    }

    fn seen_or_read(
        &mut self,
        caller: Caller,
        bwr: BinderWriteRead,
        answer: Option<WriteRead>,
    ) -> Seen {
        match answer {
            Some(answer) => self.seen(caller, answer),
            None => self.ioctl(caller, bwr, Waiting::Refused),
        }
    }

    /// Defers a reader's delivery; returns the result of its read.
    pub fn defer_files(&mut self, caller: Caller) -> Seen {
        let answer = self.driver.defer_files(&mut self.host, caller.process, caller.tid);
        self.seen(caller, answer.expect("it waits for files"))
    }

    /// Installs the files of a thread's deferred transaction. False: the driver no longer needs
    /// them.
    pub fn arrive(&mut self, caller: Caller) -> bool {
        let files = self.driver.files_to_install(caller.process, caller.tid);
        let files: Vec<u64> = files.iter().map(|token| self.host.taken[token]).collect();
        let fds: Vec<u32> =
            files.into_iter().map(|file| self.host.install(caller.process, file)).collect();
        let arrived = self.driver.files_arrived(&mut self.host, caller.process, caller.tid, &fds);
        if !arrived && let Some(table) = self.host.tables.get_mut(&caller.process) {
            table.retain(|fd, _| !fds.contains(fd));
        }
        self.check();
        arrived
    }

    /// Opens the device for a new process with a normal mapping; returns its main thread.
    pub fn process(&mut self, context: ContextId, pid: u32) -> Caller {
        let caller = self.unmapped(context, pid);
        self.map(caller, MAPPING);
        caller
    }

    /// Opens the device for a new process without a mapping.
    pub fn unmapped(&mut self, context: ContextId, pid: u32) -> Caller {
        let opener = Opener { pid, euid: Uid(1000), owner: Owner::User(Uid(pid)) };
        let process = self.driver.open(context, opener).unwrap();
        let caller = Caller { process, tid: pid, euid: Uid(1000) };
        self.greet(caller);
        caller
    }

    /// Makes another ioctl first, so that the first read does not return at once.
    pub fn greet(&mut self, caller: Caller) {
        if self.greeted.insert(caller) {
            // If the open is stale, the next ioctl returns the error.
            let _ = self.driver.note_ioctl(caller);
        }
    }

    pub fn map(&mut self, caller: Caller, len: u64) {
        self.host.mappings.insert(caller.process, vec![0xee; len as usize]);
    }

    /// A world with a context manager (pid 1) and `N` client processes (pid 10, 20, ...).
    pub fn with_manager<const N: usize>() -> (Self, Caller, [Caller; N]) {
        let (mut world, context) = Self::new();
        let manager = world.process(context, 1);
        world.driver.set_context_manager(manager, None).unwrap();
        let clients = std::array::from_fn(|i| world.process(context, 10 * (i as u32 + 1)));
        (world, manager, clients)
    }

    /// Stores bytes in the client's memory until the end of its ioctl; returns their address.
    pub fn place(&mut self, caller: Caller, bytes: &[u8]) -> u64 {
        let next = self.host.next_address.entry(caller.process).or_default();
        let address = WRITE_ADDRESS + *next;
        *next += (bytes.len() as u64).next_multiple_of(64) + 64;
        self.host.memory.insert((caller.process, address), bytes.to_vec());
        address
    }

    pub fn transaction(
        &mut self,
        caller: Caller,
        head: CallHead,
        parcel: &Parcel,
    ) -> (BinderTransactionData, Option<u64>) {
        let CallHead { handle, code, flags } = head;
        let data = BinderTransactionData {
            target: handle.into(),
            code,
            flags,
            data_size: parcel.data.len() as u64,
            offsets_size: parcel.offsets.len() as u64 * 8,
            buffer: self.place(caller, &parcel.data),
            offsets: self.place(caller, parcel.offsets.as_bytes()),
            ..BinderTransactionData::default()
        };
        (data, parcel.buffers_size)
    }

    /// A `BC_TRANSACTION` of the caller, whose data is stored in its memory.
    pub fn call(&mut self, caller: Caller, handle: u32, parcel: &Parcel) -> Command {
        let (data, buffers_size) =
            self.transaction(caller, CallHead { handle, code: 1, flags: 0 }, parcel);
        Command::Transaction { data, buffers_size }
    }

    pub fn oneway(&mut self, caller: Caller, handle: u32, code: u32, parcel: &Parcel) -> Command {
        let (data, buffers_size) =
            self.transaction(caller, CallHead { handle, code, flags: TF_ONE_WAY }, parcel);
        Command::Transaction { data, buffers_size }
    }

    pub fn reply(&mut self, caller: Caller, parcel: &Parcel) -> Command {
        let (data, buffers_size) = self.transaction(caller, CallHead::default(), parcel);
        Command::Reply { data, buffers_size }
    }

    pub fn write_read(
        &mut self,
        caller: Caller,
        commands: &[u8],
        read_size: u64,
        waiting: Waiting,
    ) -> Seen {
        let write_buffer = self.place(caller, commands);
        let read_buffer = READ_ADDRESS + (u64::from(caller.tid) << 20);
        self.host.memory.insert((caller.process, read_buffer), vec![0; read_size as usize]);
        let bwr = BinderWriteRead {
            write_size: commands.len() as u64,
            write_buffer,
            read_size,
            read_buffer,
            ..BinderWriteRead::default()
        };
        self.ioctl(caller, bwr, waiting)
    }

    /// A `BINDER_WRITE_READ` with an arbitrary argument.
    pub fn ioctl(&mut self, caller: Caller, bwr: BinderWriteRead, waiting: Waiting) -> Seen {
        self.greet(caller);
        let mut answer = self.driver.write_read(&mut self.host, caller, bwr, waiting);
        while let WriteRead::Unfinished { bwr } | WriteRead::Late { bwr } = answer {
            answer = self.driver.write_read(&mut self.host, caller, bwr, waiting);
        }
        self.host.answering.clear();
        self.host
            .memory
            .retain(|&(process, address), _| process != caller.process || address >= READ_ADDRESS);
        self.host.next_address.remove(&caller.process);
        self.seen(caller, answer)
    }

    pub fn seen(&mut self, caller: Caller, answer: WriteRead) -> Seen {
        self.check();
        if let WriteRead::InstallFds { bwr } = answer {
            match &mut self.fd_deliveries {
                Some(fd_deliveries) => fd_deliveries.push((caller, bwr)),
                None => return self.give(caller, bwr),
            }
        }
        let WriteRead::Done { bwr, result } = answer else {
            let bwr = BinderWriteRead::default();
            return Seen { returns: Vec::new(), bwr, result: Ok(()), parked: true };
        };
        let mut bytes = vec![0; bwr.read_consumed as usize];
        if !bytes.is_empty() && result.is_ok() {
            let len = bytes.len();
            let found = self.host.find(caller.process, bwr.read_buffer, len);
            bytes.copy_from_slice(found.unwrap());
        } else {
            bytes.clear();
        }
        let returns: Result<Vec<_>, _> = ReturnReader::new(&bytes).collect();
        Seen { returns: returns.unwrap(), bwr, result, parked: false }
    }

    /// Runs commands without reading.
    pub fn write(&mut self, caller: Caller, commands: &[Command]) -> Seen {
        self.write_read(caller, &encode(commands), 0, Waiting::Refused)
    }

    /// Runs commands, then reads without waiting.
    pub fn run(&mut self, caller: Caller, commands: &[Command]) -> Seen {
        self.write_read(caller, &encode(commands), READ_SIZE, Waiting::Refused)
    }

    /// Reads without waiting.
    pub fn read(&mut self, caller: Caller) -> Seen {
        self.run(caller, &[])
    }

    /// Runs commands, then waits.
    pub fn wait(&mut self, caller: Caller, commands: &[Command]) -> Seen {
        self.write_read(caller, &encode(commands), READ_SIZE, Waiting::Allowed)
    }

    /// Runs commands, then waits; no work may be available yet.
    pub fn park(&mut self, caller: Caller, commands: &[Command]) {
        let seen = self.wait(caller, commands);
        assert!(seen.parked, "{seen:?}");
    }

    /// Resumes the readers that the driver wakes; returns those whose reads are complete.
    pub fn wake(&mut self) -> Vec<(Caller, Seen)> {
        let mut answered = Vec::new();
        while let Some(wake) = self.driver.next_wake() {
            match wake {
                Wake::Poll { process } => self.polled.push(process),
                Wake::Freeze { id, result } => self.frozen.push((id, result)),
                Wake::Reader { process, tid } => {
                    let caller = Caller { process, tid, euid: Uid(1000) };
                    let answer = self.driver.resume(&mut self.host, process, tid);
                    let seen = self.seen(caller, answer);
                    if !seen.parked {
                        answered.push((caller, seen));
                    }
                }
            }
        }
        answered
    }

    /// Exactly this reader must be woken; returns the result of its read.
    pub fn woken(&mut self, caller: Caller) -> Seen {
        let mut answered = self.wake();
        assert_eq!(answered.len(), 1, "{answered:?}");
        let (who, seen) = answered.remove(0);
        assert_eq!((who.process, who.tid), (caller.process, caller.tid));
        seen
    }

    /// A signal arrives for a thread; returns whether its read has ended with `EINTR`.
    pub fn interrupt(&mut self, caller: Caller) -> bool {
        matches!(self.driver.interrupt(caller.process, caller.tid), Interrupt::Ended(_))
    }

    /// `BINDER_FREEZE` of a pid.
    pub fn freeze(&mut self, caller: Caller, pid: u32, timeout_ms: u32) -> Freeze {
        self.set_freezer(caller, BinderFreezeInfo { pid, enable: 1, timeout_ms })
    }

    /// `BINDER_FREEZE` that thaws a pid.
    pub fn thaw(&mut self, caller: Caller, pid: u32) -> Freeze {
        self.set_freezer(caller, BinderFreezeInfo { pid, enable: 0, timeout_ms: 0 })
    }

    fn set_freezer(&mut self, caller: Caller, info: BinderFreezeInfo) -> Freeze {
        let answer = self.driver.freeze(caller.process, info);
        self.check();
        answer
    }

    pub fn release(&mut self, caller: Caller) {
        self.driver.release(&mut self.host, caller.process);
        self.host.memory.retain(|&(process, _), _| process != caller.process);
        self.host.mappings.remove(&caller.process);
        self.host.tables.remove(&caller.process);
        self.check();
    }

    pub fn thread_exit(&mut self, caller: Caller) {
        self.driver.thread_exit(&mut self.host, caller.process, caller.tid);
        self.greeted.remove(&caller);
        self.check();
    }

    /// Bytes at an address of the receiver's mapping.
    pub fn mapped(&self, caller: Caller, address: u64, len: u64) -> &[u8] {
        let at = (address - MAPPING_ADDRESS) as usize;
        &self.host.mappings[&caller.process][at..at + len as usize]
    }

    /// A parcel's data as the receiver reads it.
    pub fn data(&self, caller: Caller, data: &BinderTransactionData) -> Vec<u8> {
        self.mapped(caller, data.buffer, data.data_size).to_vec()
    }

    /// A parcel's objects as the receiver reads them.
    pub fn objects(&self, caller: Caller, data: &BinderTransactionData) -> Vec<FlatBinderObject> {
        use zerocopy::FromBytes;
        let bytes = self.data(caller, data);
        let offsets = self.mapped(caller, data.offsets, data.offsets_size);
        let offsets = offsets.chunks(8).map(|o| u64::from_ne_bytes(o.try_into().unwrap()));
        offsets
            .map(|at| FlatBinderObject::read_from_prefix(&bytes[at as usize..]).unwrap().0)
            .collect()
    }

    /// Passes a new object of `owner` to `holder` through the manager, as when a service registers
    /// and is looked up; returns the holder's handle, which it has acquired. The three
    /// threads must have no pending work.
    pub fn share(&mut self, owner: Caller, ptr: u64, manager: Caller, holder: Caller) -> u32 {
        let register = self.call(owner, 0, &Parcel::default().binder(ptr));
        assert_eq!(self.write(owner, &[register]).result, Ok(()));
        let request = self.read(manager).parcel();
        let at_manager = self.objects(manager, &request)[0].handle();
        let reply = self.reply(manager, &Parcel::default());
        let free = Command::FreeBuffer(request.buffer);
        self.run(manager, &[Command::Acquire(at_manager), free, reply]).work_returns();
        let seen = self.read(owner);
        let answer = self.run_bookkeeping(owner, &seen);
        self.write(owner, &[Command::FreeBuffer(answer.unwrap().buffer)]);
        let lookup = self.call(holder, 0, &Parcel::default());
        assert_eq!(self.write(holder, &[lookup]).result, Ok(()));
        let request = self.read(manager).parcel();
        let reply = self.reply(manager, &Parcel::default().handle(at_manager));
        let free = Command::FreeBuffer(request.buffer);
        self.run(manager, &[free, reply, Command::Release(at_manager)]).work_returns();
        let answer = self.read(holder).parcel();
        let handle = self.objects(holder, &answer)[0].handle();
        let free = Command::FreeBuffer(answer.buffer);
        self.write(holder, &[Command::Acquire(handle), free]);
        handle
    }

    /// Acknowledges the node returns; returns the transaction among them.
    pub fn run_bookkeeping(&mut self, owner: Caller, seen: &Seen) -> Option<BinderTransactionData> {
        let mut done = Vec::new();
        let mut parcel = None;
        for value in seen.work_returns() {
            match *value {
                Return::IncRefs(node) => done.push(Command::IncRefsDone(node)),
                Return::Acquire(node) => done.push(Command::AcquireDone(node)),
                ref other => parcel = parcel_of(other).or(parcel),
            }
        }
        self.write(owner, &done);
        parcel
    }
}

pub fn encode(commands: &[Command]) -> Vec<u8> {
    let mut bytes = Vec::new();
    commands.iter().for_each(|command| command.write_to(&mut bytes));
    bytes
}
