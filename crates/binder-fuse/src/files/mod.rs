//! Passes files from client to client.
//!
//! A file is taken from its sender with `pidfd_getfd` when it sends, and kept in the [`Store`]. No
//! system call installs a file in another process, so an unmodified receiver has to receive it
//! itself: when its ioctl returns, its thread is stopped ([`tracee`]), made to receive the files
//! over a socket of its own ([`install`]), and resumed. Worker threads do that ([`fd_installer`])
//! and report to the event loop. A receiver that was started under our seccomp filter is not
//! stopped ([`trap`]).

mod fd_installer;
mod install;
#[cfg_attr(target_arch = "x86_64", path = "registers/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "registers/aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "registers/other.rs")]
mod registers;
mod tracee;
mod trap;

pub(crate) use fd_installer::{Completion, FdInstaller, Job, Outcome};
pub(crate) use install::ReadRoom;
pub(crate) use owners::client_files::{Charge, ClientFile, Closers, quota_of_descriptors};
pub(crate) use tracee::{CallStop, note_timer_period};
pub(crate) use trap::{Trap, TrapOutcome};

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use binder_driver::slab::{Key, Slab, key_types};
use binder_driver::{Errno, FileToken};
use headroom_linux::descriptors::KeptFd;
use headroom_linux::features;
use owners::Exhausted;
use serde::{Deserialize, Serialize};

use crate::task_watch::{TaskKind, pidfd_of};

key_types! {
    struct FileKey;
}

/// Files that were fetched from their senders and are not installed yet.
pub(crate) struct Store {
    files: Slab<FileKey, Arc<ClientFile>>,
    closers: Closers,
}

/// The files of a [`Store`] in a state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedFiles(Slab<FileKey, SavedFile>);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct SavedFile {
    fd: KeptFd,
    charge: Charge,
}

impl SavedFiles {
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = KeptFd> {
        self.0.values().map(|file| file.fd)
    }

    pub(crate) fn contains(&self, token: FileToken) -> bool {
        self.0.contains_key(FileKey::from_number(token.0))
    }
}

impl Store {
    pub(crate) fn save(&self) -> SavedFiles {
        let saved =
            |file: &Arc<ClientFile>| SavedFile { fd: KeptFd::of(&**file), charge: file.charge() };
        SavedFiles(self.files.map(saved))
    }

    /// Adds the files of a state to an empty store.
    ///
    /// # Safety
    ///
    /// As for [`KeptFd::take`].
    pub(crate) unsafe fn restore(&mut self, SavedFiles(files): SavedFiles) -> io::Result<()> {
        let closers = &self.closers;
        self.files = files.try_into_map(|SavedFile { fd, charge }| {
            // SAFETY: as guaranteed by the caller.
            let file = unsafe { fd.take() }?;
            Ok::<_, io::Error>(Arc::new(closers.adopt(file, charge)))
        })?;
        Ok(())
    }

    pub(crate) fn new(closers: Closers) -> Self {
        Self { files: Slab::default(), closers }
    }

    /// Fetches the file behind `fd` of a thread that is in an ioctl on our device.
    pub(crate) fn take(&mut self, charge: Charge, tid: u32, fd: u32) -> Result<FileToken, Errno> {
        if !registers::SUPPORTED {
            return Err(Errno::EPERM);
        }
        let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
        let refused = |error| refusal(&format!("descriptor {fd} of thread {tid}"), &error);
        self.closers.reserve(charge).map_err(|why| refused(exhausted(charge, why)))?;
        let file = fetch(tid, fd).map_err(|error| {
            self.closers.give_back(charge);
            refused(error)
        })?;
        let key = self.files.insert(Arc::new(self.closers.hold(file, charge)));
        Ok(FileToken(key.number()))
    }

    pub(crate) fn get(&self, token: FileToken) -> Option<Arc<ClientFile>> {
        self.files.get(FileKey::from_number(token.0)).map(Arc::clone)
    }

    pub(crate) fn drop(&mut self, token: FileToken) {
        self.files.remove(FileKey::from_number(token.0));
    }
}

fn refusal(what: &str, error: &io::Error) -> Errno {
    tracing::debug!("{what}: {error}");
    match error.raw_os_error() {
        Some(libc::EBADF) => Errno::EBADF,
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Errno::EPERM,
        _ => Errno::ENOMEM,
    }
}

/// Duplicates a thread's descriptor. The thread is stopped or in an ioctl on our device, so its tid
/// cannot have been reused.
fn fetch(tid: u32, fd: i32) -> io::Result<OwnedFd> {
    let pidfd = match pidfd_of(tid, TaskKind::Thread) {
        // Before Linux 6.9 there are pidfds of processes only; threads usually share one descriptor
        // table.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let process = crate::identity::process_of(tid, 0)?.pid;
            pidfd_of(process, TaskKind::Process)?
        }
        pidfd => pidfd?,
    };
    // SAFETY: plain numbers in; the returned descriptor is new and has no other owner.
    unsafe {
        let got = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0);
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(got as i32)) }
    }
}

/// The errno for a sender if its file is refused.
fn exhausted(charge: Charge, why: Exhausted) -> io::Error {
    let all = if why == Exhausted::All { " (all owners together)" } else { "" };
    tracing::debug!("{}: too many files are passed at a time{all}", charge.owner);
    io::Error::from_raw_os_error(libc::ENOMEM)
}

/// The reason why files cannot be passed on this machine; `None` where they can.
pub(crate) fn lacking() -> Option<String> {
    if !registers::SUPPORTED {
        return Some(format!(
            "no file descriptors in transactions on {}: they are refused (EPERM)",
            std::env::consts::ARCH
        ));
    }
    let may_trace = features::has_capability(rustix::thread::CapabilitySet::SYS_PTRACE);
    (features::ptrace_scope() > 0 && !may_trace).then(|| {
        "no file descriptors in transactions: kernel.yama.ptrace_scope is not 0, and \
         CAP_SYS_PTRACE is missing"
            .into()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsFd, AsRawFd};

    use owners::{Owner, Uid};

    use super::*;

    const CHARGE: Charge = Charge { owner: Owner::User(Uid(7)), uid: Uid(7) };

    fn own_tid() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn a_taken_file_belongs_to_the_sender_until_it_is_dropped() {
        let (mut read, mut write) = std::io::pipe().unwrap();
        let mut store = Store::new(Closers::for_files());
        let token = store.take(CHARGE, own_tid(), write.as_raw_fd() as u32).unwrap();
        let taken = store.get(token).unwrap();
        write.write_all(b"one").unwrap();
        drop(write);
        std::fs::File::from(taken.as_fd().try_clone_to_owned().unwrap()).write_all(b"two").unwrap();
        drop(taken);
        store.drop(token);
        assert!(store.get(token).is_none());
        // The pipe ends when a closing thread has closed the last writer.
        assert_eq!(std::io::read_to_string(&mut read).unwrap(), "onetwo");
    }

    #[test]
    fn an_invalid_descriptor_is_ebadf() {
        let mut store = Store::new(Closers::for_files());
        for fd in [1 << 20, u32::MAX] {
            assert_eq!(store.take(CHARGE, own_tid(), fd), Err(Errno::EBADF));
        }
    }
}
