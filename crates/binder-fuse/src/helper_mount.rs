//! An unprivileged mount: made in the namespaces of a helper process, served by us.
//!
//! An ordinary process may mount only in a user namespace of its own, and a process in one may not
//! access the memory of processes outside. So a helper process enters such a namespace, opens
//! `/dev/fuse`, mounts, and passes the connection to us; we stay in the clients' namespace, and
//! they reach the mount through `/proc/<helper>/root`. The mount ends with the helper.

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::error::Error;

/// Limits of a server that is no ancestor of its clients and has no privilege.
pub(crate) fn lacking() -> Option<String> {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let restricted = scope.trim().parse().is_ok_and(|scope: u32| scope > 0);
    restricted.then(|| {
        "kernel.yama.ptrace_scope is not 0: only the process that made the bus can be its client, \
         and others that allow it with PR_SET_PTRACER; `headroom run` has no such limit"
            .into()
    })
}

/// The helper process. Dropping it ends the process, and thereby the mount.
#[derive(Debug)]
pub(crate) struct Helper {
    pid: Pid,
    /// The helper runs as long as this is open.
    socket: Option<OwnedFd>,
}

impl Helper {
    /// Mounts on `dir`, which exists, with a filesystem type and name; returns the helper and the
    /// connection.
    pub(crate) fn mount(dir: &Path, fstype: &str, source: &str) -> Result<(Self, OwnedFd), Error> {
        let failed = Error::io("cannot make a helper process");
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed(io::Error::from(errno)))?;
        // SAFETY: the caller guarantees that this process has one thread (see
        // `Server::new_anywhere`), so the child may call any function; it exits without cleaning
        // up.
        let pid = match unsafe { libc::fork() } {
            -1 => {
                return Err(Error::io("cannot make a helper process")(io::Error::last_os_error()));
            }
            0 => {
                drop(ours);
                run_helper(dir, fstype, source, &theirs)
            }
            pid => pid,
        };
        drop(theirs);
        let pid = Pid::from_raw(pid)
            .ok_or_else(|| Error::io("cannot make a helper process")(io::Error::other("no pid")))?;
        let helper = Self { pid, socket: Some(ours) };
        let device = helper.receive().map_err(|error| Error::NoNamespaces(error.to_string()))?;
        Ok((helper, device))
    }

    /// `path` as it is in the helper's mount namespace.
    pub(crate) fn sees(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.pid.as_raw_nonzero());
        Path::new(&root).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The helper's table of mounts.
    pub(crate) fn mountinfo(&self) -> PathBuf {
        format!("/proc/{}/mountinfo", self.pid.as_raw_nonzero()).into()
    }

    /// Receives the connection, or the reason why it is missing.
    fn receive(&self) -> io::Result<OwnedFd> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut message = [0; 256];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut control, flags)?;
        let device = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        device.ok_or_else(|| {
            let text = String::from_utf8_lossy(&message[..received.bytes]).into_owned();
            io::Error::other(if text.is_empty() { "the helper died".to_owned() } else { text })
        })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.socket.take());
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// Runs the helper process.
fn run_helper(dir: &Path, fstype: &str, source: &str, socket: &OwnedFd) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // A reader of our parent's output must see its end when the parent exits.
    // SAFETY: closes descriptors that this process does not use.
    unsafe {
        libc::close(0);
        libc::close(1);
    }
    match mount_here(dir, fstype, source) {
        Ok(device) => {
            let _ = send(socket, b"mounted", Some(&device));
            drop(device);
            // Returns when the parent closes its end.
            let _ = rustix::io::read(socket, &mut [0; 8]);
        }
        Err((step, error)) => drop(send(socket, format!("{step}: {error}").as_bytes(), None)),
    }
    // SAFETY: ends the process; it has nothing to clean up.
    unsafe { libc::_exit(0) }
}

fn mount_here(
    dir: &Path,
    fstype: &str,
    source: &str,
) -> Result<OwnedFd, (&'static str, io::Error)> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(libc::CLONE_NEWUSER).map_err(|e| ("no user namespace", e))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(|e| ("no user namespace", e))?;
    }
    unshare(libc::CLONE_NEWNS).map_err(|e| ("no mount namespace", e))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|e| ("no private mounts", e.into()))?;
    // The device must be opened in the user namespace that mounts.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|e| ("cannot open /dev/fuse", e.into()))?;
    // Without allow_other, this user's processes outside of the namespace may use the mount; with
    // it they may not.
    let options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions",
        device.as_fd().as_raw_fd()
    );
    let options = CString::new(options).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(source, dir, fstype, flags, options.as_c_str())
        .map_err(|e| ("cannot mount", e.into()))?;
    Ok(device)
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers; the namespaces of this process change, which has one thread.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn send(socket: &OwnedFd, text: &[u8], fd: Option<&OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fd.into_iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
