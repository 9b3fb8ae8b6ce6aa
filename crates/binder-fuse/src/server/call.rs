//! Calls that have no answer: each `BINDER_WRITE_READ` and each pending `BINDER_FREEZE`, from its
//! arrival until the answer is sent.
//!
//! [`CallState`] tells what a call waits for, and is the only record of that. A queue has the
//! [`CallKey`] of each that it is to reach; the key of one that waits no more is stale. A call that
//! runs is in no record, and waits with another key afterwards.
//!
//! Whatever ends a wait from outside asks the state: a signal ([`Server::interrupt_call`]), the end
//! of a ring (`Server::end_ring`), and the release of the file. An upgrade writes the records.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use binder_driver::slab::Slab;
use binder_driver::state::wire_bytes;
use binder_driver::{Caller, Errno, FreezeId, Interrupt, ProcessId};
use binder_uapi::BinderWriteRead;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Server;
use super::request_queue::Requester;
use crate::client_access::BlockedAccess;
use crate::nonblock::ParkedRead;
use crate::open::{CallKey, OpenKey};
use crate::rings::RingKey;

/// An errno internal to the kernel: the call is restarted after a signal, or fails with EINTR,
/// depending on SA_RESTART.
const ERESTARTSYS: i32 = 512;
/// No client can request a longer time for a freeze.
const LONGEST_FREEZE: Duration = Duration::from_millis(u32::MAX as u64);

/// How a call came, and takes its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Transport {
    /// A FUSE request.
    Request {
        /// Its unique id.
        unique: u64,
        /// Address of the ioctl's argument.
        argument: u64,
    },
    /// The ring of the calling thread.
    Ring(RingKey),
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { unique, .. } => write!(f, "request {unique}"),
            Self::Ring(ring) => write!(f, "a call of {ring:?}"),
        }
    }
}

/// An ioctl that has no answer yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct PendingIoctl {
    pub(super) key: OpenKey,
    pub(super) caller: Caller,
    pub(super) from: Transport,
}

impl PendingIoctl {
    /// The ring that it came by.
    pub(super) fn ring(&self) -> Option<RingKey> {
        match self.from {
            Transport::Ring(ring) => Some(ring),
            Transport::Request { .. } => None,
        }
    }

    /// The unique id of its request: 0, which none has, if it came by a ring.
    pub(super) fn unique(&self) -> u64 {
        match self.from {
            Transport::Request { unique, .. } => unique,
            Transport::Ring(_) => 0,
        }
    }
}

/// What a call needs before it runs, or runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// A slice of its owner's: the one before it was whole.
    Unpaid,
    /// Its memory to be touched, if its owner has little time left for late accesses. What a call
    /// does first costs its owner no slice, however often it is delayed.
    Due,
    /// Nothing.
    Touched,
    /// To be started: its thread is not known to be in it. It counts among the requests of its
    /// owner that wait.
    #[serde(skip)]
    Arrived(Requester),
}

/// The next step of a `BINDER_WRITE_READ`, with what was consumed so far.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Step {
    #[serde(with = "wire_bytes")]
    pub(super) bwr: BinderWriteRead,
    pub(super) stage: Stage,
}

/// Whether a signal has arrived for a read that waits for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    None,
    /// The read must not be parked again.
    Arrived,
}

/// A read that waits for its files.
#[derive(Clone)]
pub(super) struct FileRead {
    pub(super) bwr: BinderWriteRead,
    pub(super) signal: Signal,
}

/// A read whose returns are not written yet, because memory of its client does not answer.
#[derive(Clone)]
pub(super) struct LateRead {
    pub(super) bwr: BinderWriteRead,
    pub(super) access: BlockedAccess,
}

/// A freeze that waits for calls to end.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct PendingFreeze {
    pub(super) id: FreezeId,
    /// When it fails.
    #[serde(serialize_with = "write_time_left", deserialize_with = "read_time_left")]
    pub(super) deadline: Instant,
}

