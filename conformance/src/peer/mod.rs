//! One thread of a process with one open of the device: the operations of scripts. Every operation
//! is a line of the transcript.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use binder_uapi::ioctl::*;
use binder_uapi::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::actor::{MMAP, Order};
use crate::arena::Arena;
use crate::describe::{Describe, errno_name};
use crate::process::Process;
use crate::shared::{Outcome, Shared, Stop, Threads};
use crate::transaction::Tx;

mod ioctls;

/// Bytes that a client of libbinder maps.
pub const MAP_LEN: u64 = (1 << 20) - 2 * 4096;
/// Size of a normal read buffer, bytes.
pub const READ_LEN: usize = 512;

/// One open of the device; shared by the threads that use it.
#[derive(Default)]
struct Open {
    fd: Cell<i32>,
    map: Cell<Option<(u64, u64)>>,
    /// Indices of the threads that have entered the looper as part of the setting.
    entered: RefCell<Vec<usize>>,
}

/// A pending `BINDER_WRITE_READ`.
struct Pending {
    bwr: u64,
    early: Option<i64>,
}

/// Result of one `BINDER_WRITE_READ`.
#[derive(Debug)]
pub struct Got {
    /// 0, or the errno.
    pub errno: i32,
    /// The returns, in order.
    pub returns: Vec<Return>,
}

impl Got {
    /// The transaction or reply among the returns.
    pub fn incoming(&self) -> Result<BinderTransactionData, Stop> {
        let found = self.returns.iter().find_map(|item| match item {
            Return::Transaction(data) | Return::Reply(data) => Some(*data),
            Return::TransactionSecCtx(data) => Some(data.transaction_data),
            _ => None,
        });
        found.ok_or_else(|| Stop("no transaction or reply came".to_owned()))
    }
}

/// A thread with an open of the device.
#[derive(Clone)]
pub struct Peer {
    shared: Rc<Shared>,
    process: Rc<Process>,
    thread: usize,
    label: String,
    open: Rc<Open>,
    pending: Rc<RefCell<Option<Pending>>>,
}

impl Peer {
    /// The first thread of a process, without an open yet.
    pub fn new(shared: Rc<Shared>, process: Rc<Process>) -> Self {
        let label = format!("P{}", process.number);
        let open = Rc::new(Open { fd: Cell::new(-1), ..Open::default() });
        Self { shared, process, thread: 0, label, open, pending: Rc::default() }
    }

    /// One more thread on the same open.
    pub fn new_thread(&self) -> Result<Self, Stop> {
        let thread = self.process.start_thread()?;
        let label = format!("P{}/T{}", self.process.number, thread + 1);
        Ok(Self { thread, label, pending: Rc::default(), ..self.clone() })
    }

    /// The same thread, to open the device once more.
    pub fn second_open(&self) -> Self {
        let open = Rc::new(Open { fd: Cell::new(-1), ..Open::default() });
        Self { open, label: format!("{}'s other open", self.label), ..self.clone() }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.pid() as u32
    }

    /// Memory at the same address in the stage and the actor.
    pub fn arena(&self) -> &Arena {
        self.process.arena(self.thread)
    }

    /// The descriptor of the open.
    pub fn fd(&self) -> i32 {
        self.open.fd.get()
    }

    /// Sets the descriptor of the open, which was obtained in another way.
    pub fn adopt_fd(&self, fd: i32) {
        self.open.fd.set(fd);
    }

    /// Adds a line about this peer to the transcript.
    pub fn log(&self, line: impl AsRef<str>) {
        self.shared.log(format!("{} {}", self.label, line.as_ref()));
    }

    // --- system calls ---

    /// Makes a system call that should return; returns its result or a negative errno.
    pub fn call(&self, number: libc::c_long, arguments: [u64; 6]) -> Result<i64, Stop> {
        self.process.order(self.thread, Order::Call(number, arguments))?;
        self.wait(self.shared.patience.hangs)?.ok_or_else(|| Stop(format!("{} hangs", self.label)))
    }

