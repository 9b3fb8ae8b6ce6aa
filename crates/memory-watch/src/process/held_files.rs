//! `/proc/<pid>/fd`: files in memory (memfds, tmpfs files) that a process holds open.
//!
//! This module never waits for a file server: a user can open files of a FUSE filesystem that never
//! replies. It waits for a process in `execve`.

use std::collections::BTreeMap;

use headroom_linux::mountinfo;
use memory_ledger::Uid;
use rustix::fs::{AtFlags, CWD, FileType, MemfdFlags, StatxFlags};

use super::Proc;
use machine_memory::ReadError;

/// Identifies a file independently of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// Device number of the filesystem.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
}

impl FileId {
    /// Whether the device is a disk; all other filesystems have major number 0.
    pub(super) fn is_on_disk(self) -> bool {
        rustix::fs::major(self.device) != 0
    }
}

/// Filesystems without a disk's device number whose files are never in memory only. Files of others
/// may be: a stacked filesystem maps the pages of the one below, a driver those of its own.
const NOT_IN_MEMORY: &[&str] = &["9p", "btrfs", "cifs", "nfs", "nfs4", "virtiofs", "zfs"];

/// Where a filesystem keeps its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory: it is a tmpfs, in which an inode number identifies a file.
    Memory,
    /// Not in memory.
    Other,
    /// It is a filesystem of another type, or a mount of another namespace.
    Unknown,
}

/// A file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Device and inode.
    pub id: FileId,
    /// The user that owns the file: its creator.
    pub owner: Uid,
    /// Memory and swap of the file, bytes.
    pub bytes: u64,
}

/// Identifies filesystems that are kept in memory.
#[derive(Debug, Default)]
pub struct TmpfsDevices {
    /// By device number.
    known: BTreeMap<u64, Storage>,
}

impl TmpfsDevices {
    /// Starts with the mount of memfds, which no list of mounts shows.
    pub fn new() -> Self {
        let memfd = rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC);
        let device = memfd.and_then(rustix::fs::fstat).map(|stat| stat.st_dev);
        Self { known: device.into_iter().map(|device| (device, Storage::Memory)).collect() }
    }

    /// Where a file is kept that a process has open or mapped.
    pub fn storage(&mut self, file: FileId, proc: &Proc, pid: u32) -> Storage {
        if file.is_on_disk() {
            return Storage::Other;
        }
        *self.known.entry(file.device).or_insert_with(|| {
            let path = proc.root.join(pid.to_string()).join("mountinfo");
            let mounts = std::fs::read(path).unwrap_or_default();
            let mount = mountinfo::entries(&mounts).find(|mount| mount.device.is(file.device));
            match mount.map(|mount| mount.fs_type).as_deref() {
                Some("tmpfs") => Storage::Memory,
                Some(other) if NOT_IN_MEMORY.contains(&other) => Storage::Other,
                _ => Storage::Unknown,
            }
        })
    }

    /// Forgets all mounts: device numbers are reused for other filesystems.
    pub fn forget_mounts(&mut self) {
        *self = Self::new();
    }
}

impl Proc {
    /// The files that a process holds open and that may be in memory, once per open descriptor.
    /// Checks at most `most` descriptors; also returns how many were checked.
    pub fn open_files(&self, pid: u32, most: usize) -> Result<(Vec<HeldFile>, usize), ReadError> {
        let folder = self.root.join(pid.to_string()).join("fd");
        let entries = std::fs::read_dir(&folder).map_err(|e| ReadError::io(&folder, e))?;
        let (mut files, mut looked_at) = (Vec::new(), 0);
        for entry in entries.flatten().take(most) {
            looked_at += 1;
            let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::INO | StatxFlags::BLOCKS;
            // Attributes that the file server has reported before are sufficient.
            let flags = AtFlags::STATX_DONT_SYNC;
            // The descriptor was closed since it was listed.
            let Ok(stat) = rustix::fs::statx(CWD, entry.path(), flags, wanted) else { continue };
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            let id = FileId { device, inode: stat.stx_ino };
            let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
            if is_file && stat.stx_blocks > 0 && !id.is_on_disk() {
                files.push(HeldFile { id, owner: Uid(stat.stx_uid), bytes: stat.stx_blocks * 512 });
            }
        }
        Ok((files, looked_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_is_a_file_of_memory_and_a_pipe_is_none() {
        let (_read, _write) = std::io::pipe().unwrap();
        let memfd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&memfd, &[1; 8192]), Ok(8192));
        let stat = rustix::fs::fstat(&memfd).unwrap();
        let (own, proc) = (std::process::id(), Proc::default());
        let (held, looked_at) = proc.open_files(own, 1000).unwrap();
        assert!(looked_at > 3);
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let found = held.iter().find(|file| file.id == id).unwrap();
        assert_eq!((found.bytes, found.owner), (8192, Uid(stat.st_uid)));
        assert_eq!(TmpfsDevices::new().storage(id, &proc, own), Storage::Memory);
        assert_eq!(proc.open_files(own, 0).unwrap(), (Vec::new(), 0));
    }
}
