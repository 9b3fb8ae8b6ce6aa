//! `/proc/<pid>/fd`: the files of memory (memfds, files of a tmpfs) that a process holds open.
//!
//! Nothing here waits for a file server: a user can open files of a FUSE filesystem that never
//! answers.

use std::collections::BTreeMap;
use std::path::Path;

use headroom_linux::mountinfo;
use memory_ledger::Uid;
use rustix::fs::{AtFlags, CWD, FileType, MemfdFlags, StatxFlags};

use super::Proc;
use machine_memory::ReadError;

/// A file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// The filesystem's device number.
    pub device: u64,
    /// The inode's number.
    pub inode: u64,
}

/// A file of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Which.
    pub id: FileId,
    /// Who owns it: whoever created it.
    pub owner: Uid,
    /// Memory and swap that it has, bytes.
    pub bytes: u64,
}

/// Which filesystems are kept in memory.
#[derive(Debug, Default)]
pub struct TmpfsDevices {
    /// By device number.
    known: BTreeMap<u64, bool>,
}

impl TmpfsDevices {
    /// Knows the mount of memfds, which no list of mounts shows.
    pub fn new() -> Self {
        let memfd = rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC);
        let device = memfd.and_then(rustix::fs::fstat).map(|stat| stat.st_dev);
        Self { known: device.into_iter().map(|device| (device, true)).collect() }
    }

    /// A mount that is unknown is looked for where this process sees it.
    fn is_tmpfs(&mut self, device: u64, process: &Path) -> bool {
        // All others are disks.
        if rustix::fs::major(device) != 0 {
            return false;
        }
        *self.known.entry(device).or_insert_with(|| {
            let mounts = std::fs::read(process.join("mountinfo")).unwrap_or_default();
            mountinfo::entries(&mounts)
                .any(|mount| mount.fs_type == "tmpfs" && mount.device.is(device))
        })
    }

    /// Numbers are given again to other filesystems.
    pub fn forget_mounts(&mut self) {
        *self = Self::new();
    }
}

impl Proc {
    /// The files of memory that a process holds open, each as often as it has it open, into `out`.
    /// At most `most` of its descriptors are looked at; returns how many were.
    pub fn held_files(
        &self,
        pid: u32,
        most: usize,
        devices: &mut TmpfsDevices,
        out: &mut Vec<HeldFile>,
    ) -> Result<usize, ReadError> {
        let process = self.root.join(pid.to_string());
        let folder = process.join("fd");
        let entries = std::fs::read_dir(&folder).map_err(|e| ReadError::io(&folder, e))?;
        let mut looked_at = 0;
        for entry in entries.flatten().take(most) {
            looked_at += 1;
            let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::INO | StatxFlags::BLOCKS;
            // What a file server has said before is enough.
            let flags = AtFlags::STATX_DONT_SYNC;
            // Closed since it was listed.
            let Ok(stat) = rustix::fs::statx(CWD, entry.path(), flags, wanted) else { continue };
            let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
            let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
            if is_file && stat.stx_blocks > 0 && devices.is_tmpfs(device, &process) {
                out.push(HeldFile {
                    id: FileId { device, inode: stat.stx_ino },
                    owner: Uid(stat.stx_uid),
                    bytes: stat.stx_blocks * 512,
                });
            }
        }
        Ok(looked_at)
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
        let (own, mut devices) = (std::process::id(), TmpfsDevices::new());
        let mut held = Vec::new();
        let looked_at = Proc::default().held_files(own, 1000, &mut devices, &mut held).unwrap();
        assert!(looked_at > 3);
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let found = held.iter().find(|file| file.id == id).unwrap();
        assert_eq!((found.bytes, found.owner), (8192, Uid(stat.st_uid)));
        let none = Proc::default().held_files(own, 0, &mut devices, &mut held).unwrap();
        assert_eq!(none, 0);
    }
}
