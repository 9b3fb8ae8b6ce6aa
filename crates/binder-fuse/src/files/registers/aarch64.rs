//! The registers of a stopped thread on aarch64.

use std::io;

use super::system_call::{Abi, SystemCall};
use super::tracee::{PtraceRequest, ptrace};

/// Whether files can be installed in a thread on this architecture.
pub(super) const SUPPORTED: bool = true;

/// `svc`, whose immediate value the kernel ignores.
const SVC_INSTRUCTION: i64 = 0xd400_0001;
const SVC_MASK: i64 = 0xffe0_001f;
const INSTRUCTION_LEN: u64 = 4;
/// The general registers (linux/elf.h).
const NT_PRSTATUS: usize = 1;
/// Numbers of registers: the first argument and result of a call, and its number.
const RESULT: usize = 0;
const NUMBER: usize = 8;

/// The result of a call replaces its first argument in the register, and the kernel's copy cannot
/// be read once the thread has stopped.
pub(super) const LOSES_FIRST_ARGUMENT: bool = true;

/// The general registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers(libc::user_regs_struct);

impl Registers {
    /// Fails in a 32-bit thread, which has other registers.
    pub(super) fn get(tid: u32) -> io::Result<Self> {
        // SAFETY: the structure is plain numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let len = Self::transfer(libc::PTRACE_GETREGSET as PtraceRequest, tid, &raw mut registers)?;
        if len != size_of::<libc::user_regs_struct>() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a 32-bit thread"));
        }
        Ok(Self(registers))
    }

    pub(super) fn set(&self, tid: u32) -> io::Result<()> {
        let mut registers = self.0;
        Self::transfer(libc::PTRACE_SETREGSET as PtraceRequest, tid, &raw mut registers).map(drop)
    }

    /// Returns the number of bytes that the kernel has read or written.
    fn transfer(
        request: PtraceRequest,
        tid: u32,
        registers: *mut libc::user_regs_struct,
    ) -> io::Result<usize> {
        let iov_len = size_of::<libc::user_regs_struct>();
        let mut part = libc::iovec { iov_base: registers.cast(), iov_len };
        ptrace(request, tid, NT_PRSTATUS, &raw mut part as usize)?;
        Ok(part.iov_len)
    }

    /// Which system calls the instruction makes that the thread is stopped right behind; `None`:
    /// another instruction.
    pub(super) fn abi(&self, tid: u32) -> io::Result<Option<Abi>> {
        let site = self.0.pc.wrapping_sub(INSTRUCTION_LEN) as usize;
        let code = ptrace(libc::PTRACE_PEEKTEXT, tid, site, 0)?;
        Ok((code & SVC_MASK == SVC_INSTRUCTION).then_some(Abi::Native))
    }

    /// The registers with which the thread makes another system call from there.
    pub(super) fn calling(mut self, abi: Abi, call: SystemCall, arguments: [u64; 4]) -> Self {
        self.0.pc -= INSTRUCTION_LEN;
        self.0.regs[..arguments.len()].copy_from_slice(&arguments);
        self.0.regs[NUMBER] = abi.number(call) as u64;
        self
    }

    /// Whether the thread has executed the call that [`calling`](Self::calling) prepared in these
    /// registers.
    pub(super) fn has_made_call(&self, prepared: &Self) -> bool {
        self.0.pc == prepared.0.pc + INSTRUCTION_LEN
    }

    /// The registers with which the thread repeats its last system call. If its first argument is
    /// not known, the call fails with `EINTR`, as if a signal had interrupted it.
    pub(super) fn again(mut self, first_argument: Option<u64>) -> Self {
        let Some(first_argument) = first_argument else {
            return self.returning(-i64::from(libc::EINTR));
        };
        self.0.pc -= INSTRUCTION_LEN;
        self.0.regs[RESULT] = first_argument;
        self
    }

    /// The registers with which the thread's last system call returns `result`.
    pub(super) fn returning(mut self, result: i64) -> Self {
        self.0.regs[RESULT] = result as u64;
        self
    }

    /// Result of the last system call.
    pub(super) fn result(&self, _: Abi) -> i64 {
        self.0.regs[RESULT] as i64
    }

    pub(super) fn stack(&self) -> u64 {
        self.0.sp
    }
}