fn write_time_left<S: Serializer>(deadline: &Instant, to: S) -> Result<S::Ok, S::Error> {
    deadline.saturating_duration_since(Instant::now()).serialize(to)
}

fn read_time_left<'de, D: Deserializer<'de>>(from: D) -> Result<Instant, D::Error> {
    let left = Duration::deserialize(from)?;
    if left > LONGEST_FREEZE {
        return Err(serde::de::Error::custom("a freeze takes longer than one can"));
    }
    Ok(Instant::now() + left)
}

/// What a call waits for. Boxed contents keep the record of a parked read small.
#[derive(Clone, Serialize, Deserialize)]
pub(super) enum CallState {
    /// Work for its thread. The driver holds the read.
    Parked,
    /// Its turn: its key is in the server's queue.
    Queued(Box<Step>),
    /// Memory of its client, or time of its owner: its key is among the delayed calls.
    Delayed(Box<Step>),
    /// A freeze: the driver ends it, or its time.
    Freezing(Box<PendingFreeze>),
    /// Files, which a worker installs in its thread. The worker may have sent its answer.
    #[serde(skip)]
    PassingFiles(Box<FileRead>),
    /// Its returns to be written by a thread that blocks in its client's memory. They cannot be
    /// withdrawn: their work was taken.
    #[serde(skip)]
    Returning(Box<LateRead>),
}

/// A call that waits.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) request: PendingIoctl,
    pub(super) state: CallState,
}

impl Call {
    /// Who has made a call that is not started: its thread is not known to wait in it.
    fn arrived(&self) -> Option<Requester> {
        match &self.state {
            CallState::Queued(step) => match step.stage {
                Stage::Arrived(requester) => Some(requester),
                _ => None,
            },
            _ => None,
        }
    }
}

// A bus has one of an idle thread.
const _: () = assert!(size_of::<Call>() <= 64);

/// All calls that wait.
#[derive(Default)]
pub(super) struct CallTable {
    calls: Slab<CallKey, Call>,
    by_unique: BTreeMap<u64, CallKey>,
    by_freeze: BTreeMap<FreezeId, CallKey>,
    /// Those whose returns are late, no more than threads are blocked.
    returning: Vec<CallKey>,
}

impl CallTable {
    fn insert(&mut self, call: Call) -> CallKey {
        let key = self.calls.insert(call);
        self.index(key);
        key
    }

    /// Adds a call to what leads to it.
    fn index(&mut self, key: CallKey) {
        let Some(call) = self.calls.get(key) else { return };
        if let Transport::Request { unique, .. } = call.request.from {
            self.by_unique.insert(unique, key);
        }
        match &call.state {
            CallState::Freezing(freeze) => drop(self.by_freeze.insert(freeze.id, key)),
            CallState::Returning(_) => self.returning.push(key),
            _ => {}
        }
    }

    fn remove(&mut self, key: CallKey) -> Option<Call> {
        let call = self.calls.remove(key)?;
        if let Transport::Request { unique, .. } = call.request.from {
            self.by_unique.remove(&unique);
        }
        match &call.state {
            CallState::Freezing(freeze) => drop(self.by_freeze.remove(&freeze.id)),
            CallState::Returning(_) => self.returning.retain(|&other| other != key),
            _ => {}
        }
        Some(call)
    }

    /// The call. `None`: it does not wait any more.
    pub(super) fn get(&self, key: CallKey) -> Option<&Call> {
        self.calls.get(key)
    }

