//! Files that were taken from their senders and have not been given yet.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use binder_driver::{Caller, Errno, FileToken};
use owners::Uid;
use slotmap::{Key, KeyData, SlotMap, new_key_type};

use super::registers::SUPPORTED;
use crate::task_watch::{TaskKind, pidfd_of};

/// Files of one user that may be on their way at a time: our descriptor table serves everybody.
const MAX_FILES_OF_A_USER: usize = 4096;

new_key_type! {
    struct FileKey;
}

struct Taken {
    file: Arc<OwnedFd>,
    uid: Uid,
}

/// See the module's documentation.
pub(crate) struct Store {
    files: SlotMap<FileKey, Taken>,
    by_user: HashMap<Uid, usize>,
    closer: Option<Closer>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { files: SlotMap::with_key(), by_user: HashMap::new(), closer: None }
    }

    /// Takes the file behind `fd` of a thread that is in a call of ours.
    pub(crate) fn take(&mut self, from: Caller, fd: u32) -> Result<FileToken, Errno> {
        if !SUPPORTED {
            return Err(Errno::EPERM);
        }
        if self.closer.is_none() {
            let closer = Closer::start();
            self.closer = Some(closer.map_err(|error| refusal("no thread that closes", &error))?);
        }
        let count = self.by_user.entry(Uid(from.euid)).or_default();
        if *count >= MAX_FILES_OF_A_USER {
            tracing::debug!("uid {} has {count} files on their way, no more", from.euid);
            return Err(Errno::ENOMEM);
        }
        let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
        let file = fetch(from.tid, fd)
            .map_err(|error| refusal(&format!("descriptor {fd} of thread {}", from.tid), &error))?;
        *count += 1;
        let key = self.files.insert(Taken { file: Arc::new(file), uid: Uid(from.euid) });
        Ok(FileToken(key.data().as_ffi()))
    }

    pub(crate) fn get(&self, token: FileToken) -> Option<Arc<OwnedFd>> {
        self.files.get(KeyData::from_ffi(token.0).into()).map(|taken| Arc::clone(&taken.file))
    }

    pub(crate) fn drop(&mut self, token: FileToken) {
        let Some(taken) = self.files.remove(KeyData::from_ffi(token.0).into()) else { return };
        if let Some(count) = self.by_user.get_mut(&taken.uid) {
            *count -= 1;
            if *count == 0 {
                self.by_user.remove(&taken.uid);
            }
        }
        if let Some(closer) = &self.closer {
            closer.close(taken.file);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // An open of our own filesystem may be among them, and nobody serves its close any more:
        // the closer waits until the connection is gone, not we.
        if let Some(closer) = &self.closer {
            self.files.drain().for_each(|(_, taken)| closer.close(taken.file));
        }
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

/// A duplicate of a thread's descriptor. The thread is stopped or in a call of ours, so its number
/// is its own.
pub(crate) fn fetch(tid: u32, fd: i32) -> io::Result<OwnedFd> {
    let pidfd = match pidfd_of(tid, TaskKind::Thread) {
        // Before Linux 6.9 there are pidfds of processes only; threads share their descriptors as a
        // rule.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let process = crate::pid_view::process_of(tid, 0)?.pid;
            pidfd_of(process, TaskKind::Process)?
        }
        pidfd => pidfd?,
    };
    // SAFETY: plain numbers in; the descriptor out is new and nobody else's.
    unsafe {
        let got = libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0);
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(got as i32)) }
    }
}

/// A thread that closes files which are not ours. Whatever a client passes may take its time to
/// close, and a file of our own filesystem waits for our event loop.
#[derive(Clone)]
pub(crate) struct Closer(Sender<OwnedFd>);

impl Closer {
    /// It ends by itself when nobody has anything to close any more.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, files) = channel::<OwnedFd>();
        let closing = move || files.into_iter().for_each(drop);
        std::thread::Builder::new().name("file-closer".into()).spawn(closing)?;
        Ok(Self(sender))
    }

    pub(crate) fn close(&self, file: Arc<OwnedFd>) {
        // Whoever has it last. The thread lives as long as this sender.
        if let Some(file) = Arc::into_inner(file) {
            let _ = self.0.send(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use binder_driver::{Driver, Opener};
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn ourselves() -> Caller {
        let mut driver = Driver::new();
        let context = driver.add_context("binder");
        let process = driver.open(context, Opener { pid: 1, euid: 0 }).unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        Caller { process, tid, euid: 0 }
    }

    #[test]
    fn a_taken_file_is_the_senders_own_until_it_is_dropped() {
        let (mut read, mut write) = std::io::pipe().unwrap();
        let mut store = Store::new();
        let token = store.take(ourselves(), write.as_raw_fd() as u32).unwrap();
        let taken = store.get(token).unwrap();
        write.write_all(b"one").unwrap();
        drop(write);
        std::fs::File::from(taken.try_clone().unwrap()).write_all(b"two").unwrap();
        drop(taken);
        store.drop(token);
        assert!(store.get(token).is_none());
        assert!(store.by_user.is_empty());
        // The pipe ends when the closer has closed the last writer.
        assert_eq!(std::io::read_to_string(&mut read).unwrap(), "onetwo");
    }

    #[test]
    fn what_is_no_descriptor_is_ebadf() {
        let mut store = Store::new();
        for fd in [1 << 20, u32::MAX] {
            assert_eq!(store.take(ourselves(), fd), Err(Errno::EBADF));
        }
    }

    #[test]
    fn one_user_cannot_have_more_than_his_share_on_the_way() {
        let mut store = Store::new();
        let (read, _write) = std::io::pipe().unwrap();
        let caller = ourselves();
        store.by_user.insert(Uid(caller.euid), MAX_FILES_OF_A_USER);
        assert_eq!(store.take(caller, read.as_raw_fd() as u32), Err(Errno::ENOMEM));
        let other = Caller { euid: 1, ..caller };
        assert!(store.take(other, read.as_raw_fd() as u32).is_ok());
    }
}
