//! A `BINDER_WRITE_READ` over a ring.

use std::ffi::c_int;

use binder_ring::page::{
    CallResult, MAX_FILES, Outcome, PARCEL_BYTES, Page, ParcelBytes, STREAM_BYTES,
};
use binder_ring::turn::{Doorbell, Submitted, Turn, Watch};
use binder_ring::{RING_FILES, RING_INTERRUPT};
use binder_uapi::command::{BC_REPLY, BC_REPLY_SG, BC_TRANSACTION, BC_TRANSACTION_SG};
use binder_uapi::ioctl::{BINDER_WRITE_READ, payload_len};
use binder_uapi::{BINDER_TYPE_FD, BINDER_TYPE_FDA, BinderTransactionData, BinderWriteRead};

use crate::system::{self, Errno};
use crate::threads::{self, Entry};

/// How long a thread waits for its ring, nanoseconds. Then it waits in a request, which also ends
/// if the daemon dies, and needs no care for signals.
const WAIT_NS: i64 = 10_000_000;
/// Number of commands that are searched for the first one with a parcel.
const COMMANDS_SEARCHED: usize = 4;

/// How a thread's wait for its result ended.
enum Waited {
    Done,
    /// A signal handler of this thread has withdrawn the call.
    Withdrawn,
    /// The daemon does not know the ring any more.
    Lost(Errno),
}

/// Why a call was ended before its result was there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    No,
    BySignal,
    ByTime,
}

/// # Safety
///
/// As for the ioctl.
pub(crate) unsafe fn write_read(fd: c_int, argument: usize) -> Result<c_int, Errno> {
    let thread = system::thread_id();
    let Some(entry) = threads::entry(thread, fd) else {
        // SAFETY: the caller's.
        return unsafe { system::ioctl(fd, BINDER_WRITE_READ, argument) };
    };
    if !entry.enter() {
        // A signal handler calls while this thread waits: its call is interrupted first, as a
        // system call would have been.
        if let Some(page) = entry.page()
            && !page.words.withdraw()
        {
            // SAFETY: the ioctl has no effect on our memory but the ring.
            let _ = unsafe { system::ioctl(fd, RING_INTERRUPT, &raw const ZERO as usize) };
        }
        // SAFETY: the caller's.
        return unsafe { system::ioctl(fd, BINDER_WRITE_READ, argument) };
    }
    let result = if entry.is_of(thread, fd) {
        // SAFETY: the caller's.
        unsafe { call(entry, fd, argument) }
    } else {
        // SAFETY: the caller's.
        unsafe { system::ioctl(fd, BINDER_WRITE_READ, argument) }
    };
    entry.leave();
    result
}

pub(crate) static ZERO: u32 = 0;

/// # Safety
///
/// As for the ioctl.
unsafe fn call(entry: &Entry, fd: c_int, argument: usize) -> Result<c_int, Errno> {
    if let (Some(page), Some(doorbell)) = (entry.page(), entry.doorbell()) {
        match page.words.watch() {
            Watch::Off => {}
            _ if !entry.is_for(fd) => entry.drop_ring(),
            Watch::Ended => entry.drop_ring(),
            Watch::On
                if entry.argument.is_writable(argument as u64, size_of::<BinderWriteRead>()) =>
            {
                // SAFETY: it can be read and written.
                if let Some(result) = unsafe { call_by_ring(entry, page, doorbell, fd, argument) } {
                    return result;
                }
            }
            Watch::On => {}
        }
    }
    // SAFETY: the caller's.
    let result = unsafe { system::ioctl(fd, BINDER_WRITE_READ, argument) };
    entry.note_request(fd);
    result
}

/// Files that the thread has fetched, until the daemon has taken the call that names them.
struct Fetched {
    numbers: [u32; MAX_FILES],
    count: usize,
}

impl Fetched {
    fn none() -> Self {
        Self { numbers: [0; MAX_FILES], count: 0 }
    }

    fn numbers(&self) -> &[u32] {
        &self.numbers[..self.count]
    }

    /// The daemon has the numbers: it uses them, or says in the result which ones to close.
    fn taken(&mut self) {
        self.count = 0;
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        system::close_all(self.numbers());
    }
}