    /// As [`get`](Self::get), for changes within its state.
    pub(super) fn get_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.calls.get_mut(key)
    }

    /// The call of a FUSE request.
    pub(super) fn of_request(&self, unique: u64) -> Option<CallKey> {
        self.by_unique.get(&unique).copied()
    }

    /// The call that waits for a freeze.
    pub(super) fn of_freeze(&self, id: FreezeId) -> Option<CallKey> {
        self.by_freeze.get(&id).copied()
    }

    /// The freezes that wait, with their deadlines.
    pub(super) fn freezes(&self) -> impl Iterator<Item = (FreezeId, Instant)> {
        let calls = self.by_freeze.values().filter_map(|&key| self.get(key));
        calls.filter_map(|call| match &call.state {
            CallState::Freezing(freeze) => Some((freeze.id, freeze.deadline)),
            _ => None,
        })
    }

    /// Whether a call's returns are late.
    pub(super) fn are_returning(&self) -> bool {
        !self.returning.is_empty()
    }

    /// The calls whose returns have been written, or will never be.
    pub(super) fn returned(&self) -> Vec<CallKey> {
        let has_returned = |call: &Call| match &call.state {
            CallState::Returning(read) => read.access.has_returned(),
            _ => false,
        };
        let keys = self.returning.iter().copied();
        keys.filter(|&key| self.get(key).is_some_and(has_returned)).collect()
    }

    /// All of them, as the state of an upgrade: it has none that pass files or whose returns are
    /// late.
    pub(super) fn records(&self) -> &Slab<CallKey, Call> {
        &self.calls
    }

    /// Continues with the calls of another server.
    pub(super) fn restore(calls: Slab<CallKey, Call>) -> Self {
        let keys: Vec<CallKey> = calls.keys().collect();
        let mut this = Self { calls, ..Self::default() };
        keys.into_iter().for_each(|key| this.index(key));
        this
    }
}

impl Server {
    /// Lets a call wait.
    pub(super) fn wait(&mut self, request: PendingIoctl, state: CallState) -> CallKey {
        let call = Call { request, state };
        let has_started = call.arrived().is_none();
        let key = self.calls.insert(call);
        if has_started && let Some(open) = self.host.opens.get_mut(request.key) {
            open.info.calls.set(request.caller.tid, Some(key));
        }
        key
    }

    /// Ends the wait of a call, which runs or is answered next. `None`: it waits no more.
    pub(super) fn end_wait(&mut self, key: CallKey) -> Option<Call> {
        let call = self.calls.remove(key)?;
        let PendingIoctl { key: open, caller, .. } = call.request;
        if let Some(open) = self.host.opens.get_mut(open)
            && open.info.calls.request(caller.tid) == Some(key)
        {
            open.info.calls.set(caller.tid, None);
        }
        if let Some(requester) = call.arrived() {
            self.queue.forget_arrived(requester);
        }
        Some(call)
    }

    /// The call that a thread waits in.
    pub(super) fn call_of(&self, open: OpenKey, tid: u32) -> Option<(CallKey, &Call)> {
        let key = self.host.opens.get(open)?.info.calls.request(tid)?;
        Some((key, self.calls.get(key)?))
    }

    /// The parked read of a thread.
    pub(super) fn parked(&self, process: ProcessId, tid: u32) -> Option<(CallKey, PendingIoctl)> {
        let (key, call) = self.call_of(self.host.key_of(process)?, tid)?;
        matches!(call.state, CallState::Parked).then_some((key, call.request))
    }

    /// Who made a call.
    pub(super) fn requester_of(&self, request: &PendingIoctl) -> Requester {
        self.requester(request.caller.euid, Some(request.key))
    }

    pub(super) fn park(&mut self, request: PendingIoctl) {
        let call = self.wait(request, CallState::Parked);
        self.look_up_nonblock(call, &request);
    }

    /// The descriptor of a parked read may be `O_NONBLOCK` by now.
    pub(super) fn look_up_nonblock(&mut self, call: CallKey, request: &PendingIoctl) {
        if let Some(open) = self.host.opens.get(request.key)
            && request.ring().is_none()
        {
            let read = ParkedRead { call, tid: request.caller.tid, owner: open.info.owner };
            self.nonblock.add(read, open.info.flag_history);
        }
    }

