//! The registers of a stopped thread on aarch64.

use std::io;

use super::tracee::{Abi, PtraceRequest, SystemCall, ptrace};

/// Whether files can be installed in a thread on this architecture.
pub(super) const SUPPORTED: bool = true;

/// An instruction that makes a system call. The mask excludes the immediate value, which the kernel
/// ignores.
struct SystemCallInstruction {
    code: i64,
    mask: i64,
    len: u64,
}

/// `svc` of 64-bit code, of 32-bit code and of Thumb code.
const SVC: SystemCallInstruction =
    SystemCallInstruction { code: 0xd400_0001, mask: 0xffe0_001f, len: 4 };
const SVC_ARM: SystemCallInstruction =
    SystemCallInstruction { code: 0xef00_0000, mask: 0xff00_0000, len: 4 };
const SVC_THUMB: SystemCallInstruction =
    SystemCallInstruction { code: 0xdf00, mask: 0xff00, len: 2 };
/// The general registers (linux/elf.h).
const NT_PRSTATUS: usize = 1;
/// Numbers of registers: the first argument and result of a call, and its number.
const RESULT: usize = 0;
const NUMBER: usize = 8;

/// Number of the registers of a 32-bit thread (`COMPAT_ELF_NGREG`), and of some: the number of a
/// call, stack pointer, program counter, status, and the first argument of the last call.
const ARM_COUNT: usize = 18;
const ARM_NUMBER: usize = 7;
const ARM_SP: usize = 13;
const ARM_PC: usize = 15;
const ARM_STATUS: usize = 16;
const ARM_FIRST_ARGUMENT: usize = 17;
/// The status of Thumb code, and of a block of conditional instructions (`PSR_T_BIT`,
/// `PSR_IT_MASK`).
const THUMB: u32 = 1 << 5;
const CONDITIONS: u32 = 0x0600_fc00;

/// The result of a call replaces its first argument in the register, and the kernel's copy cannot
/// be read once the thread has stopped.
pub(super) const LOSES_FIRST_ARGUMENT: bool = true;

/// The general registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Registers {
    Native(libc::user_regs_struct),
    Arm([u32; ARM_COUNT]),
}

use Registers::{Arm, Native};

impl Registers {
    /// The kernel returns those that a thread has: their number distinguishes 32-bit threads.
    pub(super) fn get(tid: u32) -> io::Result<Self> {
        // SAFETY: the structure is plain numbers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let (address, len) = (&raw mut registers, size_of::<libc::user_regs_struct>());
        match Self::transfer(libc::PTRACE_GETREGSET as PtraceRequest, tid, address.cast(), len)? {
            found if found == len => Ok(Native(registers)),
            found if found == size_of::<[u32; ARM_COUNT]>() => {
                let mut of_arm = [0; ARM_COUNT];
                // SAFETY: the kernel has written that many bytes, and the structure is larger.
                unsafe { address.cast::<u32>().copy_to(of_arm.as_mut_ptr(), ARM_COUNT) };
                Ok(Arm(of_arm))
            }
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "it has unknown registers")),
        }
    }

    pub(super) fn set(&self, tid: u32) -> io::Result<()> {
        let mut registers = *self;
        let (address, len) = match &mut registers {
            Native(registers) => ((&raw mut *registers).cast(), size_of_val(registers)),
            Arm(registers) => (registers.as_mut_ptr().cast(), size_of_val(registers)),
        };
        Self::transfer(libc::PTRACE_SETREGSET as PtraceRequest, tid, address, len).map(drop)
    }

    /// Returns the number of bytes that the kernel has read or written.
    fn transfer(
        request: PtraceRequest,
        tid: u32,
        registers: *mut libc::c_void,
        iov_len: usize,
    ) -> io::Result<usize> {
        let mut part = libc::iovec { iov_base: registers, iov_len };
        ptrace(request, tid, NT_PRSTATUS, &raw mut part as usize)?;
        Ok(part.iov_len)
    }

    /// The system call instruction of the thread's code.
    fn instruction(&self) -> SystemCallInstruction {
        match self {
            Native(_) => SVC,
            Arm(registers) if registers[ARM_STATUS] & THUMB != 0 => SVC_THUMB,
            Arm(_) => SVC_ARM,
        }
    }

    fn instruction_len(&self) -> u64 {
        self.instruction().len
    }

    fn pc(&self) -> u64 {
        match self {
            Native(registers) => registers.pc,
            Arm(registers) => registers[ARM_PC].into(),
        }
    }

    fn set_pc(&mut self, pc: u64) {
        match self {
            Native(registers) => registers.pc = pc,
            Arm(registers) => registers[ARM_PC] = pc as u32,
        }
    }

    /// Which system calls the instruction makes that the thread is stopped right behind; `None`:
    /// another instruction.
    pub(super) fn abi(&self, tid: u32) -> io::Result<Option<Abi>> {
        let SystemCallInstruction { code, mask, len } = self.instruction();
        let found = ptrace(libc::PTRACE_PEEKTEXT, tid, self.pc().wrapping_sub(len) as usize, 0)?;
        let abi = match self {
            Native(_) => Abi::Native,
            Arm(_) => Abi::Compat,
        };
        Ok((found & mask == code).then_some(abi))
    }

    /// The registers with which the thread makes another system call from there.
    pub(super) fn calling(mut self, abi: Abi, call: SystemCall, arguments: [u64; 4]) -> Self {
        self.set_pc(self.pc() - self.instruction_len());
        match &mut self {
            Native(registers) => {
                registers.regs[..arguments.len()].copy_from_slice(&arguments);
                registers.regs[NUMBER] = abi.number(call) as u64;
            }
            Arm(registers) => {
                registers[..arguments.len()].copy_from_slice(&arguments.map(|word| word as u32));
                registers[ARM_NUMBER] = abi.number(call) as u32;
                registers[ARM_STATUS] &= !CONDITIONS;
            }
        }
        self
    }

    /// Whether the thread has executed the call that [`calling`](Self::calling) prepared in these
    /// registers.
    pub(super) fn has_made_call(&self, prepared: &Self) -> bool {
        self.pc() == prepared.pc() + prepared.instruction_len()
    }

    /// The registers with which the thread repeats its last system call. If its first argument is
    /// not known, the call fails with `EINTR`, as if a signal had interrupted it.
    pub(super) fn again(mut self, first_argument: Option<u64>) -> Self {
        let first_argument = match self {
            Native(_) => first_argument,
            Arm(registers) => Some(registers[ARM_FIRST_ARGUMENT].into()),
        };
        let Some(first_argument) = first_argument else {
            return self.returning(-i64::from(libc::EINTR));
        };
        self.set_pc(self.pc() - self.instruction_len());
        self.returning(first_argument as i64)
    }

    /// The registers with which the thread's last system call returns `result`.
    pub(super) fn returning(mut self, result: i64) -> Self {
        match &mut self {
            Native(registers) => registers.regs[RESULT] = result as u64,
            Arm(registers) => registers[RESULT] = result as u32,
        }
        self
    }

    /// Result of the last system call.
    pub(super) fn result(&self, _: Abi) -> i64 {
        match self {
            Native(registers) => registers.regs[RESULT] as i64,
            Arm(registers) => i64::from(registers[RESULT] as i32),
        }
    }

    pub(super) fn stack(&self) -> u64 {
        match self {
            Native(registers) => registers.sp,
            Arm(registers) => registers[ARM_SP].into(),
        }
    }
}
