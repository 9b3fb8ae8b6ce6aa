//! The driver core with clients that send arbitrary requests.

use binder_driver::state::{self, SavedDriver};
use binder_driver::*;
use binder_uapi::{
    BINDER_TYPE_BINDER, BinderFreezeInfo, BinderTransactionData, BinderWriteRead, Command,
    FLAT_BINDER_FLAG_ACCEPTS_FDS, FlatBinderObject, Return, ReturnReader, TF_ACCEPT_FDS,
};

use crate::host::{FuzzHost, INPUT, ROOM};

/// Address of the read buffer, behind the commands.
const RETURNS: u64 = ROOM + 8192;

struct World {
    driver: Driver,
    host: FuzzHost,
    context: ContextId,
    opens: [Option<ProcessId>; 3],
    next_pid: u32,
}

impl World {
    /// Three opens, the first of them the context manager.
    fn new(input: &[u8]) -> Self {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        let host = FuzzHost::new(input);
        let mut world = Self { driver, host, context, opens: [None; 3], next_pid: 1 };
        (0..3).for_each(|at| world.open(at));
        world
    }

    fn open(&mut self, at: usize) {
        let opener = Opener { pid: self.next_pid, euid: Uid(1000), owner: Owner::User(Uid(1000)) };
        self.next_pid += 1;
        self.opens[at] = self.driver.open(self.context, opener).ok();
        if at == 0 {
            let flags = FLAT_BINDER_FLAG_ACCEPTS_FDS | 0x1000;
            let object = FlatBinderObject { ty: BINDER_TYPE_BINDER, flags, binder: 0, cookie: 0 };
            let caller = self.caller(0, 0);
            let _ = self.driver.set_context_manager(caller, Some(object));
        }
    }

    fn caller(&self, at: usize, thread: u8) -> Caller {
        let process = self.opens[at].unwrap_or_default();
        Caller { process, tid: 10 * (at as u32 + 1) + u32::from(thread % 3), euid: Uid(1000) }
    }

    /// Executes one BINDER_WRITE_READ; returns the content of the read buffer.
    fn write_read(&mut self, caller: Caller, commands: &[u8], waiting: Waiting) -> Vec<u8> {
        let len = commands.len().min(8192);
        self.host.room[..len].copy_from_slice(&commands[..len]);
        let bwr = BinderWriteRead {
            write_size: len as u64,
            write_buffer: ROOM,
            read_size: 256,
            read_buffer: RETURNS,
            ..Default::default()
        };
        let mut answer = self.driver.write_read(&mut self.host, caller, bwr, waiting);
        while let WriteRead::Unfinished { bwr } = answer {
            self.check();
            answer = self.driver.write_read(&mut self.host, caller, bwr, waiting);
        }
        let returned = self.finish(caller, answer);
        self.wake();
        returned
    }

    fn finish(&mut self, caller: Caller, answer: WriteRead) -> Vec<u8> {
        let answer = match answer {
            WriteRead::InstallFds { .. } => {
                let files = self.driver.files_to_install(caller.process, caller.tid);
                let fds: Vec<u32> = (100..).take(files.len()).collect();
                let (process, tid) = (caller.process, caller.tid);
                if files.len() % 2 == 1 {
                    self.driver.files_installed(&mut self.host, process, tid, &fds)
                } else {
                    self.driver.files_refused(&mut self.host, process, tid)
                }
            }
            answer => Some(answer),
        };
        let Some(WriteRead::Done { bwr, .. }) = answer else { return Vec::new() };
        assert!(bwr.write_consumed <= bwr.write_size && bwr.read_consumed <= bwr.read_size);
        let at = (RETURNS - ROOM) as usize;
        self.host.room[at..at + bwr.read_consumed as usize].to_vec()
    }

    fn wake(&mut self) {
        while let Some(wake) = self.driver.next_wake() {
            if let Wake::Reader { process, tid } = wake {
                let answer = self.driver.resume(&mut self.host, process, tid);
                self.finish(Caller { process, tid, euid: Uid(1000) }, answer);
            }
        }
    }

    fn check(&self) {
        if let Err(broken) = self.driver.check_invariants() {
            panic!("{broken}");
        }
    }

    /// Closes all opens; afterwards the driver must be empty.
    fn end(mut self) {
        for open in self.opens.into_iter().flatten() {
            self.driver.release(&mut self.host, open);
        }
        while self.driver.next_wake().is_some() {}
        self.check();
        assert!(self.driver.is_empty() && self.host.files.is_empty(), "something is left");
    }
}

