//! Checks for `headroom-binderd`.

use std::fs;
use std::io::Error;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::ensure;
use headroom_linux::features::{self, since};
use headroom_linux::mountinfo::open_fuse;
use headroom_linux::pidfd;
use headroom_linux::sched::SchedAttr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use super::{Check, require};
use crate::commands::preload::{Library, RINGS};
use crate::commands::run::{profiled_program, remedies};
use crate::helpers::programs::{self, BINDERD};

/// The component that a check concerns: the machine-wide bus; a private one works without it.
const SYSTEM_DAEMON: &str = "headroom-binderd for the whole machine (`headroom run` can work)";
/// Longest wait for a private bus.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Uid of the user `nobody`, which owns no files.
const NOBODY: u32 = 65534;
/// Name of the daemon's threads: the kernel keeps 15 bytes.
const DAEMON_THREAD: &str = "headroom-binder";
/// The level of the daemon's event loop unless `--priority` sets another one.
const DEFAULT_LEVEL: u32 = 1;

/// All checks.
pub fn checks() -> Vec<Check> {
    vec![
        fuse().needed_by(BINDERD),
        Check::new(
            "cap-sys-admin",
            require("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
            "the bus cannot be mounted",
            "run the daemon as root; in a container, add the capability",
        )
        .needed_by(SYSTEM_DAEMON)
        .of_root(),
        Check::new(
            "process-vm",
            other_memory(),
            "what clients send cannot be read",
            "run the daemon as root with CAP_SYS_PTRACE and kernel.yama.ptrace_scope below 3",
        )
        .needed_by(SYSTEM_DAEMON)
        .of_root(),
        Check::new(
            "fuse-passthrough",
            passthrough(),
            "receive buffers go through the page cache by notify-store: one more copy each",
            "kernel 6.9 or newer, and CAP_SYS_ADMIN",
        )
        .of_root(),
        Check::new(
            "fuse-direct-mmap",
            since(6, 6),
            "without fuse-passthrough, read(2) of a device returns the caller's own receive buffer",
            "kernel 6.6 or newer",
        ),
        Check::new(
            "user-namespaces",
            user_namespaces(),
            "`headroom run` needs root",
            remedies().trim_start_matches("; ").to_owned(),
        ),
        private_bus(),
        Check::new(
            "fuse-abort",
            abort(),
            "should the daemon be killed while it is tied up in its own bus, clients hang until \
             the connection is aborted",
            "run the daemon as root, or mount -t fusectl none /sys/fs/fuse/connections",
        )
        .of_root(),
        Check::new(
            "binder-priority",
            above_the_loop(),
            "while that program runs on the event loop's CPU, no call is served, of no caller",
            "`--priority` of headroom-binderd above it, or below it if it must precede all calls",
        ),
        Check::new(
            "binder-rings",
            rings(),
            "calls by shared memory are not available: all are requests",
            "kernel 5.16 or newer, and the library beside `headroom` or in ../lib/headroom",
        ),
        Check::new(
            "pidfd-thread",
            thread_pidfd(),
            "the end of a thread whose process lives on is seen up to a second late",
            "kernel 6.9 or newer",
        ),
        Check::new(
            "peer-pidfd",
            peer_pidfd(),
            "a process that ends while it connects to a daemon can be taken for a later one with \
             its pid",
            "kernel 6.5 or newer",
        ),
        Check::new(
            "seccomp-wait-killable",
            wait_killable(),
            "under `headroom run --fd-passing seccomp` a signal can make a call fail with EINTR \
             before it reaches the device",
            "kernel 5.19 or newer; no seccomp filter that forbids it",
        ),
    ]
}

fn fuse() -> Check {
    let opened = open_fuse();
    let remedy = opened.as_ref().map_or_else(|error| error.remedy(), |_| "");
    let found = opened.as_ref().map(|_| "/dev/fuse opens".into()).map_err(ToString::to_string);
    Check::new("fuse", found, "binder devices cannot be served", remedy)
}

/// Runs this program on a private bus. The message of a failure has the remedy after a semicolon.
fn private_bus() -> Check {
    let tried = try_private_bus().map_err(|error| format!("{error:#}"));
    let failure = tried.clone().err().unwrap_or_default();
    let again = "correct this; `headroom run -- true` tries it again";
    let (fact, remedy) = failure.split_once("; ").unwrap_or((&failure, again));
    let found = tried.map(|()| "`headroom run` has run a program".into());
    let found = found.map_err(|_| fact.to_owned());
    let check = Check::new("private-bus", found, "`headroom run` fails", remedy.to_owned());
    // A daemon that is not installed is no feature that the machine lacks.
    if programs::binderd().is_ok() { check.needed_by("`headroom run`") } else { check.untested() }
}

fn try_private_bus() -> anyhow::Result<()> {
    let us = std::env::current_exe()?;
    let mut run = Command::new(&us);
    run.args(["run", "--"]).arg(&us).arg("--version");
    let mut child =
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let ended = pidfd::open(child.id())?;
    if poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&PATIENCE)) == Ok(0) {
        child.kill()?;
    }
    let done = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    let status = done.status.to_string();
    // What the daemon reports is the reason of what follows it.
    let of_daemon = stderr.lines().find(|line| line.starts_with(BINDERD));
    let line = of_daemon.or(stderr.lines().next_back()).unwrap_or(&status);
    ensure!(done.status.success(), "{}", line.trim_start_matches("headroom: "));
    Ok(())
}