    /// Runs a call, or its rest, in its owner's turn.
    pub(super) fn queue_call(&mut self, request: PendingIoctl, step: Box<Step>) {
        let requester = self.requester_of(&request);
        let key = self.wait(request, CallState::Queued(step));
        self.queue.push_call(requester, key);
    }

    /// Runs a call, or its rest, once its memory may be accessed and its owner has time.
    pub(super) fn delay_call(&mut self, request: PendingIoctl, bwr: BinderWriteRead, stage: Stage) {
        let key = self.wait(request, CallState::Delayed(Box::new(Step { bwr, stage })));
        self.delayed.push(self.requester_of(&request), key);
    }

    /// Handles a signal for the caller of a pending request. The request gets its reply at once:
    /// until then the caller cannot even be killed. The error is EINTR with SA_RESTART too, as
    /// with the kernel's driver: a signal can make a looper leave its read.
    ///
    /// INTERRUPT itself has no reply. Each pending request records it; for any other request it
    /// came too late. EAGAIN would make the kernel send it again at once, as long as the request is
    /// pending.
    pub(super) fn interrupt(&mut self, unique: u64) -> io::Result<()> {
        match self.calls.of_request(unique) {
            Some(key) => self.interrupt_call(key),
            None => {
                self.pages.interrupt_kept(unique);
                Ok(())
            }
        }
    }

    /// Ends a call, since its caller has a signal.
    pub(super) fn interrupt_call(&mut self, key: CallKey) -> io::Result<()> {
        let Some(call) = self.calls.get_mut(key) else { return Ok(()) };
        let request = call.request;
        match &mut call.state {
            CallState::Parked => self.end_parked(key, Errno::EINTR),
            CallState::Queued(step) | CallState::Delayed(step) => {
                let Step { bwr, stage } = **step;
                self.end_wait(key);
                match stage {
                    Stage::Arrived(_) => self.send_errno(&request, libc::EINTR),
                    _ => self.send_result(&request, -libc::EINTR, &bwr),
                }
            }
            CallState::Freezing(freeze) => {
                let id = freeze.id;
                self.end_wait(key);
                self.driver.freeze_interrupted(id);
                self.send_ioctl(&request, -ERESTARTSYS, &[])
            }
            CallState::PassingFiles(read) => {
                read.signal = Signal::Arrived;
                self.withdraw_fd_delivery(key)
            }
            CallState::Returning(read) => {
                let bwr = read.bwr;
                self.end_wait(key);
                self.fail_returns(request, bwr)
            }
        }
    }

    /// Ends a parked read with an error, or delivers what it holds.
    pub(super) fn end_parked(&mut self, key: CallKey, errno: Errno) -> io::Result<()> {
        let Some(&Call { request, .. }) = self.calls.get(key) else { return Ok(()) };
        match self.interrupt_read(key, request.caller) {
            Interrupt::Woken => Ok(()),
            Interrupt::Ended(bwr) => self.send_result(&request, -errno.code(), &bwr),
            Interrupt::NotParked => self.send_errno(&request, errno.code()),
        }
    }

