//! A client's thread that is stopped at the return from an ioctl on our device, and made to execute
//! system calls for us.
//!
//! A ptrace relation belongs to the tracing thread, so all of this happens on one thread of ours.
//! The client's signals are blocked while we act and delivered when it is resumed; its registers
//! are restored.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ptrace::{self, PtraceRequest, ptrace};
use super::registers::{LOSES_FIRST_ARGUMENT, Registers};
use super::seccomp;
use super::system_call::{Abi, SystemCall};
use crate::client_memory::MemoryHandle;
use crate::interrupt_timer::PERIOD;
use crate::pid_view::signals;
use crate::placement::{self, Move, Moved};
use crate::sleeping_call::await_first_argument;

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
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    signals(&status, "SigPnd:") & bit(signal) != 0
}

impl Tracee {
    /// Traces a thread that is blocked in an ioctl on our device, and requests a stop for its
    /// return. Its seccomp filters do not see the calls that it makes for us.
    pub(super) fn seize(tid: u32, call_stop: CallStop, known_filters: u32) -> io::Result<Self> {
        let memory = Rc::new(MemoryHandle::open(tid)?);
        let options = libc::PTRACE_O_TRACESYSGOOD;
        match ptrace::seize(tid, options | libc::PTRACE_O_SUSPEND_SECCOMP) {
            // Filters are suspended for a tracer with CAP_SYS_ADMIN and without a filter.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EINVAL)) => {
                seccomp::check_filters(tid, known_filters)?;
                ptrace::seize(tid, options)?;
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
