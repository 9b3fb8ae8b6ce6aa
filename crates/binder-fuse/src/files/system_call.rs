//! The system calls that a stopped thread makes for us, in 64-bit and in 32-bit code.

/// What a system call instruction of the thread calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    /// The calls of this program.
    Native,
    /// The calls of 32-bit programs.
    #[cfg_attr(not(any(test, target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
    Compat,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SystemCall {
    Close,
    Dup3,
    Recvmsg,
    Socketpair,
}

/// Numbers of these calls in 32-bit programs: `arch/arm/tools/syscall.tbl` and
/// `arch/x86/entry/syscalls/syscall_32.tbl`.
const COMPAT_NUMBERS: [i64; 4] =
    if cfg!(target_arch = "aarch64") { [6, 358, 297, 288] } else { [6, 330, 372, 360] };

impl Abi {
    pub(super) fn number(self, call: SystemCall) -> i64 {
        use SystemCall::{Close, Dup3, Recvmsg, Socketpair};
        match (self, call) {
            (Self::Native, Close) => libc::SYS_close,
            (Self::Native, Dup3) => libc::SYS_dup3,
            (Self::Native, Recvmsg) => libc::SYS_recvmsg,
            (Self::Native, Socketpair) => libc::SYS_socketpair,
            (Self::Compat, call) => COMPAT_NUMBERS[call as usize],
        }
    }

    /// Bytes of a pointer and of a `size_t`.
    fn word(self) -> usize {
        match self {
            Self::Native => size_of::<usize>(),
            Self::Compat => 4,
        }
    }

    /// Whether a range of memory can be an argument.
    pub(super) fn reaches(self, address: u64, len: u64) -> bool {
        let end = address.checked_add(len);
        self == Self::Native || end.is_some_and(|end| end <= 1 << 32)
    }
}

/// Memory of the thread for its calls: the numbers of two sockets, then a `msghdr`, an `iovec`, one
/// byte of data and the control message of some files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) abi: Abi,
    pub(super) address: u64,
}

/// Bytes of the two sockets' numbers.
const SOCKETS: usize = 8;
/// Words of a `msghdr`: each of its members has the size or the alignment of a word.
const MESSAGE_WORDS: usize = 7;
const PART_WORDS: usize = 2;

impl Frame {
    /// Address of the `msghdr`.
    pub(super) fn message(&self) -> u64 {
        self.address + SOCKETS as u64
    }

    /// Offset of the byte of data.
    fn byte_at(abi: Abi) -> usize {
        SOCKETS + (MESSAGE_WORDS + PART_WORDS) * abi.word()
    }

    /// Offset of the control message.
    pub(super) fn control_at(abi: Abi) -> usize {
        (Self::byte_at(abi) + 1).next_multiple_of(8)
    }

    /// Bytes in front of the files in the control message: `cmsghdr`.
    fn header(abi: Abi) -> usize {
        abi.word() + 2 * size_of::<i32>()
    }

    /// Bytes of a control message with some files (`CMSG_SPACE`).
    pub(super) fn control_len(abi: Abi, files: usize) -> usize {
        Self::header(abi) + (files * size_of::<i32>()).next_multiple_of(abi.word())
    }

    /// Contents of the frame for `recvmsg` of some files. The control message is empty: a header
    /// that the kernel does not overwrite counts no file.
    pub(super) fn bytes(&self, files: usize) -> Vec<u8> {
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
    pub(super) fn received(abi: Abi, control: &[u8]) -> Vec<u32> {
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
    use super::*;
    use std::mem::{offset_of, size_of};

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

    #[test]
    fn memory_above_four_gibibytes_is_out_of_reach_of_32_bit_calls() {
        let reaches =
            |address, len| [Abi::Native, Abi::Compat].map(|abi| abi.reaches(address, len));
        assert_eq!(reaches((1 << 32) - 8, 8), [true, true]);
        assert_eq!(reaches((1 << 32) - 8, 9), [true, false]);
        assert_eq!(reaches(u64::MAX, 1), [true, false]);
    }
}
