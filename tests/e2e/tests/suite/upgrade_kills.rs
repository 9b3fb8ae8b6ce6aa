//! The daemon is killed at a step of an upgrade: what its clients observe.

use std::thread;

use binder_client::{Client, ClientError, Errno, Session};
use control::binderd::{Reply, Request};
use e2e::{Bus, Mapping, wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{bounded, open, own_tid};
use crate::upgrade::{available, child_with, failing_bus, stand_in};

/// The event loop's thread, stopped by ptrace.
struct Traced(libc::pid_t);

/// Where the thread is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Before this system call.
    Call(libc::c_long),
    /// At the first instruction of the next program.
    Executed,
}

/// `status >> 8` of `waitpid(2)` at a system call, with `PTRACE_O_TRACESYSGOOD`.
const AT_CALL: i32 = libc::SIGTRAP | 0x80;
const AT_EXEC: i32 = libc::SIGTRAP | (libc::PTRACE_EVENT_EXEC << 8);

impl Traced {
    fn stop(bus: &Bus) -> Self {
        let this = Self(bus.pid() as i32);
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        assert_eq!(this.request(libc::PTRACE_SEIZE, options as usize), 0);
        assert_eq!(this.request(libc::PTRACE_INTERRUPT, 0), 0);
        this.wait();
        this
    }

    fn request(&self, request: libc::c_uint, data: usize) -> libc::c_long {
        // SAFETY: these requests pass numbers only.
        unsafe { libc::ptrace(request, self.0, 0_usize, data) }
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: writes the status, which is ours.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, libc::__WALL) }, self.0);
        assert!(libc::WIFSTOPPED(status), "the daemon has ended: {status:x}");
        status >> 8
    }

    fn run_until(&self, stop: Stop) {
        let mut signal = 0;
        loop {
            assert_eq!(self.request(libc::PTRACE_SYSCALL, signal), 0);
            let event = self.wait();
            let here = match event {
                AT_CALL => self.call().map(Stop::Call),
                AT_EXEC => Some(Stop::Executed),
                _ => None,
            };
            if here == Some(stop) {
                return;
            }
            // Other signals are delivered.
            let is_ours = event == AT_CALL || event >> 8 != 0;
            signal = if is_ours { 0 } else { event as usize };
        }
    }

    /// The system call that the thread enters; `None`: it returns from one.
    fn call(&self) -> Option<libc::c_long> {
        // SAFETY: a structure of numbers, of which the kernel writes at most its size; the call's
        // number is read only if the kernel has written it.
        unsafe {
            let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
            let size = size_of_val(&info);
            let written = libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.0, size, &raw mut info);
            assert!(written > 0);
            let enters = info.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
            enters.then_some(info.u.entry.nr as libc::c_long)
        }
    }
}

/// Results of a client's operations.
#[derive(Debug, PartialEq, Eq)]
struct Observed {
    /// A read that was waiting for work.
    waiting: Option<Errno>,
    /// An operation that is begun afterwards.
    next: Option<Errno>,
}

/// The connection ends for all clients.
const ENDED: Observed = Observed { waiting: Some(Errno::CONNABORTED), next: Some(Errno::NOTCONN) };

fn errno<T>(result: Result<T, ClientError>) -> Option<Errno> {
    result.err().and_then(|error| error.errno())
}

/// What a client observes while `kill` kills the daemon.
fn observe(bus: &Bus, kill: impl FnOnce()) -> Observed {
    let reader = open(bus);
    let next: Client = open(bus);
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    let waiting = thread::spawn(move || {
        let mut session = Session::new(&reader);
        session.enter_looper().unwrap();
        tid_out.send(own_tid()).unwrap();
        errno(session.receive())
    });
    assert!(wait::until_asleep(tid_in.recv().unwrap()), "the reader does not block");
    kill();
    let waiting = bounded("the end of the read", || waiting.join().unwrap());
    Observed { waiting, next: errno(next.version()) }
}