/// Describes the availability of the FUSE control filesystem, with which the connection of a killed
/// daemon is aborted.
fn abort() -> Result<String, String> {
    const FUSE_CTL_SUPER_MAGIC: libc::c_long = 0x6573_5543;
    let connections = rustix::fs::statfs("/sys/fs/fuse/connections");
    if connections.is_ok_and(|found| found.f_type == FUSE_CTL_SUPER_MAGIC) {
        return Ok("the control filesystem of FUSE is mounted".into());
    }
    let capability = require("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN)?;
    Ok(format!("the control filesystem of FUSE can be mounted: {capability}"))
}

fn passthrough() -> Result<String, String> {
    let found = since(6, 9)?;
    let capability = require("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN)?;
    Ok(format!("{found}, and {capability}"))
}

/// Reads from address 0 of a process of another user: with permission the error is that nothing is
/// mapped there.
fn other_memory() -> Result<String, String> {
    let child = Command::new("/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .uid(NOBODY)
        .gid(NOBODY)
        .spawn();
    let mut child = child.map_err(|e| format!("cannot start a process of another user: {e}"))?;
    let pid = child.id().try_into().unwrap_or(0);
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    // SAFETY: one local vector of one byte of ours; the remote address is the kernel's to check.
    let got = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    let error = Error::last_os_error();
    // Closing its standard input makes the child exit.
    drop(child.stdin.take());
    let _ = child.wait();
    if got >= 0 || error.raw_os_error() == Some(libc::EFAULT) {
        Ok("the memory of another user's process can be read".into())
    } else {
        let scope = features::ptrace_scope();
        Err(format!(
            "the memory of another user's process: {error} (kernel.yama.ptrace_scope is {scope})"
        ))
    }
}

/// Mounts a file system in private namespaces, as an ordinary user.
fn user_namespaces() -> Result<String, String> {
    if let Ok(Some(program)) = profiled_program() {
        return Ok(format!("the AppArmor profile of {} permits one", program.display()));
    }
    let root = rustix::process::geteuid().is_root();
    let mut child = Command::new("/bin/true");
    child.stdin(Stdio::null()).stdout(Stdio::null());
    if root {
        child.uid(NOBODY).gid(NOBODY);
    }
    // SAFETY: system calls and static text alone; the namespaces are those of the child, which has
    // one thread.
    unsafe {
        child.pre_exec(|| {
            let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
            let mounted = libc::unshare(flags) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0;
            if mounted { Ok(()) } else { Err(Error::last_os_error()) }
        });
    }
    let tried =
        child.status().map_err(|error| format!("an ordinary user cannot have one: {error}"))?;
    if tried.success() {
        Ok("an ordinary user can have one, and mount in it".into())
    } else {
        Err(format!("/bin/true: {tried}"))
    }
}

/// The daemon waits for rings by `futex_waitv`.
fn rings() -> Result<String, String> {
    if !features::has_futex_waitv() {
        return Err("the kernel has no futex_waitv".into());
    }
    let library = Library::find(RINGS, None).map_err(|error| error.to_string())?;
    Ok(format!("the kernel has futex_waitv, and {} is there", library.path().display()))
}

fn thread_pidfd() -> Result<String, String> {
    let found = features::has_thread_pidfds().then(|| "pidfd_open gives pidfds of threads".into());
    found.ok_or_else(|| "pidfd_open gives none of threads".into())
}

/// Requests the pidfd of the other end of a socket pair, which is this process.
fn peer_pidfd() -> Result<String, String> {
    let (socket, _other) = UnixStream::pair().map_err(|error| error.to_string())?;
    match owners::reader::connected_pidfd(socket.as_fd()) {
        Ok(_) => Ok("sockets give pidfds of their peers".into()),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            Err("sockets do not give pidfds of their peers".into())
        }
        Err(error) => Err(format!("SO_PEERPIDFD: {error}")),
    }
}

fn wait_killable() -> Result<String, String> {
    let found = ioctl_trap::check_wait_killable();
    found.map(|()| "signals wait until a held call proceeds".into()).map_err(|error| {
        format!("seccomp does not let signals wait until a held call proceeds: {error}")
    })
}

/// A thread with a real-time policy.
struct Thread {
    tid: i32,
    name: String,
    level: u32,
}

/// Describes the real-time levels of programs; an error names the strongest program above the loop.
fn above_the_loop() -> Result<String, String> {
    let threads = real_time_threads(Path::new("/proc"));
    let daemon = threads.iter().filter(|thread| thread.name == DAEMON_THREAD);
    let own = daemon.map(|thread| thread.level).max().unwrap_or(DEFAULT_LEVEL);
    let above = threads.iter().filter(|thread| thread.name != DAEMON_THREAD && thread.level > own);
    match above.max_by_key(|thread| thread.level) {
        None => Ok(format!("no program runs at a real-time priority above {own}")),
        Some(Thread { tid, name, level }) => Err(format!(
            "{name} (thread {tid}) runs at real-time priority {level}, the event loop at {own}"
        )),
    }
}

/// Threads of programs with a real-time policy. Only files are read that a program which hangs in
/// `execve` does not block.
fn real_time_threads(proc: &Path) -> Vec<Thread> {
    let numbers = |folder: &Path| -> Vec<i32> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let mut found = Vec::new();
    for pid in numbers(proc) {
        let folder = proc.join(pid.to_string());
        // Kernel threads have no memory; the daemon does not compete with those.
        let sizes = fs::read_to_string(folder.join("statm")).unwrap_or_default();
        if sizes.starts_with("0 ") || sizes.is_empty() {
            continue;
        }
        for tid in numbers(&folder.join("task")) {
            let attr = Pid::from_raw(tid).and_then(|tid| SchedAttr::of(Some(tid)).ok());
            if let Some(attr) = attr.filter(SchedAttr::is_realtime) {
                let name = fs::read_to_string(folder.join(format!("task/{tid}/comm")));
                let name = name.unwrap_or_default().trim_end().to_owned();
                found.push(Thread { tid, name, level: attr.priority });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_time_thread_is_found_and_kernel_threads_are_not() {
        std::thread::spawn(|| {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            let find = || real_time_threads(Path::new("/proc")).iter().any(|one| one.tid == own);
            assert!(!find(), "an ordinary thread");
            if SchedAttr::fifo(2).apply(None).is_err() {
                test_support::skip("needs CAP_SYS_NICE");
                return;
            }
            assert!(find());
            assert!(above_the_loop().is_err_and(|error| error.contains("real-time priority")));
            assert!(!real_time_threads(Path::new("/proc")).iter().any(|one| one.tid == 2));
        })
        .join()
        .unwrap();
    }
}
