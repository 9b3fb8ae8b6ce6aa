//! The registers of a stopped thread on x86-64.

use std::io;

use super::tracee::{Abi, SystemCall, ptrace};

/// Whether files can be installed in a thread on this architecture.
pub(super) const SUPPORTED: bool = true;

/// `syscall` and `int 0x80`, two bytes each.
const SYSCALL_INSTRUCTION: i64 = 0x050f;
const INT80_INSTRUCTION: i64 = 0x80cd;
const INSTRUCTION_LEN: u64 = 2;
/// `__USER_CS`; 32-bit code runs in another segment.
const CODE_SEGMENT_64: u64 = 0x33;

/// The registers contain all arguments of a call after it.
pub(super) const LOSES_FIRST_ARGUMENT: bool = false;

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

    /// Which system calls the instruction makes that the thread is stopped right behind; `None`:
    /// another instruction.
    pub(super) fn abi(&self, tid: u32) -> io::Result<Option<Abi>> {
        let site = self.0.rip.wrapping_sub(INSTRUCTION_LEN) as usize;
        let code = ptrace(libc::PTRACE_PEEKTEXT, tid, site, 0)?;
        Ok(match code & 0xffff {
            SYSCALL_INSTRUCTION if self.0.cs == CODE_SEGMENT_64 => Some(Abi::Native),
            // `sysenter` and `syscall` of 32-bit code return behind an `int 0x80` as well.
            INT80_INSTRUCTION => Some(Abi::Compat),
            _ => None,
        })
    }

    /// The registers with which the thread makes another system call from there.
    pub(super) fn calling(mut self, abi: Abi, call: SystemCall, arguments: [u64; 4]) -> Self {
        let registers = &mut self.0;
        registers.rip -= INSTRUCTION_LEN;
        registers.rax = abi.number(call) as u64;
        // Not in a system call: a signal must not restart one.
        registers.orig_rax = u64::MAX;
        let [a, b, c, d] = arguments;
        match abi {
            Abi::Native => {
                (registers.rdi, registers.rsi, registers.rdx, registers.r10) = (a, b, c, d);
            }
            Abi::Compat => {
                (registers.rbx, registers.rcx, registers.rdx, registers.rsi) = (a, b, c, d)
            }
        }
        self
    }

    /// Whether the thread has executed the call that [`calling`](Self::calling) prepared in these
    /// registers.
    pub(super) fn has_made_call(&self, prepared: &Self) -> bool {
        self.0.rip == prepared.0.rip + INSTRUCTION_LEN
    }

    /// The registers with which the thread repeats its last system call.
    pub(super) fn again(mut self, _: Option<u64>) -> Self {
        self.0.rip -= INSTRUCTION_LEN;
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
    pub(super) fn result(&self, abi: Abi) -> i64 {
        match abi {
            Abi::Native => self.0.rax as i64,
            Abi::Compat => i64::from(self.0.rax as i32),
        }
    }

    pub(super) fn stack(&self) -> u64 {
        self.0.rsp
    }
}
