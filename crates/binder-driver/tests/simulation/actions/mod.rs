//! Random actions of the simulation.

mod commands;

use std::collections::{BTreeMap, VecDeque};

use binder_driver::state::{self, SavedDriver};
use binder_driver::*;
use binder_uapi::*;

use crate::client::{Client, Frame};
use crate::common::*;
use crate::random::Random;

const PROCESSES: usize = 6;
const THREADS: u64 = 4;
const OBJECTS: u64 = 8;
const RECENT_STEPS: usize = 40;
/// The object of each context manager.
const MANAGER: Option<FlatBinderObject> = Some(FlatBinderObject {
    ty: BINDER_TYPE_BINDER,
    flags: FLAT_BINDER_FLAG_ACCEPTS_FDS,
    binder: 0,
    cookie: 0,
});
/// The code of one-way calls that replace each other; the codes of all others are unique and
/// ascending.
pub const UPDATE_CODE: u32 = u32::MAX;

/// Events around the driver that must not change what clients receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Disturbance {
    None,
    /// At every step, the driver is replaced by one that is read back from its state.
    Restarts,
    /// Each access of an ioctl to a client's memory is late once.
    LateMemory,
}

pub struct Simulation {
    pub step: u64,
    pub digest: u64,
    /// The last steps, for failure reports.
    pub log: VecDeque<String>,
    /// Number of each return that was received.
    pub returns: BTreeMap<u32, u64>,
    random: Random,
    disturbance: Disturbance,
    pub world: World,
    contexts: [ContextId; 2],
    clients: BTreeMap<ProcessId, Client>,
    next_pid: u32,
    next_code: u32,
    next_cookie: u64,
    /// Pending freezes.
    freezes: Vec<FreezeId>,
}

impl Simulation {
    pub fn new(seed: u64, disturbance: Disturbance) -> Self {
        let (mut world, first) = World::new();
        // The invariants are checked once a step.
        world.unchecked = true;
        world.fd_deliveries = Some(Vec::new());
        world.host.all_late = disturbance == Disturbance::LateMemory;
        let contexts = [first, world.driver.add_context("hwbinder")];
        Self {
            step: 0,
            digest: 0,
            log: VecDeque::new(),
            returns: BTreeMap::new(),
            random: Random::new(seed),
            disturbance,
            world,
            contexts,
            clients: BTreeMap::new(),
            next_pid: 0,
            next_code: 0,
            next_cookie: 0,
            freezes: Vec::new(),
        }
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        if self.log.len() == RECENT_STEPS {
            self.log.pop_front();
        }
        self.log.push_back(format!("{}: {what}", self.step));
    }

    pub fn step(&mut self) {
        self.step += 1;
        if self.random.one_in(10) {
            self.world.host.faulting.clear();
            self.world.host.unwritable.clear();
        }
        match self.random.below(100) {
            0 if self.clients.len() > 1 && self.random.one_in(4) => self.release_one(),
            0..3 => self.open(),
            3 => self.thread_exit(),
            4..8 => self.interrupt(),
            8 => self.flush(),
            9..12 => self.poll(),
            12 => self.become_manager(),
            13 => self.lie(),
            14 => self.fault(),
            15 | 16 => self.freeze(),
            17 => self.end_freeze(),
            18..22 => self.give(),
            22 => self.reclaim(),
            23 => self.release_held(),
            _ => self.act(),
        }
        self.check();
        self.world.check_files();
        // A front end may be slow: many events can occur between a wake-up and the reader's return.
        if !self.random.one_in(3) {
            self.drain();
        }
    }

    /// Checks the invariants, by a restart if there are any: wake-ups and deliveries are pending.
    fn check(&mut self) {
        match self.disturbance {
            Disturbance::None | Disturbance::LateMemory => {
                let sound = self.world.driver.check_invariants();
                sound.unwrap_or_else(|broken| panic!("{broken}"));
            }
            Disturbance::Restarts => self.restart(),
        }
    }