    fn wait(&self, patience: Duration) -> Result<Option<i64>, Stop> {
        Ok(self.process.answer(self.thread, patience)?)
    }

    fn logged(&self, what: &str, result: i64) -> i64 {
        match result {
            0.. => self.log(format!("{what} = ok")),
            error => self.log(format!("{what} = {}", errno_name(-error as i32))),
        }
        result
    }

    /// Opens the device with these flags besides `O_RDWR|O_CLOEXEC`.
    pub fn open(&self, flags: i32) -> Result<i64, Stop> {
        let path = self.arena().place(self.shared.device.as_bytes_with_nul());
        let flags = flags | libc::O_RDWR | libc::O_CLOEXEC;
        let at = libc::AT_FDCWD as i64 as u64;
        let result = self.call(libc::SYS_openat, [at, path, flags as u64, 0, 0, 0])?;
        if result >= 0 {
            self.open.fd.set(result as i32);
        }
        let mode = if flags & libc::O_NONBLOCK != 0 { "open nonblocking" } else { "open" };
        Ok(self.logged(mode, result))
    }

    /// Maps the device with this protection and these flags.
    pub fn map_as(&self, len: u64, access: i32, flags: i32) -> Result<i64, Stop> {
        let fd = self.fd() as u64;
        let arguments = [0, len, access as u64, flags as u64, fd, 0];
        let result = self.call(MMAP, arguments)?;
        if result > 0 {
            self.open.map.set(Some((result as u64, len)));
            self.shared.names.add_mapping(&self.process, result as u64, len);
        }
        let writable = if access & libc::PROT_WRITE != 0 { " writable" } else { "" };
        let shared = if flags & libc::MAP_SHARED != 0 { " shared" } else { "" };
        Ok(self.logged(&format!("mmap {len}{writable}{shared}"), result))
    }

