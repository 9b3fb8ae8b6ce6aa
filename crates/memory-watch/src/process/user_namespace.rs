//! `/proc/<pid>/ns/user`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::Proc;
use machine_memory::ReadError;
use memory_ledger::Uid;

/// ioctls of a namespace's file (`linux/nsfs.h`).
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
/// Namespaces within each other: the kernel makes no more.
const MAX_LEVELS: usize = 33;

impl Proc {
    /// Who has made the outermost user namespace that the process is in, as far as that is inside of the reader's own;
    /// `None`: it is in the reader's own.
    pub fn namespace_owner(&self, pid: u32) -> Result<Option<Uid>, ReadError> {
        let path = self.root.join(pid.to_string()).join("ns/user");
        let cannot = |e: io::Error| ReadError::io(&path, e);
        let own = self.root.join("self/ns/user");
        let own = std::fs::read_link(&own).map_err(|e| ReadError::io(&own, e))?;
        if std::fs::read_link(&path).map_err(cannot)? == own {
            return Ok(None);
        }
        let mut namespace = File::open(&path).map_err(cannot)?;
        for _ in 0..MAX_LEVELS {
            let parent = match parent(&namespace) {
                Ok(parent) => parent,
                // It is not ours to look into: above our own, or beside it.
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => return Ok(None),
                Err(e) => return Err(cannot(e)),
            };
            let inode = parent.metadata().map_err(cannot)?.ino();
            if own == Path::new(&format!("user:[{inode}]")) {
                return owner(&namespace).map(Some).map_err(cannot);
            }
            namespace = parent;
        }
        Ok(None)
    }
}

fn parent(namespace: &File) -> io::Result<File> {
    // SAFETY: the request takes no argument, and what it returns is a new descriptor that nobody else owns.
    unsafe {
        match libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

fn owner(namespace: &File) -> io::Result<Uid> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the request writes a uid there.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(Uid(uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_in_our_own_namespace() {
        assert_eq!(Proc::default().namespace_owner(std::process::id()).unwrap(), None);
        assert!(Proc::default().namespace_owner(u32::MAX / 2).unwrap_err().is_gone());
    }
}
