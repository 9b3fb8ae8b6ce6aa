//! Puts files into a stopped thread's descriptor table: the thread creates a pair of sockets, we
//! fetch one end and send the files into it, the thread receives them at the other end. No name,
//! network or permission is involved.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use owners::client_files::{Charge, ClientFile, Closers};

use super::fetch;
use super::tracee::{Abi, Lost, SystemCall, Tracee};
use crate::client_memory::MemoryHandle;

/// Maximum number of files in one message (`SCM_MAX_FD`).
const FILES_A_MESSAGE: usize = 253;
/// Bytes below the stack pointer that may be in use (the ABI's red zone).
const RED_ZONE: u64 = 128;

/// Why the files were not installed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The thread cannot be used.
    Lost(Lost),
    /// The thread can be used, but a system call of the thread or of ours failed.
    Refused(io::Error),
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Refused(error)
    }
}

/// Owner and uid that the socket fetched from the receiver is charged to.
pub(super) struct SocketKeeper {
    pub(super) closers: Closers,
    pub(super) charge: Charge,
}

/// Files that are installed in a thread.
pub(super) struct Installation {
    /// Their numbers, in order.
    pub(super) fds: Vec<u32>,
    /// The socket that they were sent by. To be dropped after the thread is resumed: a thread that
    /// closes it would take the CPU.
    pub(super) socket: ClientFile,
}

/// Memory of a thread that it expects to be written: the unused part of its read buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadRoom {
    pub(crate) address: u64,
    pub(crate) len: u64,
}

/// Memory of the thread that we use temporarily.
pub(super) struct Scratch {
    memory: Rc<MemoryHandle>,
    address: u64,
    len: u64,
    /// The previous contents, to be restored; empty if they do not matter.
    saved: Vec<u8>,
}

impl Scratch {
    /// Uses the thread's read buffer, or if that is too small, memory below its stack, which is
    /// restored afterwards.
    pub(super) fn new(tracee: &Tracee, room: ReadRoom, files: usize) -> io::Result<Self> {
        let (abi, files) = (tracee.abi(), files.min(FILES_A_MESSAGE));
        let need = (Frame::control_at(abi) + Frame::control_len(abi, files)) as u64;
        let memory = Rc::clone(tracee.memory());
        let (start, len) = (room.address.next_multiple_of(8), room.len.saturating_sub(8));
        if len >= need && abi.reaches(start, need) {
            return Ok(Self { memory, address: start, len: need, saved: Vec::new() });
        }
        let address = (tracee.stack().saturating_sub(RED_ZONE + need)) & !15;
        if !abi.reaches(address, need) {
            return Err(io::Error::other("its 32-bit system calls do not reach its stack"));
        }
        let mut saved = vec![0; need as usize];
        memory
            .read(address, &mut saved)
            .map_err(|_| io::Error::other("no memory below its stack"))?;
        Ok(Self { memory, address, len: need, saved })
    }

    /// Writes to what was just read.
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_present(self.address, bytes).map_err(|_| fault())
    }

    fn read_sockets(&self) -> io::Result<[i32; 2]> {
        let mut sockets = [0; 8];
        let read = self.memory.read_before_write(self.address, &mut sockets, self.len);
        read.map_err(|_| fault())?;
        Ok([0, 4].map(|at| i32::from_ne_bytes([0, 1, 2, 3].map(|i| sockets[at + i]))))
    }

    fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        self.memory.read(self.address + at as u64, into).map_err(|_| fault())
    }

    fn put_back(&self) {
        if !self.saved.is_empty() {
            let _ = self.memory.write(self.address, &self.saved);
        }
    }
}

fn fault() -> io::Error {
    io::Error::from_raw_os_error(libc::EFAULT)
}

/// Installs the files, close-on-exec. On a failure no file remains.
pub(super) fn install(
    tracee: &mut Tracee,
    files: &[Arc<ClientFile>],
    room: ReadRoom,
    keeper: &SocketKeeper,
) -> Result<Installation, Failure> {
    let scratch = Scratch::new(tracee, room, files.len())?;
    let installed = install_with(tracee, files, &scratch, keeper);
    if !matches!(installed, Err(Failure::Lost(Lost::Gone))) {
        scratch.put_back();
    }
    installed
}

