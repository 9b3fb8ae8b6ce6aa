//! The registers of a stopped thread on x86-64.

use std::io;

use super::tracee::ptrace;

/// Whether files can be installed in a thread on this architecture.
pub(super) const SUPPORTED: bool = true;

/// `syscall`, two bytes.
const SYSCALL_INSTRUCTION: i64 = 0x050f;
const SYSCALL_LEN: u64 = 2;
/// `__USER_CS`; 32-bit code runs in another segment.
const CODE_SEGMENT_64: u64 = 0x33;

/// All general registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers(libc::user_regs_struct);

impl Registers {
    pub(super) fn get(tid: u32) -> io::Result<Self> {
        // SAFETY: the structure is plain numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize)?;
        Ok(Self(registers))
    }

    pub(super) fn set(&self, tid: u32) -> io::Result<()> {
        ptrace(libc::PTRACE_SETREGS, tid, 0, &raw const self.0 as usize).map(drop)
    }

    /// Whether the thread is stopped right behind a 64-bit system call of its own.
    pub(super) fn is_behind_call(&self, tid: u32) -> io::Result<bool> {
        // The same instruction in 32-bit code makes system calls with other numbers.
        if self.0.cs != CODE_SEGMENT_64 {
            return Ok(false);
        }
        let site = self.0.rip.wrapping_sub(SYSCALL_LEN) as usize;
        let code = ptrace(libc::PTRACE_PEEKTEXT, tid, site, 0)?;
        Ok(code & 0xffff == SYSCALL_INSTRUCTION)
    }

    /// The registers with which the thread makes another system call from there.
    pub(super) fn calling(mut self, number: i64, arguments: [u64; 6]) -> Self {
        let registers = &mut self.0;
        registers.rip -= SYSCALL_LEN;
        registers.rax = number as u64;
        // Not in a system call: a signal must not restart one.
        registers.orig_rax = u64::MAX;
        let [a, b, c, d, e, f] = arguments;
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        self
    }

    /// Whether the thread has executed the call that [`calling`](Self::calling) prepared in these
    /// registers.
    pub(super) fn has_made_call(&self, prepared: &Self) -> bool {
        self.0.rip == prepared.0.rip + SYSCALL_LEN
    }

    /// The registers with which the thread repeats its last system call.
    pub(super) fn again(mut self) -> Self {
        self.0.rip -= SYSCALL_LEN;
        self.0.rax = self.0.orig_rax;
        self.0.orig_rax = u64::MAX;
        self
    }

    /// The registers with which the thread's last system call returns `result`.
    pub(super) fn returning(mut self, result: i64) -> Self {
        self.0.rax = result as u64;
        self.0.orig_rax = u64::MAX;
        self
    }

    /// Result of the last system call.
    pub(super) fn result(&self) -> i64 {
        self.0.rax as i64
    }

    pub(super) fn stack(&self) -> u64 {
        self.0.rsp
    }
}