/// `None`: the call is to be made by a system call, with the argument as it is now.
///
/// # Safety
///
/// `argument` is that of a BINDER_WRITE_READ, readable and writable.
unsafe fn call_by_ring(
    entry: &Entry,
    page: &Page,
    doorbell: &Doorbell,
    fd: c_int,
    argument: usize,
) -> Option<Result<c_int, Errno>> {
    let argument = argument as *mut BinderWriteRead;
    let mut fetched = Fetched::none();
    loop {
        // SAFETY: the caller's.
        let bwr = unsafe { argument.read_unaligned() };
        // The driver checks the first word of the read buffer before it takes work.
        let first = bwr.read_size.min(size_of::<u32>() as u64) as usize;
        if !entry.returns.is_writable(bwr.read_buffer, first) {
            return None;
        }
        let left = bwr.write_size.checked_sub(bwr.write_consumed)?;
        let commands_at = bwr.write_buffer.wrapping_add(bwr.write_consumed);
        if left > STREAM_BYTES as u64 {
            return None;
        }
        let commands = entry.commands.readable(commands_at, left as usize)?;
        let parcel = match find_parcel(commands) {
            // Fetched numbers go with the call, which the daemon leaves to a request then.
            FirstParcel::ForRequest if fetched.numbers().is_empty() => return None,
            FirstParcel::ForRequest | FirstParcel::None => None,
            FirstParcel::Fits(parcel) => Some(parcel),
        };
        if !page.write_call(bwr, commands, parcel, fetched.numbers()) {
            return None;
        }
        match page.words.submit(doorbell) {
            Submitted::Seen => {}
            Submitted::WakeDaemon => system::wake(doorbell.word()),
            Submitted::Withdrawn(watch) => {
                if watch == Watch::Ended {
                    entry.drop_ring();
                }
                return None;
            }
        }
        let (waited, ended) = wait(page, fd);
        match waited {
            Waited::Done => {}
            Waited::Withdrawn if ended == Ended::ByTime => return None,
            Waited::Withdrawn => return Some(Err(libc::EINTR)),
            Waited::Lost(errno) => {
                entry.abandon_ring();
                return Some(Err(errno));
            }
        }
        fetched.taken();
        let result = page.read_result();
        // SAFETY: the caller's.
        let is_delivered = unsafe { deliver(entry, page, &result, &bwr, argument) };
        if !is_delivered {
            return Some(Err(libc::EFAULT));
        }
        match result.outcome {
            Outcome::Returned => {
                if result.errno == libc::EINTR as u32 && ended == Ended::ByTime {
                    return None;
                }
                return Some(match result.errno {
                    0 => Ok(0),
                    errno => Err(errno as c_int),
                });
            }
            Outcome::Unfinished => return None,
            Outcome::FetchFiles => fetched = fetch_files(fd)?,
        }
    }
}

/// Waits for the result of a call that was submitted.
fn wait(page: &Page, fd: c_int) -> (Waited, Ended) {
    let mut ended = Ended::No;
    loop {
        let turn = match page.words.turn() {
            Turn::Done => return (Waited::Done, ended),
            Turn::Idle => return (Waited::Withdrawn, ended),
            turn => turn,
        };
        match system::wait(page.words.turn_word(), turn as u32, WAIT_NS) {
            Err(libc::EINTR) => ended = Ended::BySignal,
            Err(libc::ETIMEDOUT) if ended == Ended::No => ended = Ended::ByTime,
            Err(libc::ETIMEDOUT) => {}
            _ => continue,
        }
        if page.words.withdraw() {
            return (Waited::Withdrawn, ended);
        }
        // SAFETY: the ioctl has no effect on our memory but the ring.
        let asked = unsafe { system::ioctl(fd, RING_INTERRUPT, &raw const ZERO as usize) };
        if let Err(errno) = asked
            && page.words.turn() == Turn::Taken
        {
            return (Waited::Lost(errno), ended);
        }
    }
}

