//! Checks for `headroom-binderd`.

use std::fs;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use headroom_linux::mountinfo::{FUSE_PATH, fuse_remedy};
use headroom_linux::sched::SchedAttr;
use rustix::fs::{FileType, Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Pid;

use super::{Capability, Check, System};
use crate::commands::preload::{Library, RINGS};

const DAEMON: &str = "headroom-binderd";
/// The component that a check concerns: the machine-wide bus; a private one works without it.
const SYSTEM_DAEMON: &str = "headroom-binderd for the whole machine (`headroom run` can work)";
/// Device number of `/dev/fuse`, from devices.txt of the kernel.
const FUSE_DEVICE: u64 = libc::makedev(10, 229);
/// Uid of the user `nobody`, which owns no files.
const NOBODY: u32 = 65534;
/// Name of the daemon's threads: the kernel keeps 15 bytes.
const DAEMON_THREAD: &str = "headroom-binder";
/// The level of the daemon's event loop unless `--priority` sets another one.
const DEFAULT_LEVEL: u32 = 1;

/// All checks.
pub fn checks(system: &System) -> Vec<Check> {
    vec![
        fuse().needed_by(DAEMON),
        Check::new(
            "cap-sys-admin",
            system.capabilities.require(Capability::SysAdmin),
            "the bus cannot be mounted",
            "run the daemon as root; in a container, add the capability",
        )
        .needed_by(SYSTEM_DAEMON),
        Check::new(
            "process-vm",
            other_memory(),
            "what clients send cannot be read",
            "run the daemon as root with CAP_SYS_PTRACE and kernel.yama.ptrace_scope below 3",
        )
        .needed_by(SYSTEM_DAEMON),
        Check::new(
            "fuse-passthrough",
            passthrough(system),
            "receive buffers go through the page cache by notify-store: one more copy each",
            "kernel 6.9 or newer, and CAP_SYS_ADMIN",
        ),
        Check::new(
            "fuse-direct-mmap",
            system.since(6, 6),
            "without fuse-passthrough, read(2) of a device returns the caller's own receive buffer",
            "kernel 6.6 or newer",
        ),
        Check::new(
            "user-namespaces",
            user_namespaces(),
            "`headroom run` needs root",
            "sysctl user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
             kernel.apparmor_restrict_unprivileged_userns=0, whichever exist; in a container, a \
             laxer profile",
        ),
        Check::new(
            "fuse-abort",
            abort(system),
            "should the daemon be killed while it is tied up in its own bus, clients hang until \
             the connection is aborted",
            "run the daemon as root, or mount -t fusectl none /sys/fs/fuse/connections",
        ),
        Check::new(
            "binder-priority",
            above_the_loop(),
            "while that program runs on the event loop's CPU, no call is served, of no caller",
            "`--priority` of headroom-binderd above it, or below it if it must precede all calls",
        ),
        Check::new(
            "binder-rings",
            rings(system),
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
    let path = Path::new(FUSE_PATH);
    let opened = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    describe_fuse(opened.and_then(rustix::fs::fstat).map(|stat| (stat.st_mode, stat.st_rdev)))
}

/// Describes the result of opening `/dev/fuse`: mode and device number of the file, or an error.
fn describe_fuse(opened: Result<(u32, u64), Errno>) -> Check {
    let is_device = |(mode, device)| {
        FileType::from_raw_mode(mode) == FileType::CharacterDevice && device == FUSE_DEVICE
    };
    let (found, remedy) = match opened {
        Ok(file) if is_device(file) => (Ok("/dev/fuse opens".into()), ""),
        Ok(_) => (
            Err("/dev/fuse is not the FUSE device, but another file".into()),
            "rm /dev/fuse && mknod -m 666 /dev/fuse c 10 229; in a container, let it have the \
             device /dev/fuse",
        ),
        Err(errno) => (Err(format!("cannot open /dev/fuse: {errno}")), fuse_remedy(errno)),
    };
    Check::new("fuse", found, "binder devices cannot be served", remedy)
}

/// Describes the availability of the FUSE control filesystem, with which the connection of a killed
/// daemon is aborted.
fn abort(system: &System) -> Result<String, String> {
    const FUSE_CTL_SUPER_MAGIC: libc::c_long = 0x6573_5543;
    let connections = rustix::fs::statfs("/sys/fs/fuse/connections");
    if connections.is_ok_and(|found| found.f_type == FUSE_CTL_SUPER_MAGIC) {
        return Ok("the control filesystem of FUSE is mounted".into());
    }
    let capability = system.capabilities.require(Capability::SysAdmin)?;
    Ok(format!("the control filesystem of FUSE can be mounted: {capability}"))
}

fn passthrough(system: &System) -> Result<String, String> {
    let found = system.since(6, 9)?;
    let capability = system.capabilities.require(Capability::SysAdmin)?;
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
    let error = std::io::Error::last_os_error();
    // Closing its standard input makes the child exit.
    drop(child.stdin.take());
    let _ = child.wait();
    if got >= 0 || error.raw_os_error() == Some(libc::EFAULT) {
        Ok("the memory of another user's process can be read".into())
    } else {
        Err(format!("the memory of another user's process: {error}{}", yama()))
    }
}

fn yama() -> String {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .map_or(String::new(), |scope| format!(" (kernel.yama.ptrace_scope is {})", scope.trim()))
}

/// Mounts a file system in private namespaces, as an ordinary user.
fn user_namespaces() -> Result<String, String> {
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
            if mounted { Ok(()) } else { Err(std::io::Error::last_os_error()) }
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
fn rings(system: &System) -> Result<String, String> {
    let found = system.since(5, 16)?;
    let library = Library::find(RINGS, None).map_err(|error| error.to_string())?;
    Ok(format!("{found}, and {} is there", library.path().display()))
}

fn thread_pidfd() -> Result<String, String> {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    // PIDFD_THREAD has the value of O_EXCL (linux/pidfd.h).
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, thread, libc::O_EXCL) };
    match opened(fd) {
        Ok(_) => Ok("pidfd_open gives pidfds of threads".into()),
        Err(Errno::INVAL) => Err("pidfd_open does not know it".into()),
        Err(errno) => Err(format!("pidfd_open: {errno}")),
    }
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

/// Tries to install a filter that does not exist: `EFAULT` if the kernel knows the flags, which it
/// checks first.
fn wait_killable() -> Result<String, String> {
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let none = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: the kernel does not follow the null pointer.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, none) };
    match opened(done) {
        Err(Errno::FAULT) => Ok("signals wait until a held call proceeds".into()),
        Err(Errno::INVAL) => Err("seccomp does not know it".into()),
        Ok(_) => Err("seccomp accepts a filter that does not exist".into()),
        Err(errno) => Err(format!("seccomp: {errno}")),
    }
}

/// The file descriptor that a raw system call returned, or its error.
fn opened(returned: libc::c_long) -> Result<OwnedFd, Errno> {
    match i32::try_from(returned) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
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
    fn the_remedy_for_fuse_follows_from_what_is_wrong() {
        let file = |mode: u32, device| describe_fuse(Ok((mode, device)));
        assert!(file(libc::S_IFCHR | 0o666, FUSE_DEVICE).present);
        for (check, found, remedy) in [
            (file(libc::S_IFREG | 0o666, 0), "another file", "mknod"),
            (file(libc::S_IFCHR | 0o666, FUSE_DEVICE + 1), "another file", "mknod"),
            (describe_fuse(Err(Errno::ACCESS)), "Permission denied", "chmod 666"),
            (describe_fuse(Err(Errno::NOENT)), "No such file", "modprobe fuse"),
        ] {
            assert!(!check.present && check.found.contains(found), "{check:?}");
            assert!(check.remedy.starts_with(remedy) || check.remedy.contains(remedy), "{check:?}");
        }
    }

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
