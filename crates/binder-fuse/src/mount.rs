//! The mount: made on construction, removed on drop; a mount of a dead server is removed first.

use std::ffi::{CString, OsString};
use std::fs::DirBuilder;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use headroom_linux::features;
use headroom_linux::mountinfo::{self, Device, MountEntry};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::channel::Channel;

/// Filesystem type in `/proc/mounts`; the part behind the dot is FUSE's subtype.
pub const FSTYPE: &str = "fuse.binder";
pub(crate) const SOURCE: &str = "headroom";

/// The mount namespace that a server is in while it serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountNamespace {
    /// The one that it mounts in, which exists at least as long as the server.
    #[default]
    Keep,
    /// A copy without the mount. The bus ends with the last process of the namespace that it was
    /// mounted in; a server that is stopped cannot unmount it there.
    Leave,
}

/// A mounted device filesystem. Dropping it unmounts (lazily where clients still hold files open)
/// and removes the directory if it was made for the mount.
///
/// This code must not access the mounted filesystem: the thread that does is the one that would
/// have to reply.
pub(crate) struct Mount {
    path: PathBuf,
    device: Device,
    /// Removed after the unmount.
    created: CreatedFolders,
    /// The mount is in the namespaces of this process, and ends with it.
    helper: Option<MountHelper>,
    namespace: MountNamespace,
}

impl Mount {
    /// Mounts on `dir`, which is created if it is missing (its parents, too).
    ///
    /// * `allow_other`: clients are other users; without it only the mounting user has access.
    /// * `default_permissions`: the kernel checks the mode, owner and group that we report, as for
    ///   real device nodes, so that `chmod` and `chown` are effective.
    /// * `MountNamespace::Leave`: this process has one thread.
    pub(crate) fn new(
        dir: &Path,
        source: &str,
        channel: &Channel,
        namespace: MountNamespace,
    ) -> Result<Self, Error> {
        let MountPoint { path, created } = prepare(dir)?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let options = format!(
            "fd={},rootmode=40000,user_id={},group_id={},allow_other,default_permissions",
            channel.as_fd().as_raw_fd(),
            uid.as_raw(),
            gid.as_raw(),
        );
        let options = CString::new(options).unwrap_or_default();
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let mounted = mount(source, &path, FSTYPE, flags, options.as_c_str());
        mounted.map_err(fail(
            &path,
            "cannot mount (that takes CAP_SYS_ADMIN; `headroom run` needs none)",
        ))?;
        let device = Device { major: 0, minor: 0 };
        let mut this = Self { path, device, created, helper: None, namespace };
        this.device = look_up(&this.path)?
            .filter(|entry| entry.fs_type == FSTYPE)
            .ok_or_else(|| {
                fail(&this.path, "the mount is not in /proc/self/mountinfo")(Errno::NOENT)
            })?
            .device;
        if namespace == MountNamespace::Leave {
            leave_namespace(&this.path)?;
        }
        Ok(this)
    }

    /// Mounts on `dir` in namespaces of a helper process, which other users' processes cannot
    /// enter; returns the connection, too. This process must have one thread.
    pub(crate) fn in_helper(dir: &Path) -> Result<(Self, OwnedFd), Error> {
        let MountPoint { path: dir, created } = prepare(dir)?;
        let (helper, connection) = MountHelper::mount(&dir)?;
        let table = std::fs::read(helper.mountinfo())
            .map_err(Error::io("cannot read the mount table of the helper"))?;
        let entry = mountinfo::topmost(&table, &dir).filter(|entry| entry.fs_type == FSTYPE);
        let device = entry
            .ok_or_else(|| {
                fail(&dir, "the mount is not in the helper's mount table")(Errno::NOENT)
            })?
            .device;
        let path = helper.sees(&dir);
        let namespace = MountNamespace::Keep;
        Ok((Self { path, device, created, helper: Some(helper), namespace }, connection))
    }

    /// Device numbers of the mounted filesystem; the minor number is also the connection's name in
    /// `/sys/fs/fuse/connections`.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The mount point, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The mount point, if it is in the mount namespace of this process.
    pub(crate) fn path_here(&self) -> Option<&Path> {
        let is_here = self.helper.is_none() && self.namespace == MountNamespace::Keep;
        is_here.then_some(&*self.path)
    }

    /// Whether the folder was created for the mount.
    pub(crate) fn was_made(&self) -> bool {
        !self.created.0.is_empty()
    }

    /// Whether the filesystem is still mounted; if not, only the directory is left to remove.
    pub(crate) fn is_mounted(&self) -> bool {
        matches!(look_up(&self.path), Ok(Some(entry)) if entry.device == self.device)
    }
}

