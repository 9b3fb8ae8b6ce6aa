//! A small process that ends the bus when the one that serves it is killed.
//!
//! A server that is killed while it closes an open of its own bus waits for a reply that only it
//! could send: it never exits, its connection never closes, and clients in a call cannot even be
//! killed. So a separate process holds the connection's `abort` file and watches the server.
//!
//! Neither a pidfd nor a pipe reports a process that cannot exit, and any of its threads may be the
//! one that hangs: the last thread closes the descriptors. So the server has a witness, a thread
//! that does nothing, shares no descriptors, and exits at once when the process is killed: the
//! guardian watches that thread. The guardian is forked, never executes another program, and makes
//! system calls only, so locks that other threads held at the fork cannot block it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Sender, channel};

use headroom_linux::descriptors::without_descriptors;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::mount::Mount;
use crate::task_watch::{TaskKind, pidfd_of};

/// Mount point of the kernel's control filesystem for FUSE connections, if it is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How often the witness is checked where thread pidfds are missing, milliseconds: one wake-up a
/// second.
const LOOK_EVERY_MS: libc::c_int = 1000;
/// Bytes of the witness's stack. All of it is resident once the server locks its memory.
const WITNESS_STACK: usize = 16 << 10;
const NAME: &std::ffi::CStr = c"binder-guardian";
const SAYS: &[u8] =
    b"binder-guardian: the bus has lost its server: all calls fail, and it is unmounted\n";

/// A running guardian. Dropping it kills it without ending the bus.
pub(crate) struct Guardian {
    pid: Pid,
    /// The witness exits when this channel is closed.
    _witness: Sender<()>,
}

/// The guardian's state, created before the fork.
struct Duty {
    /// Writing to this file aborts the connection.
    abort: Option<OwnedFd>,
    /// The mount point; `None`: the mount is in another mount namespace.
    path: Option<CString>,
    /// The folder was created for the mount and has to be removed.
    made: bool,
    /// Becomes readable when the witness has exited; `None`: thread pidfds are missing.
    witness: Option<OwnedFd>,
    /// Path that exists as long as the witness does.
    folder: CString,
}

impl Guardian {
    /// Starts a guardian for the mount. Without one, only an administrator can end the connection
    /// of a killed server.
    pub(crate) fn start(mount: &Mount) -> io::Result<Self> {
        // It would have to close copies of clients' files. So it has the standard streams, and what
        // its duty has.
        without_descriptors(|| Self::start_alone(mount))?
    }

    fn start_alone(mount: &Mount) -> io::Result<Self> {
        let abort = abort_file(mount.device().minor);
        let path = mount.path_here().map(|path| CString::new(path.as_os_str().as_bytes()));
        let path = path.transpose().map_err(io::Error::other)?;
        if path.is_none() {
            // Without a path, the abort file is the only way to end the connection.
            abort.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        }
        crate::placement::record_moves()?;
        let (tid, hang_up) = start_witness()?;
        let folder = CString::new(format!("/proc/{}/task/{tid}", std::process::id()))?;
        let (abort, made, witness) =
            (abort.ok(), mount.was_made(), pidfd_of(tid, TaskKind::Thread).ok());
        let duty = Duty { abort, path, made, witness, folder };
        // SAFETY: the child makes system calls only, on memory that was written before.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => duty.fulfil(),
            pid => Pid::from_raw(pid)
                .map(|pid| Self { pid, _witness: hang_up })
                .ok_or(io::ErrorKind::Other.into()),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // Our child, which is not reaped elsewhere: the pid cannot have been reused.
        let _ = kill_process(self.pid, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// Opens the abort file of the connection with this number; by a mount of our own that has no name,
/// where the control filesystem is not mounted.
fn abort_file(connection: u32) -> io::Result<OwnedFd> {
    let (flags, name) = (OFlags::WRONLY | OFlags::CLOEXEC, format!("{connection}/abort"));
    let seen = format!("{CONNECTIONS}/{name}");
    rustix::fs::open(seen, flags, Mode::empty()).or_else(|_| {
        let filesystem = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(filesystem.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOEXEC | MountAttrFlags::MOUNT_ATTR_NODEV;
        let root = fsmount(filesystem.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(openat(root, name, flags, Mode::empty())?)
    })
}

/// Starts the witness; returns its tid, and the channel that keeps it running.
fn start_witness() -> io::Result<(u32, Sender<()>)> {
    let (sender, receiver) = channel();
    let (hang_up, hung_up) = channel::<()>();
    let life = move || {
        // SAFETY: plain numbers. From here on this thread has its own, empty descriptor table: it
        // never holds descriptors that other threads open.
        unsafe {
            libc::unshare(libc::CLONE_FILES);
            libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        }
        let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        let _ = hung_up.recv();
    };
    std::thread::Builder::new().name("witness".into()).stack_size(WITNESS_STACK).spawn(life)?;
    Ok((receiver.recv().map_err(io::Error::other)?, hang_up))
}

impl Duty {
    /// Main function of the guardian. It is a forked copy of a process with threads: nothing here
    /// allocates, locks or panics.
    fn fulfil(&self) -> ! {
        Self::settle();
        while !self.server_is_gone() {}
        crate::placement::restore_recorded();
        // SAFETY: system calls on descriptors and strings of ours; the process exits without
        // running other code.
        unsafe {
            libc::write(libc::STDERR_FILENO, SAYS.as_ptr().cast(), SAYS.len());
            if let Some(abort) = &self.abort {
                libc::write(abort.as_raw_fd(), b"1".as_ptr().cast(), 1);
            }
            if let Some(path) = &self.path {
                self.unmount(path);
            }
            libc::_exit(0)
        }
    }

    /// Detaches from the server's session, signals, streams and working directory.
    fn settle() {
        // SAFETY: system calls; the set is initialised before it is read. The closed descriptors
        // belong to this copy of the process, which does not use them.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
            libc::chdir(c"/".as_ptr());
            libc::close(libc::STDIN_FILENO);
            libc::close(libc::STDOUT_FILENO);
        }
    }

    /// Waits for the exit of the server; false: it still runs.
    fn server_is_gone(&self) -> bool {
        let (fd, timeout) =
            self.witness.as_ref().map_or((-1, LOOK_EVERY_MS), |fd| (fd.as_raw_fd(), -1));
        let mut wait = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure and the string are live.
        unsafe {
            let ready = libc::poll(&mut wait, 1, timeout) > 0;
            ready || (fd < 0 && libc::access(self.folder.as_ptr(), libc::F_OK) != 0)
        }
    }

    /// Detaches the mount, unless it belongs to a new server: statfs of a dead mount fails with
    /// ENOTCONN.
    unsafe fn unmount(&self, path: &CString) {
        // SAFETY: the string and the structure are live.
        unsafe {
            let flags = if self.abort.is_some() {
                let mut statistics: libc::statfs = std::mem::zeroed();
                let dead = libc::statfs(path.as_ptr(), &mut statistics) < 0
                    && *libc::__errno_location() == libc::ENOTCONN;
                if !dead {
                    return;
                }
                libc::MNT_DETACH
            } else {
                // statfs of a connection that is not aborted could block for ever; MNT_FORCE aborts
                // it, too.
                libc::MNT_FORCE | libc::MNT_DETACH
            };
            if libc::umount2(path.as_ptr(), flags) == 0 && self.made {
                libc::rmdir(path.as_ptr());
            }
        }
    }
}
