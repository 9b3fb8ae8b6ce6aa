//! A client's thread that is stopped on its way out of our ioctl, and made to call the kernel for
//! us.
//!
//! ptrace belongs to a thread: all of this happens on one thread of ours. The client's own signals
//! are held back while we act (its mask is full then) and reach it when it goes on; its registers
//! are put back as they were.

use std::io;
use std::time::Duration;

use super::alarm::PERIOD;
use super::placement;
use super::registers::Registers;
use rustix::thread::CpuSet;

/// How many times the alarm rings while a thread stops or makes one call, before it counts as stuck
/// (ten seconds). Both take microseconds, unless the machine has no time for it: on a crowded one
/// half a second was not enough. A thread that its control group froze counts from the second ring
/// on.
const RINGS_OF_PATIENCE: u32 = (Duration::from_secs(10).as_millis() / PERIOD.as_millis()) as u32;

/// Why a thread does not do what we want.
#[derive(Debug)]
pub(super) enum Lost {
    /// It has ended.
    Gone,
    /// It does not react, or is dying: we have to go on looking, for a dead one stays a zombie
    /// until its tracer has seen that.
    Stuck(Box<Tracee>),
    /// It cannot be traced: another tracer, no permission, not what we think it is.
    Refused(io::Error),
}

/// How a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its ioctl returns what it was answered.
    Unchanged,
    /// Its ioctl returns this.
    Return(i64),
    /// It makes its ioctl again.
    Again,
}

/// A traced thread.
#[derive(Debug)]
pub(super) struct Tracee {
    tid: u32,
    /// Its registers when it stopped; `None` before.
    registers: Option<Registers>,
    /// Its signal mask when it stopped.
    mask: u64,
    /// A SIGSTOP was held back.
    stop_pending: bool,
    /// Where it may run, if we have brought it to us.
    usual_cpus: Option<CpuSet>,
}

/// Why there is no stop.
enum Absence {
    /// It has ended.
    Gone,
    /// A signal came for us.
    Interrupted,
}

enum Stop {
    /// Entry or exit of a call.
    Call,
    /// A signal is about to be delivered.
    Signal(i32),
    /// We asked for it, or its process is being stopped.
    Trap,
}