/// A [`Mount`] in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedMount {
    path: Vec<u8>,
    /// Major and minor number.
    device: (u32, u32),
    created: Vec<Vec<u8>>,
    namespace: MountNamespace,
}

impl Mount {
    /// `None`: it is in the namespaces of a helper process.
    pub(crate) fn save(&self) -> Option<SavedMount> {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        self.helper.is_none().then(|| SavedMount {
            path: bytes(&self.path),
            device: (self.device.major, self.device.minor),
            created: self.created.0.iter().map(|path| bytes(path)).collect(),
            namespace: self.namespace,
        })
    }

    pub(crate) fn restore(saved: SavedMount) -> Self {
        let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
        let (major, minor) = saved.device;
        Self {
            path: path(saved.path),
            device: Device { major, minor },
            created: CreatedFolders(saved.created.into_iter().map(path).collect()),
            helper: None,
            namespace: saved.namespace,
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.helper.take().is_some() {
            return;
        }
        if !self.is_mounted() {
            return;
        }
        // Lazy: it never waits for clients. Forced: it aborts the connection, so that no close of
        // an own open waits for this process to answer. Where that is refused, the connection ends
        // with the last descriptor of /dev/fuse.
        let flags = UnmountFlags::DETACH;
        let unmounted = unmount(&self.path, flags | UnmountFlags::FORCE)
            .or_else(|_| unmount(&self.path, flags));
        if let Err(errno) = unmounted {
            tracing::warn!("{}: cannot unmount: {errno}", self.path.display());
        }
    }
}

/// Moves this process into a copy of its mount namespace, without the mount on `path`.
fn leave_namespace(path: &Path) -> Result<(), Error> {
    unshare(libc::CLONE_NEWNS).map_err(Error::io("cannot make a mount namespace"))?;
    // Unmounts elsewhere take effect here, so that this copy keeps no filesystem busy; not the
    // other way round.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .and_then(|()| unmount(path, UnmountFlags::DETACH))
        .map_err(fail(path, "cannot leave its mount namespace"))
}

fn fail(path: &Path, doing: &'static str) -> impl FnOnce(Errno) -> Error {
    let path = path.to_owned();
    move |errno| Error::MountPoint { path, doing, errno }
}

fn from_io(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn look_up(path: &Path) -> Result<Option<MountEntry>, Error> {
    let text = std::fs::read("/proc/self/mountinfo")
        .map_err(Error::io("cannot read /proc/self/mountinfo"))?;
    Ok(mountinfo::topmost(&text, path))
}

/// Folders whose contents programs rely on, so that a mount must not hide them.
const SYSTEM_FOLDERS: [&str; 5] = ["/", "/proc", "/sys", "/dev", "/run"];

/// Folders created for a mount, outermost first. Dropping removes those that are empty.
#[derive(Default)]
struct CreatedFolders(Vec<PathBuf>);

impl CreatedFolders {
    /// `mkdir -p`.
    fn create(&mut self, path: &Path) -> Result<(), Error> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|folder| folder.symlink_metadata().is_err()).collect();
        for folder in missing.into_iter().rev() {
            // Whatever the umask is, no other user may put files where the devices will be.
            match DirBuilder::new().mode(0o755).create(folder) {
                Ok(()) => self.0.push(folder.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(fail(folder, "cannot create it")(from_io(error))),
            }
        }
        Ok(())
    }
}

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// A mount point.
struct MountPoint {
    /// Absolute path; its parent contains no symbolic links.
    path: PathBuf,
    created: CreatedFolders,
}

/// Prepares the directory for the mount.
fn prepare(dir: &Path) -> Result<MountPoint, Error> {
    let dir = std::path::absolute(dir).map_err(from_io).map_err(fail(dir, "not a usable path"))?;
    let refuse = |path: &Path, reason| Error::MountFolder { path: path.to_owned(), reason };
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Err(refuse(&dir, "it is a system folder"));
    };
    let mut created = CreatedFolders::default();
    created.create(parent)?;
    // Only the parent is resolved: the directory itself may be a dead mount, which stat(2) cannot
    // access.
    let parent =
        parent.canonicalize().map_err(from_io).map_err(fail(parent, "cannot resolve it"))?;
    let path = parent.join(name);
    if SYSTEM_FOLDERS.iter().any(|folder| path == Path::new(folder)) {
        return Err(refuse(&path, "it is a system folder"));
    }
    clear_stale(&path)?;
    created.create(&path)?;
    let mut entries = path.read_dir().map_err(from_io).map_err(fail(&path, "cannot read it"))?;
    if entries.next().is_some() {
        return Err(refuse(&path, "it is not empty, and the mount would hide what is in it"));
    }
    Ok(MountPoint { path, created })
}

