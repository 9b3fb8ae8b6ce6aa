//! The registers of a stopped thread on x86-64.

use std::io;

use super::tracee::ptrace;

/// A thread's files can be reached here.
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

    /// The thread stands right behind a 64-bit system call of its own.
    pub(super) fn is_behind_call(&self, tid: u32) -> io::Result<bool> {
        // In 32-bit code the same instruction makes calls by other numbers.
        if self.0.cs != CODE_SEGMENT_64 {
            return Ok(false);
        }
        let site = self.0.rip.wrapping_sub(SYSCALL_LEN) as usize;
        let code = ptrace(libc::PTRACE_PEEKTEXT, tid, site, 0)?;
        Ok(code & 0xffff == SYSCALL_INSTRUCTION)
    }

    /// The same thread about to make another call from there.
    pub(super) fn calling(mut self, number: i64, arguments: [u64; 6]) -> Self {
        let registers = &mut self.0;
        registers.rip -= SYSCALL_LEN;
        registers.rax = number as u64;
        // No call is being returned from: there is nothing that a signal could restart.
        registers.orig_rax = u64::MAX;
        let [a, b, c, d, e, f] = arguments;
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        self
    }

    /// The same thread about to make its last call again.
    pub(super) fn again(mut self) -> Self {
        self.0.rip -= SYSCALL_LEN;
        self.0.rax = self.0.orig_rax;
        self.0.orig_rax = u64::MAX;
        self
    }

    /// The same thread whose last call returns this.
    pub(super) fn returning(mut self, result: i64) -> Self {
        self.0.rax = result as u64;
        self.0.orig_rax = u64::MAX;
        self
    }

    /// What its last call returned.
    pub(super) fn result(&self) -> i64 {
        self.0.rax as i64
    }

    pub(super) fn stack(&self) -> u64 {
        self.0.rsp
    }
}
