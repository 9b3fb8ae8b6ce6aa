//! A client's thread that is stopped at the return from an ioctl on our device, and made to execute
//! system calls for us.
//!
//! A ptrace relation belongs to the tracing thread, so all of this happens on one thread of ours.
//! The client's signals are blocked while we act and delivered when it is resumed; its registers
//! are restored.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use headroom_linux::machine_memory::value_of;
use headroom_linux::task_status;
use serde::{Deserialize, Serialize};

use super::registers::{LOSES_FIRST_ARGUMENT, Registers};
use crate::client_memory::MemoryHandle;
use crate::identity::signals;
use crate::interrupt_timer::PERIOD;
use crate::nonblock::await_first_argument;
use crate::placement::{self, Move, Moved};

/// Number of timer periods in which a thread must stop or make one call before it counts as stuck
/// (ten seconds). Both take microseconds, unless the thread gets no CPU time: on an overloaded
/// machine half a second was not enough. A thread that is frozen by its control group counts as
/// stuck after two whole periods: the timer may run already, so the first one may be shorter.
const MAX_PERIODS: u32 = (Duration::from_secs(10).as_millis() / PERIOD.as_millis()) as u32;

/// Why a thread cannot be used.
#[derive(Debug)]
pub(super) enum Lost {
    /// The thread has exited.
    Gone,
    /// The thread does not react, or is being killed. It has to be waited for later, because a
    /// thread that has exited stays a zombie until its tracer has waited for it.
    Stuck(Box<Tracee>),
    /// The thread cannot be traced: another tracer, no permission, or not the expected thread.
    Refused(io::Error),
}

/// How a thread is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its ioctl returns the result of the reply.
    Unchanged,
    /// Its ioctl returns this value.
    Return(i64),
    /// It makes its ioctl again.
    Again,
}

/// How a thread is stopped after a system call that it makes for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CallStop {
    /// By a single step: one stop per call. The kernel reports the step by a SIGTRAP, and would
    /// reset the disposition of a process that ignores it.
    Step,
    /// At the entry and at the exit of the call (`PTRACE_SYSCALL`).
    EntryAndExit,
}

/// A traced thread.
#[derive(Debug)]
pub(super) struct Tracee {
    tid: u32,
    /// The address space that it had in its ioctl.
    memory: Rc<MemoryHandle>,
    call_stop: CallStop,
    /// Of the ioctl in which it stopped, if the registers lose it.
    first_argument: Option<u64>,
    /// Of that ioctl.
    abi: Abi,
    /// Its registers when it stopped; `None` before.
    registers: Option<Registers>,
    /// Its signal mask when it stopped.
    mask: u64,
    /// Signals that were suppressed, to be sent again: a bit for each.
    suppressed: u64,
    /// The thread was moved to our CPU.
    moved: Option<Moved>,
}

/// Why no stop was reported.
enum Absence {
    /// The thread has exited.
    Gone,
    /// The waiting thread received a signal.
    Interrupted,
}

enum Stop {
    /// Entry or exit of a call.
    Call,
    /// A signal is about to be delivered.
    Signal(i32),
    /// We requested the stop, or the process is being stopped.
    Trap,
}