fn install_with(
    tracee: &mut Tracee,
    files: &[Arc<ClientFile>],
    scratch: &Scratch,
    keeper: &SocketKeeper,
) -> Result<Installation, Failure> {
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    let arguments = [libc::AF_UNIX as u64, kind, 0, scratch.address];
    checked(tracee.call(SystemCall::Socketpair, arguments)?)?;
    let [near, far] = scratch.read_sockets()?;
    // Charged to the receiver, and closed by the threads of `closers` because the close may block:
    // a hostile client may have put another file in the socket's place meanwhile.
    let fetched =
        fetch(tracee.tid(), near).map(|socket| keeper.closers.adopt(socket, keeper.charge));
    // Closed first, so that the first file gets the number that a normal `recvmsg` would give it.
    // Only a thread that is still stopped can close it: so the number of a thread that was replaced
    // by an execve meanwhile was not used.
    close(tracee, near)?;
    let mut fds = Vec::with_capacity(files.len());
    let passed = fetched.map_err(Failure::from).and_then(|socket| {
        let mut messages = files.chunks(FILES_A_MESSAGE);
        let pair = SocketPair { near: &socket, far };
        messages.try_for_each(|files| pass(tracee, files, &pair, scratch, &mut fds))?;
        Ok(socket)
    });
    match passed {
        Ok(socket) => {
            take_place_of_socket(tracee, far, &mut fds)?;
            Ok(Installation { fds, socket })
        }
        Err(Failure::Refused(error)) => {
            fds.push(far as u32);
            close_all(tracee, &fds)?;
            Err(error.into())
        }
        Err(lost) => Err(lost),
    }
}

/// The socket's number is lower than those of the files after the first: the last file moves there.
fn take_place_of_socket(tracee: &mut Tracee, far: i32, fds: &mut [u32]) -> Result<(), Lost> {
    if let [_, .., last] = fds {
        let moved = *last;
        let arguments = [u64::from(moved), far as u64, libc::O_CLOEXEC as u64, 0];
        if tracee.call(SystemCall::Dup3, arguments)? == i64::from(far) {
            *last = far as u32;
            return close(tracee, moved as i32);
        }
    }
    close(tracee, far)
}

/// Both ends of the thread's socket pair.
struct SocketPair<'a> {
    /// Fetched from the thread.
    near: &'a ClientFile,
    /// Number of the other end in the thread's table.
    far: i32,
}

/// Sends some files into the socket and has the thread receive them; `fds` contains the installed
/// numbers, also on a failure.
fn pass(
    tracee: &mut Tracee,
    files: &[Arc<ClientFile>],
    pair: &SocketPair<'_>,
    scratch: &Scratch,
    fds: &mut Vec<u32>,
) -> Result<(), Failure> {
    let SocketPair { near, far } = *pair;
    send(near, files)?;
    let frame = Frame { abi: tracee.abi(), address: scratch.address };
    scratch.write(&frame.bytes(files.len()))?;
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
    let arguments = [far as u64, frame.message(), flags, 0];
    checked(tracee.call(SystemCall::Recvmsg, arguments)?)?;
    // A full descriptor table truncates the message: the files that did arrive are closed again
    // with the others.
    let mut control = vec![0; Frame::control_len(frame.abi, files.len())];
    scratch.read(Frame::control_at(frame.abi), &mut control)?;
    let mut numbers = Frame::received(frame.abi, &control);
    numbers.truncate(files.len());
    let count = numbers.len();
    fds.append(&mut numbers);
    if count < files.len() {
        return Err(io::Error::from_raw_os_error(libc::EMFILE).into());
    }
    Ok(())
}

fn send(socket: &ClientFile, files: &[Arc<ClientFile>]) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let fds: Vec<_> = files.iter().map(|file| std::os::fd::AsFd::as_fd(&**file)).collect();
    let room = Frame::control_len(Abi::Native, files.len());
    let mut space = vec![std::mem::MaybeUninit::uninit(); room];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[io::IoSlice::new(b"f")], &mut control, flags)?;
    Ok(())
}

/// Closes descriptors of the thread.
pub(super) fn close_all(tracee: &mut Tracee, fds: &[u32]) -> Result<(), Lost> {
    fds.iter().try_for_each(|&fd| close(tracee, fd as i32))
}

fn close(tracee: &mut Tracee, fd: i32) -> Result<(), Lost> {
    // A descriptor that the client has closed itself meanwhile is no error.
    tracee.call(SystemCall::Close, [fd as u64, 0, 0, 0]).map(drop)
}

fn checked(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(()) }
}

/// Memory of the thread for its calls: the numbers of two sockets, then a `msghdr`, an `iovec`, one
/// byte of data and the control message of some files.
#[derive(Clone, Copy, Debug)]
struct Frame {
    abi: Abi,
    address: u64,
}