/// Requests an upgrade, which must not be answered.
fn request_unanswered(bus: &Bus) -> thread::JoinHandle<()> {
    let mut control = control::Client::connect(bus.socket()).unwrap();
    thread::spawn(move || {
        let reply = control.call::<Reply>(&Request::Upgrade { program: None });
        assert!(reply.is_err(), "{reply:?}");
    })
}

/// Kills the daemon at this point of an upgrade; returns its guardian at that time.
fn kill_at(bus: &Bus, stop: Stop) -> Option<u32> {
    let traced = Traced::stop(bus);
    let request = request_unanswered(bus);
    traced.run_until(stop);
    let guardian = bus.guardian_now();
    kill_process(Pid::from_raw(traced.0).unwrap(), Signal::KILL).unwrap();
    request.join().unwrap();
    guardian
}

fn bus() -> Option<Bus> {
    available(Bus::start(Mapping::Auto))
}

/// The guardian runs still: it ends the connection and unmounts the bus.
#[test]
fn a_daemon_that_is_killed_before_the_check_ends_like_any_other() {
    let Some(bus) = bus() else { return };
    let observed = observe(&bus, || {
        assert!(kill_at(&bus, Stop::Call(libc::SYS_memfd_create)).is_some());
    });
    assert_eq!(observed, ENDED);
    let unmounted = || rustix::fs::statfs(bus.mount()).ok();
    wait::until(wait::PATIENCE, unmounted).expect("the guardian unmounts the bus");
    bus.wait_until_dead().unwrap();
}

#[test]
fn a_daemon_that_is_killed_during_the_check_ends_like_any_other() {
    let Some(bus) = failing_bus("check-hangs") else { return };
    let client = open(&bus);
    let mut control = control::Client::connect(bus.socket()).unwrap();
    let upgrade = thread::spawn(move || {
        control.call::<Reply>(&Request::Upgrade { program: Some(stand_in().into()) })
    });
    let check = wait::until(wait::PATIENCE, || child_with(bus.pid(), "--check-state"));
    let check = check.expect("the check is running");
    // SAFETY: a number is passed.
    let policy = unsafe { libc::sched_getscheduler(check as i32) };
    assert_eq!(policy, libc::SCHED_OTHER, "the priority of the event loop is not inherited");
    bus.kill().unwrap();
    assert!(upgrade.join().unwrap().is_err());
    kill_process(Pid::from_raw(check as i32).unwrap(), Signal::KILL).unwrap();
    assert_eq!(errno(client.version()), Some(Errno::NOTCONN));
}

/// Without a guardian the kernel ends the connection, and the dead mount stays.
fn expect_a_dead_mount(stop: Stop) {
    let Some(bus) = bus() else { return };
    let observed = observe(&bus, || assert_eq!(kill_at(&bus, stop), None));
    assert_eq!(observed, ENDED);
    assert_eq!(rustix::fs::statfs(bus.mount()).err(), Some(Errno::NOTCONN));
    bus.wait_until_dead().unwrap();
}

#[test]
fn a_daemon_that_is_killed_before_it_executes_the_program_leaves_a_dead_mount() {
    expect_a_dead_mount(Stop::Call(libc::SYS_execveat));
}

#[test]
fn a_program_that_is_killed_before_its_first_request_leaves_a_dead_mount() {
    expect_a_dead_mount(Stop::Executed);
}

#[test]
fn a_program_that_exits_after_it_was_executed_ends_the_connection() {
    let Some(bus) = failing_bus("program-exits") else { return };
    let client = open(&bus);
    assert!(bus.request(Request::Upgrade { program: Some(stand_in().into()) }).is_err());
    let error = wait::until(wait::PATIENCE, || client.version().err());
    assert_eq!(error.and_then(|error: ClientError| error.errno()), Some(Errno::NOTCONN));
    drop(client);
    bus.wait_until_dead().unwrap();
}