/// Writes the result to where the system call would have written it. False: the read buffer is not
/// writable.
///
/// # Safety
///
/// `argument` is writable.
unsafe fn deliver(
    entry: &Entry,
    page: &Page,
    result: &CallResult,
    before: &BinderWriteRead,
    argument: *mut BinderWriteRead,
) -> bool {
    let (from, to) = (before.read_consumed, result.argument.read_consumed);
    let mut is_written = true;
    if from < to && to <= before.read_size.min(STREAM_BYTES as u64) {
        let mut returns = [0; STREAM_BYTES];
        page.read_returns(&mut returns[..to as usize]);
        let new = &returns[from as usize..to as usize];
        let into = before.read_buffer.wrapping_add(from);
        is_written = entry.returns.write(into, new);
    }
    // SAFETY: the caller's.
    unsafe { argument.write_unaligned(result.argument) };
    system::close_all(result.closes.numbers());
    is_written
}

/// The parcel of the first command that has one.
enum FirstParcel {
    None,
    Fits(ParcelBytes<'static>),
    /// The daemon has to access the thread for it, which it does in a request only.
    ForRequest,
}

fn find_parcel(commands: &[u8]) -> FirstParcel {
    let mut rest = commands;
    for _ in 0..COMMANDS_SEARCHED {
        let Some((word, payload)) = rest.split_first_chunk::<4>() else { break };
        let word = u32::from_ne_bytes(*word);
        match word {
            BC_TRANSACTION | BC_REPLY => {
                let len = size_of::<BinderTransactionData>();
                let Some(data) = payload.get(..len) else { break };
                let data = data.as_ptr().cast::<BinderTransactionData>();
                // SAFETY: there are as many bytes, and any bytes are a value of this type.
                return parcel_of(&unsafe { data.read_unaligned() });
            }
            BC_TRANSACTION_SG | BC_REPLY_SG => return FirstParcel::ForRequest,
            _ => {}
        }
        let Some(next) = payload.get(payload_len(word)..) else { break };
        rest = next;
    }
    FirstParcel::None
}

fn parcel_of(data: &BinderTransactionData) -> FirstParcel {
    let (len, offsets_len) = (data.data_size, data.offsets_size);
    let fits = |len: u64| len <= (PARCEL_BYTES - 8) as u64;
    if !len.checked_add(offsets_len).is_some_and(fits) {
        return FirstParcel::ForRequest;
    }
    let bytes = system::readable(data.buffer, len as usize);
    let offsets = system::readable(data.offsets, offsets_len as usize);
    match (bytes, offsets) {
        (Some(bytes), Some(offsets)) if !has_files(bytes, offsets) => {
            let (at, offsets_at) = (data.buffer, data.offsets);
            FirstParcel::Fits(ParcelBytes { at, bytes, offsets_at, offsets })
        }
        _ => FirstParcel::ForRequest,
    }
}

/// Whether the daemon has to take files from this process.
fn has_files(bytes: &[u8], offsets: &[u8]) -> bool {
    let (offsets, _) = offsets.as_chunks::<8>();
    offsets.iter().any(|offset| {
        let at = usize::try_from(u64::from_ne_bytes(*offset)).unwrap_or(usize::MAX);
        let kind = bytes.get(at..).and_then(|object| object.first_chunk::<4>());
        kind.is_some_and(|kind| {
            matches!(u32::from_ne_bytes(*kind), BINDER_TYPE_FD | BINDER_TYPE_FDA)
        })
    })
}

/// Receives the files of the transaction that the read takes. `None`: the daemon has not sent them.
fn fetch_files(fd: c_int) -> Option<Fetched> {
    let mut fetched = Fetched::none();
    fetched.count = system::receive_files(&mut fetched.numbers, |socket| {
        // SAFETY: the argument is ours.
        unsafe { system::ioctl(fd, RING_FILES, &raw const socket as usize) }.is_ok()
    })?;
    for number in &mut fetched.numbers[..fetched.count] {
        *number = lowest(*number);
    }
    Some(fetched)
}

/// Moves a descriptor to the lowest free number, which the driver would have chosen: the sockets
/// have occupied two of them.
fn lowest(number: u32) -> u32 {
    // SAFETY: the descriptor was received by us just now.
    system::keep_errno(|| unsafe {
        let moved = libc::fcntl(number as c_int, libc::F_DUPFD_CLOEXEC, 0);
        let (kept, closed) = if (0..number as c_int).contains(&moved) {
            (moved as u32, number as c_int)
        } else {
            (number, moved)
        };
        system::close(closed);
        kept
    })
}