/// Bytes of the two sockets' numbers.
const SOCKETS: usize = 8;
/// Words of a `msghdr`: each of its members has the size or the alignment of a word.
const MESSAGE_WORDS: usize = 7;
const PART_WORDS: usize = 2;

impl Frame {
    /// Address of the `msghdr`.
    fn message(&self) -> u64 {
        self.address + SOCKETS as u64
    }

    /// Offset of the byte of data.
    fn byte_at(abi: Abi) -> usize {
        SOCKETS + (MESSAGE_WORDS + PART_WORDS) * abi.word()
    }

    /// Offset of the control message.
    fn control_at(abi: Abi) -> usize {
        (Self::byte_at(abi) + 1).next_multiple_of(8)
    }

    /// Bytes in front of the files in the control message: `cmsghdr`.
    fn header(abi: Abi) -> usize {
        abi.word() + 2 * size_of::<i32>()
    }

    /// Bytes of a control message with some files (`CMSG_SPACE`).
    fn control_len(abi: Abi, files: usize) -> usize {
        Self::header(abi) + (files * size_of::<i32>()).next_multiple_of(abi.word())
    }

    /// Contents of the frame for `recvmsg` of some files. The control message is empty: a header
    /// that the kernel does not overwrite counts no file.
    fn bytes(&self, files: usize) -> Vec<u8> {
        let at = |offset: usize| self.address + offset as u64;
        let control = Self::control_at(self.abi);
        let part = SOCKETS + MESSAGE_WORDS * self.abi.word();
        let room = Self::control_len(self.abi, files) as u64;
        let message = [0, 0, at(part), 1, at(control), room, 0];
        let part = [at(Self::byte_at(self.abi)), 1];
        let mut bytes = vec![0; SOCKETS];
        for word in message.into_iter().chain(part) {
            bytes.extend_from_slice(&word.to_le_bytes()[..self.abi.word()]);
        }
        bytes.resize(control + Self::header(self.abi), 0);
        bytes
    }

    /// The numbers in a control message that was received.
    fn received(abi: Abi, control: &[u8]) -> Vec<u32> {
        let (header, word) = (Self::header(abi), abi.word());
        let mut len = [0; 8];
        len[..word].copy_from_slice(&control[..word]);
        let files = &control[header..];
        let len = (u64::from_le_bytes(len) as usize).saturating_sub(header).min(files.len());
        let number = |fd: &[u8]| u32::from_le_bytes([fd[0], fd[1], fd[2], fd[3]]);
        files[..len].chunks_exact(4).map(number).collect()
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// The frame in the layout of the C library.
    #[repr(C)]
    struct NativeFrame {
        sockets: [i32; 2],
        message: libc::msghdr,
        part: libc::iovec,
        byte: u64,
    }

    #[test]
    fn a_native_frame_has_the_layout_of_the_c_library() {
        let frame = Frame { abi: Abi::Native, address: 0x1000 };
        let bytes = frame.bytes(3);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let message = offset_of!(NativeFrame, message);
        assert_eq!(frame.message(), 0x1000 + message as u64);
        let part = word(message + offset_of!(libc::msghdr, msg_iov)) as usize - 0x1000;
        assert_eq!(part, offset_of!(NativeFrame, part));
        assert_eq!(word(part), 0x1000 + offset_of!(NativeFrame, byte) as u64);
        let control = word(message + offset_of!(libc::msghdr, msg_control)) as usize - 0x1000;
        assert_eq!(control, size_of::<NativeFrame>());
        assert_eq!(control, Frame::control_at(Abi::Native));
        // SAFETY: computes a number from a number.
        let space = unsafe { libc::CMSG_SPACE(3 * 4) };
        assert_eq!(word(message + offset_of!(libc::msghdr, msg_controllen)), u64::from(space));
        assert_eq!(Frame::control_len(Abi::Native, 3), space as usize);
    }

    #[test]
    fn the_numbers_of_received_files_are_read_as_far_as_the_message_is_filled() {
        for (abi, header) in [(Abi::Native, 16_u64), (Abi::Compat, 12)] {
            let word = abi.word();
            let message = |len: u64| {
                let mut control = len.to_le_bytes()[..word].to_vec();
                control.extend([0; 8]);
                control.extend([5_u32, 6, 7].map(u32::to_le_bytes).concat());
                control
            };
            let received = |len| Frame::received(abi, &message(len));
            assert_eq!(received(header + 12), [5, 6, 7]);
            assert_eq!(received(header + 8), [5, 6]);
            assert_eq!(received(0), [0; 0], "the kernel has written no message");
            assert_eq!(received(u64::MAX), [5, 6, 7], "the client has written a length");
        }
    }
}