pub(super) fn ptrace(
    request: libc::c_uint,
    tid: u32,
    address: usize,
    data: usize,
) -> io::Result<i64> {
    // SAFETY: the caller answers for `data` where it is a pointer: it points to a live value of the
    // type that the request reads or writes.
    let result = unsafe { libc::ptrace(request, tid as libc::pid_t, address, data) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The thread sleeps where the freezers of control groups put it (the first kind, the second kind).
fn is_frozen(tid: u32) -> bool {
    let place = std::fs::read_to_string(format!("/proc/{tid}/wchan")).unwrap_or_default();
    place.contains("refrigerator") || place.contains("freezer_trap")
}

impl Tracee {
    /// Traces a thread that is blocked in our ioctl, and asks it to stop when that returns.
    pub(super) fn seize(tid: u32) -> io::Result<Self> {
        ptrace(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        let usual_cpus = placement::move_here(tid);
        // It can only have died, and then nobody misses the stop.
        let _ = ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0);
        Ok(Self { tid, registers: None, mask: 0, stop_pending: false, usual_cpus })
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid
    }

    /// Waits until it has stopped on its way out of the ioctl, which has been answered.
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

    /// Saves what will be put back, and holds its signals back.
    fn prepare(&mut self) -> io::Result<()> {
        let registers = Registers::get(self.tid)?;
        if !registers.is_behind_call(self.tid)? {
            return Err(io::Error::other("it does not stand behind a 64-bit system call"));
        }
        let mask = &raw mut self.mask as usize;
        ptrace(libc::PTRACE_GETSIGMASK, self.tid, size_of::<u64>(), mask)?;
        self.set_mask(!0)?;
        self.registers = Some(registers);
        Ok(())
    }

    fn set_mask(&self, mask: u64) -> io::Result<()> {
        let mask = &raw const mask as usize;
        ptrace(libc::PTRACE_SETSIGMASK, self.tid, size_of::<u64>(), mask).map(drop)
    }

    /// Its stack pointer.
    pub(super) fn stack(&self) -> u64 {
        self.registers.map_or(0, |registers| registers.stack())
    }

    /// Makes it call the kernel; the result, or a negative errno.
    pub(super) fn call(&mut self, number: i64, arguments: [u64; 6]) -> Result<i64, Lost> {
        let Some(registers) = self.registers else { return Err(Lost::Gone) };
        registers.calling(number, arguments).set(self.tid).map_err(|_| self.stuck())?;
        // It enters the call, and leaves it.
        for _ in 0..2 {
            self.run_to_call()?;
        }
        let after = Registers::get(self.tid).map_err(|_| self.stuck())?;
        Ok(after.result())
    }

    fn stuck(&self) -> Lost {
        Lost::Stuck(Box::new(Self { ..*self }))
    }

    fn run_to_call(&mut self) -> Result<(), Lost> {
        loop {
            ptrace(libc::PTRACE_SYSCALL, self.tid, 0, 0).map_err(|_| self.stuck())?;
            match self.wait() {
                Ok(Some(Stop::Call)) => return Ok(()),
                Ok(Some(Stop::Signal(signal))) => self.stop_pending |= signal == libc::SIGSTOP,
                Ok(Some(Stop::Trap)) => {}
                Ok(None) => {
                    let _ = ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0);
                    return Err(self.stuck());
                }
                Err(()) => return Err(Lost::Gone),
            }
        }
    }

    /// Its next stop; `Ok(None)` when it is stuck, an error when it is gone.
    fn wait(&mut self) -> Result<Option<Stop>, ()> {
        // The alarm of this thread interrupts us. It does not ring while we are stopped ourselves.
        for ring in 0..RINGS_OF_PATIENCE {
            match self.look(0) {
                Err(Absence::Gone) => return Err(()),
                Ok(Some(stop)) => return Ok(Some(stop)),
                Ok(None) | Err(Absence::Interrupted) if ring > 0 && is_frozen(self.tid) => break,
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
            found if found < 0 || !libc::WIFSTOPPED(status) => Err(Absence::Gone),
            _ if status >> 16 == libc::PTRACE_EVENT_STOP => Ok(Some(Stop::Trap)),
            _ if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => Ok(Some(Stop::Call)),
            _ => Ok(Some(Stop::Signal(libc::WSTOPSIG(status)))),
        }
    }

    /// Puts everything back and lets it go.
    pub(super) fn finish(self, end: End) -> Result<(), Lost> {
        if let Some(registers) = self.registers {
            let registers = match end {
                End::Unchanged => registers.returning(registers.result()),
                End::Return(result) => registers.returning(result),
                End::Again => registers.again(),
            };
            // Whatever fails here fails because it has died.
            let _ = registers.set(self.tid);
            let _ = self.set_mask(self.mask);
        }
        self.detach()
    }

    fn detach(&self) -> Result<(), Lost> {
        if let Some(usual) = &self.usual_cpus {
            placement::restore(self.tid, usual);
        }
        // Refused where it is not stopped any more: it was killed.
        ptrace(libc::PTRACE_DETACH, self.tid, 0, 0).map_err(|_| self.stuck())?;
        if self.stop_pending {
            // SAFETY: plain numbers.
            unsafe { libc::syscall(libc::SYS_tkill, self.tid as libc::pid_t, libc::SIGSTOP) };
        }
        Ok(())
    }

    /// A stuck one: lets it go if it has stopped meanwhile; `Some` while it has to be looked at.
    pub(super) fn let_go(mut self) -> Option<Self> {
        match self.look(libc::WNOHANG) {
            Ok(None) | Err(Absence::Interrupted) => Some(self),
            Ok(Some(_)) => match self.finish(End::Again) {
                Err(Lost::Stuck(tracee)) => Some(*tracee),
                _ => None,
            },
            Err(Absence::Gone) => None,
        }
    }
}
