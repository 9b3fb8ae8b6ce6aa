//! The `ptrace` system call.
//!
//! Its requests name a thread by number, but the kernel accepts them only for a thread that this
//! one traces and that is stopped: they fail once it has exited or was replaced by an execve. Only
//! the first, [`seize`], depends on the caller: the thread is blocked in its ioctl.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::time::{Duration, Instant};

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
pub(super) fn seize(tid: u32, options: libc::c_int) -> io::Result<()> {
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