/// The bit of a signal in a mask.
fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Whether the thread sleeps in the freezer of a control group (`__refrigerator` of version 1,
/// `do_freezer_trap` of version 2).
fn is_frozen(tid: u32) -> bool {
    let place = std::fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default();
    place.contains("refrigerator") || place.contains("freezer_trap")
}

/// Whether a signal to the thread itself waits for delivery.
fn is_queued(signal: i32, tid: u32) -> bool {
    let status = task_status(tid).unwrap_or_default();
    signals(&status, "SigPnd") & bit(signal) != 0
}

impl Tracee {
    /// Traces a thread that is blocked in an ioctl on our device, and requests a stop for its
    /// return. Its seccomp filters do not see the calls that it makes for us.
    pub(super) fn seize(tid: u32, call_stop: CallStop, known_filters: u32) -> io::Result<Self> {
        let memory = Rc::new(MemoryHandle::open(tid)?);
        let options = libc::PTRACE_O_TRACESYSGOOD;
        match seize(tid, options | libc::PTRACE_O_SUSPEND_SECCOMP) {
            // Filters are suspended for a tracer with CAP_SYS_ADMIN and without a filter.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
                check_filters(tid, known_filters)?;
                seize(tid, options)?;
            }
            seized => seized?,
        }
        let moved = match placement::move_here(tid) {
            Move::Moved(moved) => Some(moved),
            Move::Bound | Move::Refused => None,
        };
        let first_argument = if LOSES_FIRST_ARGUMENT { await_first_argument(tid) } else { None };
        // Fails only if the thread has exited, which the wait for the stop detects.
        let _ = ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0);
        let abi = Abi::Native;
        let (registers, mask, suppressed) = (None, 0, 0);
        Ok(Self { tid, memory, call_stop, first_argument, abi, registers, mask, suppressed, moved })
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid
    }

    /// Its memory.
    pub(super) fn memory(&self) -> &Rc<MemoryHandle> {
        &self.memory
    }

    /// Waits until the thread, whose ioctl has its reply, has stopped at the return from the ioctl.
    pub(super) fn stopped(mut self) -> Result<Self, Lost> {
        match self.wait() {
            Ok(Some(_)) => {}
            Ok(None) => return Err(self.stuck()),
            Err(()) => return Err(Lost::Gone),
        }
        match self.prepare() {
            Ok(()) => Ok(self),
            Err(error) => {
                self.registers = None;
                self.detach()?;
                Err(Lost::Refused(error))
            }
        }
    }

    /// Saves the state that will be restored, and blocks the thread's signals.
    fn prepare(&mut self) -> io::Result<()> {
        let registers = Registers::get(self.tid)?;
        let abi = registers.abi(self.tid)?;
        self.abi = abi.ok_or_else(|| io::Error::other("it does not stand behind a system call"))?;
        let mask = &raw mut self.mask as usize;
        ptrace(libc::PTRACE_GETSIGMASK as PtraceRequest, self.tid, size_of::<u64>(), mask)?;
        self.set_mask(match self.call_stop {
            CallStop::Step => !bit(libc::SIGTRAP),
            CallStop::EntryAndExit => !0,
        })?;
        self.registers = Some(registers);
        Ok(())
    }

    fn set_mask(&self, mask: u64) -> io::Result<()> {
        let mask = &raw const mask as usize;
        ptrace(libc::PTRACE_SETSIGMASK as PtraceRequest, self.tid, size_of::<u64>(), mask).map(drop)
    }

    /// Its stack pointer.
    pub(super) fn stack(&self) -> u64 {
        self.registers.map_or(0, |registers| registers.stack())
    }

    /// Which system calls it makes.
    pub(super) fn abi(&self) -> Abi {
        self.abi
    }

    /// Makes the thread execute a system call; returns its result, or a negative errno.
    pub(super) fn call(&mut self, call: SystemCall, arguments: [u64; 4]) -> Result<i64, Lost> {
        let Some(registers) = self.registers else { return Err(Lost::Gone) };
        let prepared = registers.calling(self.abi, call, arguments);
        prepared.set(self.tid).map_err(|_| self.stuck())?;
        let after = match self.call_stop {
            CallStop::Step => self.step_over_call(&prepared)?,
            CallStop::EntryAndExit => {
                for _ in 0..2 {
                    self.run_to_call_stop()?;
                }
                self.current_registers()?
            }
        };
        Ok(after.result(self.abi))
    }

    fn current_registers(&mut self) -> Result<Registers, Lost> {
        Registers::get(self.tid).map_err(|_| self.stuck())
    }

    fn stuck(&mut self) -> Lost {
        let (memory, moved) = (Rc::clone(&self.memory), self.moved.take());
        Lost::Stuck(Box::new(Self { memory, moved, ..*self }))
    }

    /// Returns the registers behind the call.
    fn step_over_call(&mut self, prepared: &Registers) -> Result<Registers, Lost> {
        loop {
            let stop = self.resume(libc::PTRACE_SINGLESTEP)?;
            let after = self.current_registers()?;
            match stop {
                // A SIGTRAP of the client's own arrives before the call.
                Stop::Signal(libc::SIGTRAP) if after.has_made_call(prepared) => return Ok(after),
                // Behind the call, the step's SIGTRAP follows before the next instruction.
                stop => self.suppress(&stop),
            }
        }
    }

    fn run_to_call_stop(&mut self) -> Result<(), Lost> {
        loop {
            match self.resume(libc::PTRACE_SYSCALL)? {
                Stop::Call => return Ok(()),
                stop => self.suppress(&stop),
            }
        }
    }

    /// Resumes the thread until its next stop.
    fn resume(&mut self, request: PtraceRequest) -> Result<Stop, Lost> {
        ptrace(request, self.tid, 0, 0).map_err(|_| self.stuck())?;
        match self.wait() {
            Ok(Some(stop)) => Ok(stop),
            Ok(None) => {
                let _ = ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0);
                Err(self.stuck())
            }
            Err(()) => Err(Lost::Gone),
        }
    }

    fn suppress(&mut self, stop: &Stop) {
        if let Stop::Signal(signal) = *stop {
            self.suppressed |= bit(signal);
        }
    }

    /// Waits for the thread's next stop; `Ok(None)` if it is stuck, an error if it has exited.
    fn wait(&mut self) -> Result<Option<Stop>, ()> {
        // The timer of this thread interrupts `waitpid`. It does not fire while this process is
        // stopped.
        for period in 0..MAX_PERIODS {
            match self.look(0) {
                Err(Absence::Gone) => return Err(()),
                Ok(Some(stop)) => return Ok(Some(stop)),
                Ok(None) | Err(Absence::Interrupted) if period > 1 && is_frozen(self.tid) => {
                    break;
                }
                Ok(None) | Err(Absence::Interrupted) => {}
            }
        }
        Ok(None)
    }

    fn look(&mut self, flags: i32) -> Result<Option<Stop>, Absence> {
        let mut status = 0;
        // SAFETY: the status is a live integer.
        let found =
            unsafe { libc::waitpid(self.tid as libc::pid_t, &mut status, libc::__WALL | flags) };
        match found {
            0 => Ok(None),
            _ if found < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {
                Err(Absence::Interrupted)
            }
            found if found < 0 || !libc::WIFSTOPPED(status) => {
                self.moved.take().into_iter().for_each(Moved::forget);
                Err(Absence::Gone)
            }
            _ if status >> 16 == libc::PTRACE_EVENT_STOP => Ok(Some(Stop::Trap)),
            _ if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => Ok(Some(Stop::Call)),
            _ => Ok(Some(Stop::Signal(libc::WSTOPSIG(status)))),
        }
    }

    /// Whether the stopped thread was killed.
    pub(super) fn has_exited(&mut self) -> bool {
        matches!(self.look(libc::WNOHANG), Err(Absence::Gone))
    }

    /// Restores the thread's state and resumes it.
    pub(super) fn finish(mut self, end: End) -> Result<(), Lost> {
        if let Some(registers) = self.registers {
            let registers = match end {
                End::Unchanged => registers.returning(registers.result(self.abi)),
                End::Return(result) => registers.returning(result),
                End::Again => registers.again(self.first_argument),
            };
            // A failure means that the thread has been killed.
            let _ = registers.set(self.tid);
            let _ = self.set_mask(self.mask);
        }
        self.detach()
    }

    fn detach(&mut self) -> Result<(), Lost> {
        self.moved = None;
        // All others are blocked. Sent while the thread is traced: its number cannot be reused.
        let suppressed = std::mem::take(&mut self.suppressed);
        for signal in [libc::SIGSTOP, libc::SIGTRAP] {
            if suppressed & bit(signal) != 0 {
                // SAFETY: plain numbers.
                unsafe { libc::syscall(libc::SYS_tkill, self.tid as libc::pid_t, signal) };
            }
        }
        // Fails if the thread is not stopped any more because it was killed.
        ptrace(libc::PTRACE_DETACH, self.tid, 0, 0).map(drop).map_err(|_| self.stuck())
    }

    /// Whether it was frozen between a call and the SIGTRAP of the step over it. Resumed without
    /// us, it would be ended by that signal.
    fn has_step_signal(&self) -> bool {
        self.call_stop == CallStop::Step
            && self.registers.is_some()
            && is_queued(libc::SIGTRAP, self.tid)
    }

    /// Resumes a stuck thread if it has stopped meanwhile; `Some` while it has to be waited for.
    pub(super) fn let_go(mut self) -> Option<Self> {
        match self.look(libc::WNOHANG) {
            Ok(None) | Err(Absence::Interrupted) => Some(self),
            // It stops for that signal next.
            Ok(Some(Stop::Trap)) if self.has_step_signal() => {
                let _ = ptrace(libc::PTRACE_CONT, self.tid, 0, 0);
                Some(self)
            }
            Ok(Some(_)) => match self.finish(End::Again) {
                Err(Lost::Stuck(tracee)) => Some(*tracee),
                _ => None,
            },
            Err(Absence::Gone) => None,
        }
    }
}