    /// Lets the thread of a parked read wait no longer. If it is woken instead, it stays parked
    /// until the wake-up that follows sends the reply.
    pub(super) fn interrupt_read(&mut self, key: CallKey, caller: Caller) -> Interrupt {
        let interrupt = self.driver.interrupt(caller.process, caller.tid);
        if interrupt != Interrupt::Woken {
            self.end_wait(key);
        }
        interrupt
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use binder_driver::slab::Key;
    use binder_driver::state;
    use owners::Uid;
    use proptest::prelude::*;

    use super::*;
    use crate::client_access::Progress;

    const BWR: BinderWriteRead = BinderWriteRead {
        write_size: 0,
        write_consumed: 0,
        write_buffer: 0,
        read_size: 0,
        read_consumed: 0,
        read_buffer: 0,
    };

    fn call(unique: u64, kind: u8) -> Call {
        let step = || Box::new(Step { bwr: BWR, stage: Stage::Due });
        let id = FreezeId::from_number(1 << 32 | unique);
        let access = BlockedAccess::new(Arc::new(Progress::default()));
        let state = match kind {
            0 => CallState::Parked,
            1 => CallState::Queued(step()),
            2 => CallState::Delayed(step()),
            3 => CallState::Freezing(Box::new(PendingFreeze { id, deadline: Instant::now() })),
            4 => CallState::PassingFiles(Box::new(FileRead { bwr: BWR, signal: Signal::None })),
            _ => CallState::Returning(Box::new(LateRead { bwr: BWR, access })),
        };
        let caller = Caller { process: ProcessId::NULL, tid: unique as u32, euid: Uid(1) };
        let from = Transport::Request { unique, argument: 0 };
        Call { request: PendingIoctl { key: OpenKey::NULL, caller, from }, state }
    }

    fn kind(call: &Call) -> u8 {
        match call.state {
            CallState::Parked => 0,
            CallState::Queued(_) => 1,
            CallState::Delayed(_) => 2,
            CallState::Freezing(_) => 3,
            CallState::PassingFiles(_) => 4,
            CallState::Returning(_) => 5,
        }
    }

    proptest! {
        /// What leads to calls leads to exactly those that wait, also after an upgrade.
        #[test]
        fn the_indices_follow_the_records(
            steps in proptest::collection::vec((0..8_u64, 0..6_u8), 1..60),
        ) {
            let (mut calls, mut model) = (CallTable::default(), BTreeMap::new());
            for (unique, of_kind) in steps {
                match model.remove(&unique) {
                    Some((key, was)) => {
                        prop_assert_eq!(calls.remove(key).map(|call| kind(&call)), Some(was));
                        prop_assert!(calls.remove(key).is_none() && calls.get(key).is_none());
                    }
                    None => {
                        let key = calls.insert(call(unique, of_kind));
                        model.insert(unique, (key, of_kind));
                    }
                }
                let count = |of_kind| model.values().filter(|(_, kind)| *kind == of_kind).count();
                let restored = CallTable::restore(calls.records().clone());
                for calls in [&calls, &restored] {
                    for unique in 0..8 {
                        let expected = model.get(&unique);
                        prop_assert_eq!(calls.of_request(unique), expected.map(|(key, _)| *key));
                        let freeze = calls.of_freeze(FreezeId::from_number(1 << 32 | unique));
                        let expected = expected.filter(|(_, kind)| *kind == 3);
                        prop_assert_eq!(freeze, expected.map(|(key, _)| *key));
                    }
                    prop_assert_eq!(calls.freezes().count(), count(3));
                    prop_assert_eq!(calls.are_returning(), count(5) > 0);
                    prop_assert_eq!(calls.returned(), []);
                }
            }
        }
    }

    #[test]
    fn a_freeze_continues_with_the_time_that_is_left() {
        let left = |ms| state::write(&(1_u32, 1_u32, Duration::from_millis(ms))).unwrap();
        let freeze: PendingFreeze = state::read(&left(60_000)).unwrap();
        assert!(freeze.deadline > Instant::now() + Duration::from_secs(50));
        let written = state::write(&freeze).unwrap();
        let (_, _, again): (u32, u32, Duration) = state::read(&written).unwrap();
        assert!(again <= Duration::from_secs(60) && again > Duration::from_secs(50));
        let longer = state::read::<PendingFreeze>(&left(u64::from(u32::MAX) + 1));
        assert!(longer.is_err(), "longer than any");
    }

    #[test]
    fn no_state_has_a_call_that_only_this_process_can_end() {
        for kind in 0..6 {
            let written = state::write(&call(7, kind));
            assert_eq!(written.is_ok(), kind < 4, "{kind}");
        }
    }
}