    /// Replaces the driver by one that is read back from its state.
    fn restart(&mut self) {
        let written = state::write(&SavedDriver::new(&self.world.driver)).expect("it is written");
        let read: SavedDriver<Driver> = state::read(&written).expect("it is read");
        self.world.driver =
            read.verify(PageSize::default()).unwrap_or_else(|error| panic!("{error}"));
        let again = state::write(&SavedDriver::new(&self.world.driver)).expect("it is written");
        assert!(written == again, "the state changes when it is read back");
    }

    /// Adds the text of the logs to the digest.
    pub fn fold_text(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.fold(byte.into()));
    }

    /// Under memory pressure some idle pages are reclaimed, and the contents of the mappings with
    /// them.
    fn reclaim(&mut self) {
        let most = 1 + self.random.below(6) as u32;
        let before = self.world.driver.page_counts();
        let given = self.world.driver.reclaim(&mut self.world.host, most);
        let after = self.world.driver.page_counts();
        assert!(given <= most && u64::from(given) <= before.idle);
        assert_eq!(after.touched + u64::from(given), before.touched);
        assert_eq!(after.reclaimed, before.reclaimed + u64::from(given));
        *self.returns.entry(6).or_default() += u64::from(given);
        self.note(format_args!("{given} of {} idle pages go back", before.idle));
    }

    /// Handles all wake-ups; then no thread with work may be asleep.
    fn drain(&mut self) {
        for (caller, seen) in self.world.wake() {
            self.see(caller, &seen);
        }
        for (id, result) in std::mem::take(&mut self.world.frozen) {
            self.freeze_ended(id, result);
        }
        self.check();
        let driver = &self.world.driver;
        driver.check_all_woken().unwrap_or_else(|broken| panic!("{broken}"));
        if self.step.is_multiple_of(16) {
            self.check_waiting_threads();
        }
    }

    /// A thread that waits for a reply is in a call, or the reply is queued for it or being
    /// delivered.
    fn check_waiting_threads(&self) {
        let snapshot = self.world.driver.snapshot();
        let processes = snapshot.contexts.iter().flat_map(|context| &context.processes);
        let depths: BTreeMap<u32, (u32, u32)> = processes
            .flat_map(|process| &process.threads)
            .map(|thread| (thread.tid, (thread.stack, thread.queued)))
            .collect();
        for client in self.clients.values().filter(|client| !client.hostile) {
            for (tid, thread) in &client.threads {
                let waiting = thread.frames.last() == Some(&Frame::Out);
                let (depth, queued) = depths.get(tid).copied().unwrap_or_default();
                let given = self.waits_for_files(Caller { tid: *tid, ..client.main });
                assert!(
                    !waiting || depth > 0 || queued > 0 || given,
                    "thread {tid} waits for nothing"
                );
                let nice = self.world.host.nice.get(tid).copied().unwrap_or(0);
                assert!(depth > 0 || nice == own_nice(*tid), "thread {tid} kept nice {nice}");
                assert!(
                    depth as usize <= thread.frames.len(),
                    "thread {tid} is in more calls than it knows"
                );
            }
        }
    }

    /// Closes all opens; the driver must be empty.
    pub fn end(&mut self) {
        while let Some((&process, _)) = self.clients.first_key_value() {
            self.release(process);
            self.drain();
        }
        assert!(self.world.driver.is_empty(), "left: {:?}", self.world.driver.snapshot());
        self.world.host.faulting.clear();
        self.world.host.unwritable.clear();
    }

    fn any_process(&mut self) -> Option<ProcessId> {
        let ids: Vec<_> = self.clients.keys().copied().collect();
        self.random.pick(&ids)
    }

    fn any_thread(&mut self) -> Option<Caller> {
        let process = self.any_process()?;
        let main = self.clients[&process].main;
        // Tids are unique in the simulation, as they are on a host.
        let tid = main.tid * 16 + self.random.below(THREADS) as u32;
        Some(Caller { tid, ..main })
    }

    fn all_threads(&self) -> Vec<Caller> {
        let threads = |client: &Client| {
            let main = client.main;
            client.threads.keys().map(move |&tid| Caller { tid, ..main }).collect::<Vec<_>>()
        };
        self.clients.values().flat_map(threads).collect()
    }

    /// A thread that is not in a read; after eight attempts any thread.
    fn any_running_thread(&mut self) -> Option<Caller> {
        for _ in 0..8 {
            let caller = self.any_thread()?;
            let client = self.clients.get_mut(&caller.process)?;
            if !client.thread(caller.tid).parked {
                return Some(caller);
            }
        }
        None
    }

    fn open(&mut self) {
        if self.clients.len() >= PROCESSES {
            return;
        }
        self.next_pid += 1;
        let pid = self.next_pid;
        let context = self.contexts[usize::from(self.random.one_in(12))];
        let main = self.world.unmapped(context, pid);
        for tid in (0..THREADS as u32).map(|thread| pid * 16 + thread) {
            self.world.host.nice.insert(tid, own_nice(tid));
        }
        if !self.random.one_in(20) {
            let len = self.random.pick(&[4096, MAPPING, MAPPING + 100]).unwrap_or(MAPPING);
            self.world.map(main, len);
        }
        self.world.driver.set_max_threads(main.process, self.random.below(4) as u32).unwrap();
        let detection = if self.random.one_in(2) { SpamDetection::On } else { SpamDetection::Off };
        self.world.driver.enable_oneway_spam_detection(main.process, detection).unwrap();
        self.clients.insert(main.process, Client::new(main));
        self.note(format_args!("open pid {pid} as {:?}", main.process));
        if self.random.one_in(2) {
            let _ = self.world.driver.set_context_manager(main, MANAGER);
        }
    }

    fn become_manager(&mut self) {
        let Some(process) = self.any_process() else { return };
        let main = self.clients[&process].main;
        let result = self.world.driver.set_context_manager(main, MANAGER);
        self.note(format_args!("{process:?} becomes manager: {result:?}"));
    }

    fn release_one(&mut self) {
        if let Some(process) = self.any_process() {
            self.release(process);
        }
    }

    fn release(&mut self, process: ProcessId) {
        self.note(format_args!("release {process:?}"));
        let Some(client) = self.clients.remove(&process) else { return };
        self.world.release(client.main);
        self.world
            .fd_deliveries
            .as_mut()
            .expect("kept")
            .retain(|(caller, _)| caller.process != process);
        self.world.host.faulting.remove(&process);
        self.world.host.unwritable.remove(&process);
    }

    fn thread_exit(&mut self) {
        let Some(caller) = self.any_thread() else { return };
        self.note(format_args!("exit of thread {}", caller.tid));
        self.world.thread_exit(caller);
        let nice = self.world.host.nice.get(&caller.tid).copied().unwrap_or(0);
        assert_eq!(
            nice,
            own_nice(caller.tid),
            "thread {} left with another's priority",
            caller.tid
        );
        let fd_deliveries = self.world.fd_deliveries.as_mut().expect("kept");
        fd_deliveries
            .retain(|(other, _)| (other.process, other.tid) != (caller.process, caller.tid));
        if let Some(client) = self.clients.get_mut(&caller.process) {
            client.threads.remove(&caller.tid);
        }
    }

    fn interrupt(&mut self) {
        // Prefers a thread that was just woken, so that the signal races with its work.
        let woken = match self.world.driver.next_wake() {
            Some(Wake::Reader { process, tid }) => Some(Caller { process, tid, euid: Uid(1000) }),
            Some(Wake::Freeze { id, result }) => {
                self.freeze_ended(id, result);
                None
            }
            _ => None,
        };
        if let Some(caller) = woken.or_else(|| self.any_thread()) {
            self.interrupt_thread(caller);
        }
    }

    fn interrupt_thread(&mut self, caller: Caller) {
        if self.waits_for_files(caller) {
            let interrupted = self.world.driver.interrupt(caller.process, caller.tid);
            assert_eq!(interrupted, Interrupt::NotParked, "signals have to wait");
            return;
        }
        let interrupted = self.world.driver.interrupt(caller.process, caller.tid);
        self.note(format_args!("interrupt {}: {interrupted:?}", caller.tid));
        *self.returns.entry(8).or_default() += u64::from(interrupted == Interrupt::Woken);
        let Some(client) = self.clients.get_mut(&caller.process) else { return };
        let thread = client.thread(caller.tid);
        assert_eq!(thread.parked, interrupted != Interrupt::NotParked);
        thread.parked = interrupted == Interrupt::Woken;
    }

    /// An interval of held reads ends. After two of them none may wait.
    fn release_held(&mut self) {
        let held = self.world.driver.release_held_reads();
        self.note(format_args!("release held reads: then {held:?}"));
        *self.returns.entry(9).or_default() += u64::from(held == HeldReads::Some);
        if held == HeldReads::Some && self.random.one_in(2) {
            self.all_threads().into_iter().for_each(|caller| self.interrupt_thread(caller));
        }
        if self.random.one_in(2) {
            assert_eq!(self.world.driver.release_held_reads(), HeldReads::None);
        }
    }

    fn flush(&mut self) {
        let Some(process) = self.any_process() else { return };
        self.note(format_args!("flush {process:?}"));
        self.world.driver.flush(process);
    }

    fn poll(&mut self) {
        let Some(caller) = self.any_thread() else { return };
        if self.clients.get_mut(&caller.process).is_some_and(|c| c.thread(caller.tid).parked) {
            return;
        }
        let readable = self.world.driver.poll(caller);
        self.note(format_args!("poll {}: {readable}", caller.tid));
        let seen = self.world.read(caller);
        // A readable open may have only void work, but an unreadable one never has work.
        let no_work = matches!(seen.result, Err(Errno::EAGAIN | Errno::EFAULT));
        assert!(readable || no_work, "{seen:?}");
        self.see(caller, &seen);
    }

    /// Installs the files that a reader waits for, or fails to.
    fn give(&mut self) {
        let fd_deliveries = self.world.fd_deliveries.as_mut().expect("kept");
        if fd_deliveries.is_empty() {
            return;
        }
        let at = self.random.below(fd_deliveries.len() as u64) as usize;
        let (caller, bwr) = fd_deliveries.swap_remove(at);
        let how = self.random.below(5) as u32;
        self.note(format_args!("files for {}: {how}", caller.tid));
        *self.returns.entry([4, 5, 7, 7, 7][how as usize]).or_default() += 1;
        let seen = match how {
            0 => self.world.give(caller, bwr),
            1 => self.world.refuse_files(caller, bwr),
            _ => self.world.defer_files(caller),
        };
        self.see(caller, &seen);
        match how {
            2 => drop(self.world.arrive(caller)),
            3 => {
                let Caller { process, tid, .. } = caller;
                let world = &mut self.world;
                let answer = world.driver.files_refused(&mut world.host, process, tid);
                assert_eq!(answer, None, "no thread reads");
            }
            _ => {}
        }
    }

    fn waits_for_files(&self, caller: Caller) -> bool {
        let fd_deliveries = self.world.fd_deliveries.as_ref().expect("kept");
        fd_deliveries
            .iter()
            .any(|(other, _)| (other.process, other.tid) == (caller.process, caller.tid))
    }

    fn freeze(&mut self) {
        let (Some(caller), Some(target)) = (self.any_process(), self.any_process()) else { return };
        let (caller, pid) = (self.clients[&caller].main, self.clients[&target].main.tid);
        let (enable, timeout) = (!self.random.one_in(3), self.random.below(2) as u32 * 100);
        let answer = if enable {
            self.world.freeze(caller, pid, timeout)
        } else {
            self.world.thaw(caller, pid)
        };
        self.note(format_args!("freeze {pid} {enable} {timeout}: {answer:?}"));
        match answer {
            Freeze::Waiting(id) => self.freezes.push(id),
            Freeze::Done(result) => {
                *self.returns.entry(u32::from(result.is_ok())).or_default() += 1;
                let info = self.world.driver.frozen_info(pid).expect("an open");
                let busy = info.sync_recv & 2 != 0;
                assert_eq!(result.is_err(), enable && busy, "{result:?} but {info:?}");
            }
        }
    }

    fn freeze_ended(&mut self, id: FreezeId, result: Result<(), Errno>) {
        assert!(self.freezes.contains(&id), "a freeze ended twice");
        self.freezes.retain(|&other| other != id);
        *self.returns.entry(2 + u32::from(result.is_ok())).or_default() += 1;
    }

    /// Interrupts a pending freeze, or lets its timeout expire.
    fn end_freeze(&mut self) {
        let Some(id) = self.random.pick(&self.freezes) else { return };
        self.freezes.retain(|&other| other != id);
        if self.random.one_in(2) {
            self.note(format_args!("interrupt {id:?}"));
            self.world.driver.freeze_interrupted(id);
        } else {
            let result = self.world.driver.freeze_timed_out(id);
            self.note(format_args!("timeout of {id:?}: {result:?}"));
        }
    }

    /// Makes a process's memory inaccessible for some ten steps.
    fn fault(&mut self) {
        let Some(process) = self.any_process() else { return };
        let host = &mut self.world.host;
        let reads = self.random.one_in(2);
        let set = if reads { &mut host.faulting } else { &mut host.unwritable };
        set.insert(process);
        if let Some(client) = self.clients.get_mut(&process) {
            // The client cannot account for returns that were lost; transactions to it fail.
            client.hostile |= reads;
        }
        self.note(format_args!("{process:?} faults"));
    }

    /// A client sends invalid commands.
    fn lie(&mut self) {
        let Some(caller) = self.any_thread() else { return };
        let Some(client) = self.clients.get_mut(&caller.process) else { return };
        client.hostile = true;
        if client.thread(caller.tid).parked {
            return;
        }
        let mut commands = Vec::new();
        for _ in 0..1 + self.random.below(3) {
            let command = self.lying_command(caller);
            command.write_to(&mut commands);
        }
        if self.random.one_in(4) {
            let at = self.random.below(commands.len() as u64) as usize;
            let mut flipped = commands.clone();
            flipped[at] ^= 1 << self.random.below(8);
            // Honest receivers check the order of one-way calls by their codes, so the codes must
            // remain as they were assigned.
            if codes(&flipped).iter().all(|code| codes(&commands).contains(code)) {
                commands = flipped;
            }
        }
        if self.random.one_in(4) {
            commands.truncate(self.random.below(commands.len() as u64) as usize);
        }
        self.note(format_args!("thread {} lies in {} bytes", caller.tid, commands.len()));
        let seen = self.world.write_read(caller, &commands, READ_SIZE, Waiting::Refused);
        self.see(caller, &seen);
    }

    /// A random thread sends valid commands.
    fn act(&mut self) {
        let Some(caller) = self.any_running_thread() else { return };
        let mut commands = Vec::new();
        for _ in 0..1 + self.random.below(5) {
            let Some(command) = self.command(caller) else { continue };
            // At most one change of the call stack per ioctl, because the next command depends on
            // its result.
            if !(changes_stack(&command) && commands.iter().any(changes_stack)) {
                commands.push(command);
            }
        }
        self.send(caller, &commands);
    }

    fn send(&mut self, caller: Caller, commands: &[Command]) {
        let bytes = encode(commands);
        let mode = self.random.below(4);
        self.note(format_args!("thread {} mode {mode}: {commands:?}", caller.tid));
        // A thread that serves a call must not wait in a read.
        let thread = self.clients.get_mut(&caller.process).map(|c| c.thread(caller.tid));
        let replies = commands.iter().filter(|c| matches!(c, Command::Reply { .. })).count();
        let innermost = thread.and_then(|thread| thread.frames.iter().rev().nth(replies).copied());
        let serving = innermost == Some(Frame::In);
        let calls = commands.iter().any(|c| matches!(c, Command::Transaction { .. }));
        let mode = if serving && !calls { mode % 2 } else { mode };
        let (read_size, waiting) = match mode {
            0 => (0, Waiting::Refused),
            1 => (READ_SIZE, Waiting::Refused),
            2 => (4096, Waiting::Allowed),
            _ => (READ_SIZE, Waiting::Allowed),
        };
        // The model is updated first, because evaluating the result depends on it.
        let consumed = self.books_before(caller, commands);
        let seen = self.world.write_read(caller, &bytes, read_size, waiting);
        if !seen.parked && seen.bwr.write_consumed < consumed {
            // A queued error stopped the commands, so the rest was not run: the client's model is
            // wrong from now on.
            if let Some(client) = self.clients.get_mut(&caller.process) {
                client.hostile = true;
            }
        }
        self.see(caller, &seen);
    }

    /// Applies the commands to the client's model.
    fn books_before(&mut self, caller: Caller, commands: &[Command]) -> u64 {
        let Some(client) = self.clients.get_mut(&caller.process) else { return 0 };
        for command in commands {
            match *command {
                Command::Transaction { data, .. } if data.flags & TF_ONE_WAY != 0 => {
                    client.thread(caller.tid).unconfirmed += 1;
                }
                Command::Transaction { .. } => client.thread(caller.tid).frames.push(Frame::Out),
                Command::Reply { .. } => {
                    let frame = client.thread(caller.tid).frames.pop();
                    client.thread(caller.tid).unconfirmed += 1;
                    assert!(client.hostile || frame == Some(Frame::In));
                }
                _ => {}
            }
        }
        encode(commands).len() as u64
    }

    /// Updates a client's model with the result of an ioctl.
    fn see(&mut self, caller: Caller, seen: &Seen) {
        let code = seen.result.err().map_or(0, Errno::code) as u64;
        self.fold(code << 32 | seen.bwr.read_consumed << 1 | u64::from(seen.parked));
        let Some(client) = self.clients.get_mut(&caller.process) else { return };
        client.thread(caller.tid).parked = seen.parked;
        if matches!(seen.result, Err(Errno::EFAULT | Errno::EINVAL)) {
            assert!(client.hostile, "an honest client got {seen:?}");
        }
        for value in &seen.returns {
            let data = parcel_of(value);
            let objects = data.map_or(Vec::new(), |data| self.world.objects(caller, &data));
            for fd in objects.iter().filter(|object| object.ty == BINDER_TYPE_FD) {
                let table = self.world.host.tables.get_mut(&caller.process).expect("a table");
                assert!(table.remove(&(fd.binder as u32)).is_some(), "not the reader's: {fd:?}");
            }
            if let Some(client) = self.clients.get_mut(&caller.process) {
                client.see(caller.tid, value, &objects);
            }
            let mut bytes = Vec::new();
            value.write_to(&mut bytes);
            let word = u32::from_ne_bytes(bytes[..4].try_into().expect("a word"));
            *self.returns.entry(word).or_default() += 1;
            bytes.into_iter().for_each(|byte| self.fold(byte.into()));
        }
    }

    fn fold(&mut self, value: u64) {
        self.digest = (self.digest.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

/// Codes of the transactions in a stream.
fn codes(commands: &[u8]) -> Vec<u32> {
    let commands = CommandReader::new(commands).map_while(Result::ok);
    let code = |command| match command {
        Command::Transaction { data, .. } => Some(data.code),
        _ => None,
    };
    commands.filter_map(code).collect()
}

/// A thread's own nice value.
fn own_nice(tid: u32) -> i32 {
    tid as i32 % 7 - 3
}

/// A reply, or any call: while a reply is pending, a one-way call is not sent either.
fn changes_stack(command: &Command) -> bool {
    matches!(command, Command::Reply { .. } | Command::Transaction { .. })
}