fn split(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    bytes.split_at(at.min(bytes.len()))
}

/// The input is a sequence of steps: a byte for the action, one for the caller; then the commands
/// of an ioctl, with their length in words in front.
pub fn commands(input: &[u8]) {
    run(input).end();
}

/// The state of the driver after these steps.
pub fn state_after(input: &[u8]) -> Vec<u8> {
    let written = state::write(&SavedDriver::new(&run(input).driver));
    written.expect("a driver's state is written")
}

fn run(input: &[u8]) -> World {
    let mut world = World::new(input);
    let mut rest = input;
    for _ in 0..64 {
        let [what, who, tail @ ..] = rest else { break };
        rest = tail;
        let at = usize::from(who % 3);
        let caller = world.caller(at, who / 3);
        match what % 16 {
            0..9 => {
                let (len, tail) = split(rest, 1);
                let words = len.first().copied().unwrap_or_default();
                let (commands, tail) = split(tail, usize::from(words) * 4);
                rest = tail;
                let waiting = if what & 0x10 != 0 { Waiting::Allowed } else { Waiting::Refused };
                world.write_read(caller, commands, waiting);
            }
            9 => world.driver.thread_exit(&mut world.host, caller.process, caller.tid),
            10 => {
                if let Some(open) = world.opens[at].take() {
                    world.driver.release(&mut world.host, open);
                }
                world.open(at);
            }
            11 => {
                let pid = u32::from(who / 8 % 4);
                let info = BinderFreezeInfo { pid, enable: u32::from(what >> 7), timeout_ms: 0 };
                if let Freeze::Waiting(id) = world.driver.freeze(caller.process, info) {
                    let _ = world.driver.freeze_timed_out(id);
                }
            }
            12 if who & 0x80 != 0 => _ = world.driver.release_held_reads(),
            12 => _ = world.driver.interrupt(caller.process, caller.tid),
            13 => drop(world.driver.reclaim(&mut world.host, u32::from(who / 16))),
            14 => world.host.faulting = (who & 0x80 != 0).then_some(caller.process),
            _ => world.host.unwritable = (who & 0x80 != 0).then_some(caller.process),
        }
        world.wake();
        world.check();
    }
    world
}

/// The input is a call: flags, number of offsets, bytes of extra buffers, then the offsets and the
/// data.
pub fn objects(input: &[u8]) {
    let [flags, offsets, extra, tail @ ..] = input else { return };
    let offsets = usize::from(offsets % 16);
    let (short, data) = split(tail, 2 * offsets);
    let mut memory: Vec<u8> = short
        .chunks_exact(2)
        .flat_map(|offset| u64::from(u16::from_le_bytes([offset[0], offset[1]])).to_le_bytes())
        .collect();
    let offsets_size = memory.len() as u64;
    memory.extend_from_slice(data);
    let mut world = World::new(&memory);
    let call = BinderTransactionData {
        code: 1,
        // One-way or not, cleared or not; files are accepted in the reply.
        flags: TF_ACCEPT_FDS | u32::from(flags & 1) | u32::from(flags & 0x20),
        data_size: data.len() as u64,
        offsets_size,
        buffer: INPUT + offsets_size,
        offsets: INPUT,
        ..Default::default()
    };
    let buffers_size = Some(u64::from(*extra) * 8);
    let send = |world: &mut World, caller: Caller, command: Command| {
        let mut bytes = Vec::new();
        command.write_to(&mut bytes);
        let returned = world.write_read(caller, &bytes, Waiting::Refused);
        world.check();
        returned
    };
    let (manager, client) = (world.caller(0, 0), world.caller(1, 0));
    send(&mut world, client, Command::Transaction { data: call, buffers_size });
    let taken = send(&mut world, manager, Command::EnterLooper);
    let received = ReturnReader::new(&taken).filter_map(Result::ok).find_map(|value| match value {
        Return::Transaction(data) => Some(data),
        Return::TransactionSecCtx(data) => Some(data.transaction_data),
        _ => None,
    });
    if let Some(data) = received {
        send(&mut world, manager, Command::Reply { data: call, buffers_size });
        send(&mut world, manager, Command::FreeBuffer(data.buffer));
    }
    send(&mut world, client, Command::EnterLooper);
    world.end();
}