    /// Maps the device like a library.
    pub fn map(&self, len: u64) -> Result<i64, Stop> {
        self.map_as(len, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
    }

    /// Address and length of the mapping.
    pub fn mapping(&self) -> Result<(u64, u64), Stop> {
        self.open.map.get().ok_or_else(|| Stop(format!("{} has no mapping", self.label)))
    }

    /// Removes the mapping.
    pub fn unmap(&self) -> Outcome {
        let (address, len) = self.mapping()?;
        let result = self.call(libc::SYS_munmap, [address, len, 0, 0, 0, 0])?;
        self.logged("munmap", result);
        Ok(())
    }

    /// Closes the device.
    pub fn close(&self) -> Outcome {
        let result = self.call(libc::SYS_close, [self.fd() as u64, 0, 0, 0, 0, 0])?;
        self.logged("close", result);
        Ok(())
    }

    /// Opens, requests the version like a library, and maps; one line in the transcript.
    pub fn set_up(&self, flags: i32, map_len: u64) -> Outcome {
        let path = self.arena().place(self.shared.device.as_bytes_with_nul());
        let all = (flags | libc::O_RDWR | libc::O_CLOEXEC) as u64;
        let at = libc::AT_FDCWD as i64 as u64;
        let fd = self.call(libc::SYS_openat, [at, path, all, 0, 0, 0])?;
        if fd < 0 {
            return Err(Stop(format!("open: {}", errno_name(-fd as i32))));
        }
        self.open.fd.set(fd as i32);
        let version = self.arena().place(&[0; 4]);
        let request = u64::from(BINDER_VERSION);
        let result = self.call(libc::SYS_ioctl, [fd as u64, request, version, 0, 0, 0])?;
        if result < 0 {
            return Err(Stop(format!("BINDER_VERSION: {}", errno_name(-result as i32))));
        }
        if map_len > 0 {
            let kind = (libc::MAP_PRIVATE | libc::MAP_NORESERVE) as u64;
            let arguments = [0, map_len, libc::PROT_READ as u64, kind, fd as u64, 0];
            let map = self.call(MMAP, arguments)?;
            if map < 0 {
                return Err(Stop(format!("mmap: {}", errno_name(-map as i32))));
            }
            self.open.map.set(Some((map as u64, map_len)));
            self.shared.names.add_mapping(&self.process, map as u64, map_len);
        }
        let blocking = if flags & libc::O_NONBLOCK == 0 { ", blocking" } else { "" };
        let mapped = match map_len {
            0 => ", unmapped".to_owned(),
            MAP_LEN => String::new(),
            len => format!(", {len} bytes"),
        };
        self.log(format!("sets up{blocking}{mapped}"));
        Ok(())
    }

    /// Whether a read without work blocks.
    pub fn is_blocking(&self) -> Result<bool, Stop> {
        let arguments = [self.fd() as u64, libc::F_GETFL as u64, 0, 0, 0, 0];
        let flags = self.call(libc::SYS_fcntl, arguments)?;
        Ok(flags & i64::from(libc::O_NONBLOCK) == 0)
    }

    // --- BINDER_WRITE_READ ---

    fn describing<T>(&self, describe: impl FnOnce(&Describe<'_>) -> T) -> T {
        let read = |address, len| match self.process.arena_of(address) {
            Some(arena) => arena.get(address, len).ok_or(libc::EFAULT),
            // The thread is in a call and cannot read its memory; the address is not one of a
            // buffer then.
            None if self.pending.borrow().is_some() => Err(libc::EFAULT),
            None => self.process.peek(self.thread, address, len),
        };
        let names = &self.shared.names;
        describe(&Describe { names, process: &self.process, read: &read })
    }

    /// Starts a `BINDER_WRITE_READ` with these commands and a read buffer of `room` bytes.
    pub fn start_bytes(&self, stream: &[u8], room: usize) -> Outcome {
        self.settle()?;
        let write_buffer = if stream.is_empty() { 0 } else { self.arena().place(stream) };
        let bwr = BinderWriteRead {
            write_size: stream.len() as u64,
            write_consumed: 0,
            write_buffer,
            read_size: room as u64,
            read_consumed: 0,
            read_buffer: if room == 0 { 0 } else { self.arena().returns() },
        };
        for line in self.describing(|d| d.commands(stream)) {
            self.log(format!("> {line}"));
        }
        self.start_bwr(bwr)
    }

    /// Makes this thread what the setting says, once.
    fn settle(&self) -> Outcome {
        let is_new = !self.open.entered.borrow().contains(&self.thread);
        if self.shared.threads == Threads::Plain || !is_new {
            return Ok(());
        }
        self.open.entered.borrow_mut().push(self.thread);
        let stream = encode(&[Command::EnterLooper]);
        let bwr = BinderWriteRead {
            write_size: stream.len() as u64,
            write_buffer: self.arena().place(&stream),
            ..BinderWriteRead::default()
        };
        self.call(libc::SYS_ioctl, self.write_read(&bwr)).map(drop)
    }

    /// Arguments of an `ioctl(BINDER_WRITE_READ)`; the third is the address of its argument.
    fn write_read(&self, bwr: &BinderWriteRead) -> [u64; 6] {
        let at = self.arena().place(bwr.as_bytes());
        [self.fd() as u64, BINDER_WRITE_READ.into(), at, 0, 0, 0]
    }

    /// Starts a `BINDER_WRITE_READ` with this argument.
    pub fn start_bwr(&self, bwr: BinderWriteRead) -> Outcome {
        assert!(bwr.read_size <= Arena::returns_len() as u64 || bwr.read_buffer == 0);
        let arguments = self.write_read(&bwr);
        self.process.order(self.thread, Order::Call(libc::SYS_ioctl, arguments))?;
        *self.pending.borrow_mut() = Some(Pending { bwr: arguments[2], early: None });
        Ok(())
    }

    /// Starts a `BINDER_WRITE_READ` with commands.
    pub fn start(&self, commands: &[Command], room: usize) -> Outcome {
        self.start_bytes(&encode(commands), room)
    }

    /// Logs whether the pending call blocks.
    pub fn blocks(&self) -> Outcome {
        let answer = self.wait(self.shared.patience.blocks)?;
        let mut pending = self.pending.borrow_mut();
        let Some(pending) = pending.as_mut() else {
            return Err(Stop(format!("{} has no call under way", self.label)));
        };
        match answer {
            None => self.log("... blocks"),
            Some(result) => {
                pending.early = Some(result);
                self.log("... does not block");
            }
        }
        Ok(())
    }

    /// Waits for the pending call and logs its result.
    pub fn finish(&self) -> Result<Got, Stop> {
        let early = self.pending.borrow().as_ref().map(|pending| (pending.bwr, pending.early));
        let Some((bwr_at, early)) = early else {
            return Err(Stop(format!("{} has no call under way", self.label)));
        };
        let result = match early {
            Some(result) => result,
            None => match self.wait(self.shared.patience.hangs)? {
                Some(result) => result,
                None => return Err(Stop(format!("{} hangs in BINDER_WRITE_READ", self.label))),
            },
        };
        *self.pending.borrow_mut() = None;
        let after = self.arena().get(bwr_at, size_of::<BinderWriteRead>()).unwrap_or_default();
        let bwr = BinderWriteRead::read_from_bytes(&after).unwrap_or_default();
        let errno = if result < 0 { -result as i32 } else { 0 };
        self.report(errno, &bwr);
        Ok(Got { errno, returns: self.returns(&bwr) })
    }

    fn report(&self, errno: i32, bwr: &BinderWriteRead) {
        let mut line = match errno {
            0 => "= ok".to_owned(),
            errno => format!("= {}", errno_name(errno)),
        };
        if bwr.write_size != 0 || bwr.write_consumed != 0 {
            line += &format!(", wrote {}/{}", bwr.write_consumed, bwr.write_size);
        }
        if bwr.read_size != 0 || bwr.read_consumed != 0 {
            line += &format!(", read {}/{}", bwr.read_consumed, bwr.read_size);
        }
        self.log(line);
    }

    fn returns(&self, bwr: &BinderWriteRead) -> Vec<Return> {
        let len = bwr.read_consumed.min(Arena::returns_len() as u64) as usize;
        let stream = self.arena().get(bwr.read_buffer, len).unwrap_or_default();
        let mut items = Vec::new();
        for item in ReturnReader::new(&stream) {
            match item {
                Ok(item) => {
                    self.log(format!("< {}", self.describing(|d| d.item(&item))));
                    items.push(item);
                }
                Err(error) => self.log(format!("< does not parse: {error}")),
            }
        }
        items
    }

    /// Runs commands and reads, with a read buffer of `room` bytes.
    pub fn exchange(&self, commands: &[Command], room: usize) -> Result<Got, Stop> {
        self.start(commands, room)?;
        self.finish()
    }

    /// Runs commands without reading.
    pub fn write(&self, commands: &[Command]) -> Result<Got, Stop> {
        self.exchange(commands, 0)
    }

    /// Writes bytes that may be no valid commands.
    pub fn write_bytes(&self, stream: &[u8]) -> Result<Got, Stop> {
        self.start_bytes(stream, 0)?;
        self.finish()
    }

    /// Reads.
    pub fn read(&self) -> Result<Got, Stop> {
        self.exchange(&[], READ_LEN)
    }

    /// Reads until a transaction or reply is received; acknowledges references meanwhile.
    pub fn receive(&self) -> Result<BinderTransactionData, Stop> {
        for _ in 0..16 {
            let got = self.read()?;
            if got.errno != 0 {
                break;
            }
            self.acknowledge(&got)?;
            if let Ok(data) = got.incoming() {
                return Ok(data);
            }
        }
        Err(Stop(format!("no transaction or reply came to {}", self.label)))
    }

    /// Reads until there is no work (at most 16 times); for nonblocking opens.
    pub fn drain(&self) -> Outcome {
        for _ in 0..16 {
            let got = self.read()?;
            if got.errno != 0 {
                return Ok(());
            }
            self.acknowledge(&got)?;
        }
        Err(Stop(format!("{} never runs out of returns", self.label)))
    }

    /// Acknowledges the references among the returns.
    pub fn acknowledge(&self, got: &Got) -> Outcome {
        let acknowledgements: Vec<Command> = got
            .returns
            .iter()
            .filter_map(|item| match item {
                Return::IncRefs(node) => Some(Command::IncRefsDone(*node)),
                Return::Acquire(node) => Some(Command::AcquireDone(*node)),
                _ => None,
            })
            .collect();
        if acknowledgements.is_empty() {
            return Ok(());
        }
        self.write(&acknowledgements).map(drop)
    }

    /// Sends a transaction and reads at once.
    pub fn send(&self, tx: &Tx) -> Result<Got, Stop> {
        self.exchange(&[tx.transaction(self.arena())], READ_LEN)
    }

    /// Sends a transaction without reading.
    pub fn post(&self, tx: &Tx) -> Result<Got, Stop> {
        self.write(&[tx.transaction(self.arena())])
    }

    /// Sends a reply and reads at once.
    pub fn reply(&self, tx: &Tx) -> Result<Got, Stop> {
        self.exchange(&[tx.reply(self.arena())], READ_LEN)
    }

    /// Frees a received buffer.
    pub fn free(&self, data: &BinderTransactionData) -> Outcome {
        self.write(&[Command::FreeBuffer(data.buffer)]).map(drop)
    }

    /// Bytes of the actor's memory.
    pub fn peek(&self, address: u64, len: usize) -> Result<Vec<u8>, i32> {
        self.process.peek(self.thread, address, len)
    }

    /// The handle in the object at the `index`th offset of what was received.
    pub fn handle_in(&self, data: &BinderTransactionData, index: u64) -> Result<u32, Stop> {
        let lost = |_| Stop(format!("{} cannot read its buffer", self.label));
        let offset = self.peek(data.offsets + 8 * index, 8).map_err(lost)?;
        let offset = u64::from_ne_bytes(offset.try_into().unwrap_or_default());
        let object = self.peek(data.buffer.wrapping_add(offset), 24).map_err(lost)?;
        let object = FlatBinderObject::read_from_bytes(&object).unwrap_or_default();
        if !matches!(object.ty, BINDER_TYPE_HANDLE | BINDER_TYPE_WEAK_HANDLE) {
            return Err(Stop(format!("{} was not given a handle", self.label)));
        }
        Ok(object.handle())
    }

    // --- poll, signals, ends ---

    /// Waits for actions that a driver takes by itself after a death: as long as the time after
    /// which a call counts as blocking.
    pub fn let_time_pass(&self) {
        std::thread::sleep(self.shared.patience.blocks);
    }

    /// Number and arguments of `poll` for the entry at an address.
    #[cfg(not(target_arch = "aarch64"))]
    fn poll_call(&self, at: u64, patience_ms: u64) -> (libc::c_long, [u64; 6]) {
        (libc::SYS_poll, [at, 1, patience_ms, 0, 0, 0])
    }

    /// Number and arguments of `ppoll` for the entry at an address: arm64 has no `poll`.
    #[cfg(target_arch = "aarch64")]
    fn poll_call(&self, at: u64, patience_ms: u64) -> (libc::c_long, [u64; 6]) {
        let timeout = [patience_ms / 1000, patience_ms % 1000 * 1_000_000];
        let timeout = self.arena().place(timeout.as_bytes());
        (libc::SYS_ppoll, [at, 1, timeout, 0, 0, 0])
    }

    /// `poll` for input, without waiting or up to `patience_ms`.
    pub fn poll(&self, patience_ms: u64) -> Outcome {
        #[derive(IntoBytes, Immutable)]
        #[repr(C)]
        struct Entry(i32, i16, i16);
        let events = libc::POLLIN | libc::POLLOUT;
        let at = self.arena().place(Entry(self.fd(), events, 0).as_bytes());
        let (number, arguments) = self.poll_call(at, patience_ms);
        let result = self.call(number, arguments)?;
        let after = self.arena().get(at, 8).unwrap_or_default();
        let events = i16::from_ne_bytes([after[6], after[7]]);
        self.log(match result {
            0 => "poll = nothing".to_owned(),
            1 => format!("poll = {}", event_names(events)),
            error => format!("poll = {}", errno_name(-error as i32)),
        });
        Ok(())
    }

    /// Starts a `poll` for input that waits; [`Self::finish_poll`] waits for its result.
    pub fn start_poll(&self) -> Result<u64, Stop> {
        let mut entry = [0u8; 8];
        entry[..4].copy_from_slice(&self.fd().to_ne_bytes());
        entry[4..6].copy_from_slice(&libc::POLLIN.to_ne_bytes());
        let at = self.arena().place(&entry);
        let patience = self.shared.patience.hangs.as_millis() as u64;
        let (number, arguments) = self.poll_call(at, patience);
        self.process.order(self.thread, Order::Call(number, arguments))?;
        if self.wait(self.shared.patience.blocks)?.is_some() {
            return Err(Stop(format!("{}'s poll does not wait", self.label)));
        }
        self.log("poll ... waits");
        Ok(at)
    }

    /// Waits for the poll of [`Self::start_poll`].
    pub fn finish_poll(&self, at: u64) -> Outcome {
        let hangs = self.shared.patience.hangs * 2;
        let result = self.wait(hangs)?.ok_or_else(|| Stop("poll hangs".to_owned()))?;
        let after = self.arena().get(at, 8).unwrap_or_default();
        let events = i16::from_ne_bytes([after[6], after[7]]);
        self.log(match result {
            0 => "... poll = nothing, time is up".to_owned(),
            1 => format!("... poll = {}", event_names(events)),
            error => format!("... poll = {}", errno_name(-error as i32)),
        });
        Ok(())
    }

    /// Catches `SIGUSR1` from now on.
    pub fn catch_signal(&self, flags: i32) -> Outcome {
        self.process.order(self.thread, Order::CatchSignal(flags))?;
        self.wait(self.shared.patience.hangs)?;
        Ok(())
    }

    /// Sends `SIGUSR1` to this thread.
    pub fn interrupt(&self) -> Outcome {
        self.log("gets a signal");
        Ok(self.process.signal(self.thread, libc::SIGUSR1)?)
    }

    /// Ends this thread; not the first of a process.
    pub fn leave(&self) -> Outcome {
        self.log("ends, without a word to the driver");
        self.process.order(self.thread, Order::Leave)?;
        self.wait(self.shared.patience.hangs)?;
        Ok(())
    }

    /// Ends the process by `exit_group`.
    pub fn exit_group(&self) -> Outcome {
        self.log("exits");
        self.process.order(self.thread, Order::Call(libc::SYS_exit_group, [0; 6]))?;
        if self.process.has_ended() {
            Ok(())
        } else {
            Err(Stop(format!("{} does not end", self.label)))
        }
    }

    /// Ends the process with `SIGKILL`.
    pub fn die(&self) -> Outcome {
        self.log("dies");
        if self.process.kill() {
            Ok(())
        } else {
            Err(Stop(format!("{} survives SIGKILL", self.label)))
        }
    }
}

fn event_names(events: i16) -> String {
    let known = [
        (libc::POLLIN, "IN"),
        (libc::POLLOUT, "OUT"),
        (libc::POLLERR, "ERR"),
        (libc::POLLHUP, "HUP"),
        (libc::POLLNVAL, "NVAL"),
    ];
    let names: Vec<&str> =
        known.iter().filter(|(bit, _)| events & bit != 0).map(|(_, name)| *name).collect();
    names.join("|")
}

/// Commands as bytes.
pub fn encode(commands: &[Command]) -> Vec<u8> {
    let mut stream = Vec::new();
    for command in commands {
        command.write_to(&mut stream);
    }
    stream
}