/// What a system call instruction of the thread calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    /// The calls of this program.
    Native,
    /// The calls of 32-bit programs.
    #[cfg_attr(not(any(test, target_arch = "x86_64", target_arch = "aarch64")), expect(dead_code))]
    Compat,
}

/// A system call that a stopped thread makes for us.
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
    pub(super) fn word(self) -> usize {
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

/// Fails if a thread has a filter that may end it for a call that we make in it: more filters than
/// this thread, which may have inherited those of a container too, and `known`, which allow them.
fn check_filters(tid: u32, known: u32) -> io::Result<()> {
    let filters_of = |task: &str| task_status(task).map(|status| filters(&status));
    if filters_of(&tid.to_string())? <= filters_of("thread-self")? + known {
        return Ok(());
    }
    Err(io::Error::other(
        "it has a seccomp filter, which only a daemon with CAP_SYS_ADMIN and without a filter of \
         its own can suspend",
    ))
}

/// Before Linux 5.9 the number is unknown: at least one.
fn filters(status: &str) -> u32 {
    let field = |name: &str| value_of(status, name)?.parse().ok();
    field("Seccomp_filters").or(field("Seccomp")).unwrap_or(0).min(u32::MAX / 2)
}

#[cfg(target_env = "gnu")]
pub(super) type PtraceRequest = libc::c_uint;
#[cfg(not(target_env = "gnu"))]
pub(super) type PtraceRequest = libc::c_int;

/// [`seize`] is abandoned after this time. It waits only while another thread of the process is in
/// execve, and that may wait for this thread's ioctl.
const MAX_SEIZE_TIME: Duration = Duration::from_millis(50);

thread_local! {
    /// The seize that this thread is in; its signal handler reads and writes it.
    static SEIZING: Cell<Option<Seizing>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Seizing {
    tid: u32,
    deadline: Instant,
    is_abandoned: bool,
}

/// The `ptrace` system call.
///
/// Its requests name a thread by number, but the kernel accepts them only for a thread that this
/// one traces and that is stopped: they fail once it has exited or was replaced by an execve. Only
/// the first, [`seize`], depends on the caller: the thread is blocked in its ioctl.
pub(super) fn ptrace(
    request: PtraceRequest,
    tid: u32,
    address: usize,
    data: usize,
) -> io::Result<i64> {
    // SAFETY: the caller guarantees that `data`, where it is a pointer, points to a live value of
    // the type that the request reads or writes.
    let result = unsafe { libc::ptrace(request, tid as libc::pid_t, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Traces a thread that is blocked in its ioctl. The caller's
/// [`InterruptTimer`](crate::interrupt_timer::InterruptTimer) runs.
fn seize(tid: u32, options: libc::c_int) -> io::Result<()> {
    let deadline = Instant::now() + MAX_SEIZE_TIME;
    SEIZING.set(Some(Seizing { tid, deadline, is_abandoned: false }));
    let seized = ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize);
    if SEIZING.take().is_some_and(|seizing| seizing.is_abandoned) {
        return Err(io::Error::other("another thread of its process is in execve"));
    }
    seized.map(drop)
}

/// Called by the signal handler of the thread's timer, with the state to which it returns.
///
/// The kernel restarts an interrupted `PTRACE_SEIZE` after each handler (`ERESTARTNOINTR`). So an
/// abandoned one gets the number of no thread before it is restarted, and fails.
pub(crate) fn note_timer_period(context: &mut libc::ucontext_t) {
    let Some(mut seizing) = SEIZING.get() else { return };
    if Instant::now() >= seizing.deadline
        && let Some(thread) = thread_to_seize(context)
        && *thread as u32 == seizing.tid
    {
        *thread = 0;
        seizing.is_abandoned = true;
        SEIZING.set(Some(seizing));
    }
}

/// The register with the thread's number, if the next instruction is the system call of [`seize`].
#[cfg(target_arch = "x86_64")]
fn thread_to_seize(context: &mut libc::ucontext_t) -> Option<&mut libc::greg_t> {
    const SYSCALL_INSTRUCTION: u16 = 0x050f;
    let registers = &mut context.uc_mcontext.gregs;
    let register = |number: libc::c_int| registers[number as usize];
    let is_seize = register(libc::REG_RAX) == libc::SYS_ptrace
        && register(libc::REG_RDI) == i64::from(libc::PTRACE_SEIZE);
    let next = register(libc::REG_RIP) as *const u16;
    // SAFETY: this thread executes the code there next.
    let is_call = is_seize && unsafe { ptr::read_unaligned(next) } == SYSCALL_INSTRUCTION;
    is_call.then(|| &mut registers[libc::REG_RSI as usize])
}

#[cfg(target_arch = "aarch64")]
fn thread_to_seize(context: &mut libc::ucontext_t) -> Option<&mut u64> {
    const SVC_INSTRUCTION: u32 = 0xd400_0001;
    let next = context.uc_mcontext.pc as *const u32;
    let registers = &mut context.uc_mcontext.regs;
    let is_seize =
        registers[8] == libc::SYS_ptrace as u64 && registers[0] == libc::PTRACE_SEIZE as u64;
    // SAFETY: this thread executes the code there next.
    let is_call = is_seize && unsafe { ptr::read_unaligned(next) } == SVC_INSTRUCTION;
    is_call.then(|| &mut registers[1])
}

/// Files cannot be passed there.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_to_seize(_: &mut libc::ucontext_t) -> Option<&mut u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted() {
        assert_eq!(filters("NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t3\n"), 3);
        assert_eq!(filters("Seccomp:\t0\nSeccomp_filters:\t0\n"), 0);
        assert!(filters("Seccomp:\t2\n") > 0);
        assert_eq!(filters(""), 0, "a kernel without seccomp");
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