/// Unmounts what crashed servers left on `path`; refuses a mount that is alive.
fn clear_stale(path: &Path) -> Result<(), Error> {
    while let Some(entry) = look_up(path)? {
        if !entry.fs_type.starts_with("fuse") && entry.fs_type != "binder" {
            return Ok(()); // an ordinary filesystem: we mount over it
        }
        if rustix::fs::stat(path).is_ok_and(|there| !entry.device.is(there.st_dev)) {
            return Ok(()); // something else was mounted over a folder above it
        }
        if !matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN)) {
            return Err(Error::InUse { path: path.to_owned(), fstype: entry.fs_type });
        }
        tracing::warn!("{}: unmounting what a dead daemon left there", path.display());
        unmount(path, UnmountFlags::DETACH)
            .map_err(fail(path, "cannot unmount a dead daemon's mount"))?;
    }
    Ok(())
}

/// Limits of a server that is no ancestor of its clients and has no privilege.
pub(crate) fn lacking() -> Option<String> {
    (features::ptrace_scope() > 0).then(|| {
        "kernel.yama.ptrace_scope is not 0: only the process that made the bus can be its client, \
         and others that allow it with PR_SET_PTRACER; `headroom run` has no such limit"
            .into()
    })
}

/// The helper process of an unprivileged mount. Dropping it ends the process, and thereby the
/// mount.
///
/// An ordinary process may mount only in a user namespace of its own, and a process in one may not
/// access the memory of processes outside. So a helper process enters such a namespace, opens
/// `/dev/fuse`, mounts, and passes the connection to us; we stay in the clients' namespace, and
/// they reach the mount through `/proc/<helper>/root`.
#[derive(Debug)]
struct MountHelper {
    pid: Pid,
    /// The helper runs as long as this is open.
    socket: Option<OwnedFd>,
}

impl MountHelper {
    /// Mounts on `dir`, which exists; returns the helper and the connection.
    fn mount(dir: &Path) -> Result<(Self, OwnedFd), Error> {
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
                run_helper(dir, &theirs)
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
    fn sees(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.pid.as_raw_nonzero());
        Path::new(&root).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The helper's table of mounts.
    fn mountinfo(&self) -> PathBuf {
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

impl Drop for MountHelper {
    fn drop(&mut self) {
        drop(self.socket.take());
        let _ = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()));
    }
}

/// Runs the helper process.
fn run_helper(dir: &Path, socket: &OwnedFd) -> ! {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // A reader of our parent's output must see its end when the parent exits.
    // SAFETY: closes descriptors that this process does not use.
    unsafe {
        libc::close(0);
        libc::close(1);
    }
    match mount_here(dir) {
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

fn mount_here(dir: &Path) -> Result<OwnedFd, (&'static str, io::Error)> {
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
    let device = headroom_linux::mountinfo::open_fuse()
        .map_err(|e| ("no connection", io::Error::other(e)))?;
    // Without allow_other, this user's processes outside of the namespace may use the mount; with
    // it they may not.
    let options = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions",
        device.as_fd().as_raw_fd()
    );
    let options = CString::new(options).unwrap_or_default();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(SOURCE, dir, FSTYPE, flags, options.as_c_str())
        .map_err(|e| ("cannot mount", e.into()))?;
    Ok(device)
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_do_not_wait_for_a_server_that_has_unmounted() {
        if !test_support::privileged() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        // The connection stays open until the end of the test.
        let connection = Channel::open().unwrap();
        let mount = Mount::new(folder.path(), SOURCE, &connection, MountNamespace::Keep).unwrap();
        let file = mount.path().join("file");
        let (begins, begun) = channel();
        let (ends, ended) = channel();
        std::thread::spawn(move || {
            let _ = begins.send(rustix::thread::gettid());
            let _ = ends.send(std::fs::File::open(file).map_err(|error| error.raw_os_error()));
        });
        let stat = format!("/proc/self/task/{}/stat", begun.recv().unwrap().as_raw_nonzero());
        // It waits once the request is pending: killable, or interruptible.
        let waits = |stat: String| [") S ", ") D "].iter().any(|state| stat.contains(state));
        while !waits(std::fs::read_to_string(&stat).unwrap()) {
            std::thread::yield_now();
        }
        drop(mount);
        let opened = ended.recv_timeout(Duration::from_secs(60)).expect("it waits for an answer");
        assert!(opened.is_err(), "nothing serves it");
    }
}
