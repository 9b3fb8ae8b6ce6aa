//! `/proc/<pid>/fd` and `map_files`: files in memory (memfds, files of a tmpfs or ramfs, secret
//! memory) that a process holds, open or mapped.
//!
//! This module does not wait for the server of a FUSE filesystem that the process sees mounted; it
//! waits for that of another, and for a process in `execve`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use headroom_linux::machine_memory::ReadError;
use headroom_linux::mountinfo::{self, Device};
use headroom_linux::pidfd;
use memory_ledger::Uid;
use rustix::fs::{AtFlags, CWD, FileType, MemfdFlags, StatxFlags};

use super::Proc;
use super::maps::NO_DEVICE;
use crate::sharers::{Part, compare};

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

/// `f_type` of a tmpfs, also that of memfds.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
/// `f_type` of a ramfs.
const RAMFS_MAGIC: rustix::fs::FsWord = 0x8584_58f6;

/// Where a filesystem keeps its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory: it is a tmpfs, in which an inode number identifies a file.
    Memory,
    /// In memory that the kernel counts as that of files and cannot take back: a ramfs, or secret
    /// memory.
    Unreclaimable,
    /// Not in memory.
    Other,
    /// It is a filesystem of another type, or a mount of another namespace.
    Unknown,
}

/// Lines of `maps` that cost as much as the check of a descriptor.
const LINES_OF_A_CHECK: usize = 8;

/// How a process holds a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// By a descriptor, and maybe by mappings.
    Open,
    /// By mappings only.
    Mapped,
}

/// A file in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Device and inode.
    pub id: FileId,
    /// The user that owns the file: its creator.
    pub owner: Uid,
    /// How the process holds it.
    pub hold: Hold,
    /// Memory and swap of the file, bytes; of secret memory without a descriptor the size, since
    /// its pages cannot be counted.
    pub bytes: u64,
    /// Where it is kept, if no mount that the process sees shows it: the mount is detached, or one
    /// of another namespace.
    pub unlisted: Option<Storage>,
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
        let device = device_of_memfds();
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
                Some("ramfs") => Storage::Unreclaimable,
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
    /// The devices of the mounts that a process sees.
    fn devices_of_mounts(&self, pid: u32) -> Vec<Device> {
        let path = self.root.join(pid.to_string()).join("mountinfo");
        let mounts = std::fs::read(path).unwrap_or_default();
        mountinfo::entries(&mounts).map(|mount| mount.device).collect()
    }

    /// The files that a process holds and that may be in memory: once per open descriptor of each
    /// table (a thread can have a table of its own, `CLONE_FILES`, and the main thread may have
    /// exited), and once if it only maps them. Checks at most `most` threads, descriptors and
    /// mapped files; also returns how many were checked.
    pub fn held_files(&self, pid: u32, most: usize) -> Result<(Vec<HeldFile>, usize), ReadError> {
        let folder = self.root.join(pid.to_string()).join("task");
        let threads = std::fs::read_dir(&folder).map_err(|e| ReadError::io(&folder, e))?;
        let tids = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok());
        // One thread of each table, sorted in the kernel's order.
        let mut tables: Vec<u32> = Vec::new();
        let (mut files, mut checked) = (Vec::new(), 0);
        let mut mounts = Mounts { proc: self, pid, devices: None };
        for tid in tids {
            if checked >= most {
                break;
            }
            checked += 1;
            let mut comparable = true;
            let found = tables.binary_search_by(|other| {
                let order = compare(Part::Files, *other, tid);
                comparable &= order.is_some();
                order.unwrap_or(Ordering::Less)
            });
            if let Err(place) = found
                && comparable
            {
                tables.insert(place, tid);
                let descriptors = std::fs::read_dir(folder.join(tid.to_string()).join("fd"));
                // A thread that has exited has none.
                for entry in descriptors.into_iter().flatten().flatten().take(most - checked) {
                    checked += 1;
                    let Some((file, _)) = file_behind(&entry.path(), Hold::Open) else { continue };
                    let name = entry.file_name();
                    let number = name.to_str().and_then(|number| number.parse().ok());
                    files.extend(mounts.place(file, &entry.path(), |file| {
                        number.and_then(|fd| secret_bytes_of(pid, tid, fd, file.id))
                    }));
                }
            }
        }
        let mut seen: BTreeSet<FileId> = files.iter().map(|file: &HeldFile| file.id).collect();
        let mapped = self.map_files(pid, most - checked);
        checked += mapped.checked;
        for (link, name) in mapped.links {
            let Some((file, size_bytes)) = file_behind(&link, Hold::Mapped) else { continue };
            if !seen.insert(file.id) {
                continue;
            }
            // Segments are no files that can be told from others. A file of another tmpfs can have
            // such a name too.
            if name == Name::OfSegment && Some(file.id.device) == device_of_memfds() {
                continue;
            }
            files.extend(mounts.place(file, &link, |_| Some(size_bytes)));
        }
        Ok((files, checked))
    }

    /// Links to the files that a process maps and that are not on a disk, the first of each series
    /// of mappings of one file. A process without an address space has none.
    fn map_files(&self, pid: u32, most: usize) -> MapFiles {
        let folder = self.root.join(pid.to_string()).join("map_files");
        let (mut found, mut lines, mut last) = (MapFiles::default(), 0, None);
        // What was found before an error counts.
        let _ = self.each_mapping(pid, |line, range| {
            lines += 1;
            found.checked = most.min(lines / LINES_OF_A_CHECK + found.links.len());
            if found.checked == most {
                return ControlFlow::Break(());
            }
            let file = range.map(|range| range.file);
            let place = line.split_ascii_whitespace().next().and_then(|it| it.split_once('-'));
            if let (Some(file), Some((start, end))) = (file, place)
                && Some(file) != last
            {
                // Its names have no leading zeros.
                let link = format!("{}-{}", without_zeros(start), without_zeros(end));
                let name = if file.device == NO_DEVICE { Name::OfSegment } else { Name::OfFile };
                found.links.push((folder.join(link), name));
            }
            last = file;
            ControlFlow::Continue(())
        });
        found
    }
}

/// Files that a process maps.
#[derive(Default)]
struct MapFiles {
    links: Vec<(PathBuf, Name)>,
    /// What reading them cost, in checks of a descriptor.
    checked: usize,
}

/// What the name of a mapped file looks like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    OfSegment,
    OfFile,
}

/// The mounts that a process sees, read when they are needed.
struct Mounts<'a> {
    proc: &'a Proc,
    pid: u32,
    devices: Option<Vec<Device>>,
}

impl Mounts<'_> {
    /// The file with its place, if it has memory. `secret_bytes`: its memory if it is secret.
    fn place(
        &mut self,
        mut file: HeldFile,
        link: &Path,
        secret_bytes: impl FnOnce(&HeldFile) -> Option<u64>,
    ) -> Option<HeldFile> {
        let Self { proc, pid, devices } = self;
        let devices = devices.get_or_insert_with(|| proc.devices_of_mounts(*pid));
        if !devices.iter().any(|device| device.is(file.id.device)) {
            file.unlisted = Some(match file_system(link) {
                Some(TMPFS_MAGIC) => Storage::Memory,
                Some(RAMFS_MAGIC) => Storage::Unreclaimable,
                Some(SECRET_MEMORY_MAGIC) => {
                    file.bytes = secret_bytes(&file).unwrap_or(0);
                    Storage::Unreclaimable
                }
                _ => Storage::Unknown,
            });
        }
        (file.bytes > 0).then_some(file)
    }
}

/// The device of memfds, SysV segments and anonymous shared memory, which stays as long as the
/// kernel runs.
fn device_of_memfds() -> Option<u64> {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    if DEVICE.get().is_none() {
        let memfd = rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC);
        let stat = memfd.and_then(rustix::fs::fstat).ok()?;
        return Some(*DEVICE.get_or_init(|| stat.st_dev));
    }
    DEVICE.get().copied()
}

fn without_zeros(address: &str) -> &str {
    address.trim_start_matches('0')
}

/// The type of a file's filesystem. Waits for its server if it has one.
fn file_system(link: &Path) -> Option<rustix::fs::FsWord> {
    rustix::fs::statfs(link).ok().map(|stat| stat.f_type)
}

/// The file behind a descriptor or a mapping and its size, bytes, if it may be in memory. Secret
/// memory has a size and no blocks.
fn file_behind(link: &Path, hold: Hold) -> Option<(HeldFile, u64)> {
    let wanted = StatxFlags::TYPE | StatxFlags::UID | StatxFlags::INO;
    let wanted = wanted | StatxFlags::SIZE | StatxFlags::BLOCKS;
    // Attributes that the file server has reported before are sufficient.
    let flags = AtFlags::STATX_DONT_SYNC;
    // Fails if the descriptor was closed, or the mapping removed, since it was listed.
    let stat = rustix::fs::statx(CWD, link, flags, wanted).ok()?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    let id = FileId { device, inode: stat.stx_ino };
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    let bytes = stat.stx_blocks * 512;
    let may_be_in_memory = is_file && stat.stx_size.max(bytes) > 0 && !id.is_on_disk();
    let owner = Uid(stat.stx_uid);
    let file = HeldFile { id, owner, hold, bytes, unlisted: None };
    may_be_in_memory.then_some((file, stat.stx_size))
}

/// `f_type` of secret memory (`linux/magic.h`).
const SECRET_MEMORY_MAGIC: rustix::fs::FsWord = 0x5345_434d;

/// `cachestat(2)` (Linux 6.5), the same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`: all of the file.
#[repr(C)]
#[derive(Default)]
struct CacheStatRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat`, pages.
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    dirty: u64,
    written_back: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The secret memory (`memfd_secret`) of the file `id` behind descriptor `fd` of a thread, bytes,
/// mapped or not: no statistic of the process and no attribute of the file shows it. `None`:
/// the thread has another file there by now, or the kernel does not tell (Linux 6.5; for a table
/// of descriptors that the main thread does not have, 6.9).
///
/// Takes the file for a moment: the close may wait for the file's server if the thread has replaced
/// it.
fn secret_bytes_of(pid: u32, tid: u32, fd: i32, id: FileId) -> Option<u64> {
    let task = if tid == pid { pidfd::open(pid) } else { pidfd::open_thread(tid) }.ok()?;
    // SAFETY: takes numbers; the result is a new descriptor without another owner, or -1.
    let file = unsafe {
        match libc::syscall(libc::SYS_pidfd_getfd, task.as_raw_fd(), fd, 0) {
            -1 => return None,
            fd => OwnedFd::from_raw_fd(fd as i32),
        }
    };
    let stat = rustix::fs::fstat(&file).ok()?;
    if (FileId { device: stat.st_dev, inode: stat.st_ino }) != id {
        return None;
    }
    let (range, mut found) = (CacheStatRange::default(), CacheStat::default());
    // SAFETY: both structures are as the kernel defines them, and live through the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut found, 0) };
    (result == 0).then(|| found.cached * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{Mode, OFlags};
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };

    use super::*;

    #[test]
    fn a_file_of_a_tmpfs_that_no_mount_shows_is_in_memory() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let flags = FsOpenFlags::FSOPEN_CLOEXEC;
        let context = fsopen("tmpfs", flags).unwrap();
        fsconfig_create(context.as_fd()).unwrap();
        let flags = FsMountFlags::FSMOUNT_CLOEXEC;
        let mount = fsmount(context.as_fd(), flags, MountAttrFlags::empty()).unwrap();
        let create = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&mount, "file", create, Mode::RUSR).unwrap();
        assert_eq!(rustix::io::write(&file, &[1; 8192]), Ok(8192));
        let (own, stat) = (std::process::id(), rustix::fs::fstat(&file).unwrap());
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let (files, _) = Proc::default().held_files(own, 4096).unwrap();
        let found = files.iter().find(|found| found.id == id).unwrap();
        assert_eq!((found.unlisted, found.bytes), (Some(Storage::Memory), 8192));
    }

    #[test]
    fn a_memfd_is_a_file_of_memory_and_a_pipe_is_none() {
        let (_read, _write) = std::io::pipe().unwrap();
        let memfd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&memfd, &[1; 8192]), Ok(8192));
        let stat = rustix::fs::fstat(&memfd).unwrap();
        let (own, proc) = (std::process::id(), Proc::default());
        let (held, looked_at) = proc.held_files(own, 1000).unwrap();
        assert!(looked_at > 3);
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let found = held.iter().find(|file| file.id == id).unwrap();
        assert_eq!((found.bytes, found.owner), (8192, Uid(stat.st_uid)));
        assert_eq!(TmpfsDevices::new().storage(id, &proc, own), Storage::Memory);
        assert_eq!(proc.held_files(own, 0).unwrap(), (Vec::new(), 0));
    }

    #[test]
    fn secret_memory_has_the_size_of_its_pages() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        // SAFETY: takes flags; the result is a new descriptor without another owner, or -1.
        let secret = unsafe {
            match libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) {
                // The kernel is built without it.
                -1 => return,
                fd => std::os::fd::OwnedFd::from_raw_fd(fd as i32),
            }
        };
        let page = rustix::param::page_size();
        rustix::fs::ftruncate(&secret, 64 * page as u64).unwrap();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, written within its bounds, that nothing refers to afterwards.
        unsafe {
            let start = mmap(std::ptr::null_mut(), 8 * page, protection, flags, &secret, 0);
            let start = start.unwrap().cast::<u8>();
            start.write_bytes(1, 8 * page);
            munmap(start.cast(), 8 * page).unwrap();
        }
        let (own, stat) = (std::process::id(), rustix::fs::fstat(&secret).unwrap());
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let (files, _) = Proc::default().held_files(own, 4096).unwrap();
        let found = files.iter().find(|found| found.id == id).unwrap();
        let storage = Some(Storage::Unreclaimable);
        assert_eq!((found.unlisted, found.bytes), (storage, 8 * page as u64));
        let other = FileId { inode: id.inode + 1, ..id };
        let fd = std::os::fd::AsRawFd::as_raw_fd(&secret);
        assert_eq!(secret_bytes_of(own, own, fd, other), None);
        // SAFETY: a new mapping, which nothing accesses.
        let start = unsafe { mmap(std::ptr::null_mut(), page, protection, flags, &secret, 0) };
        drop(secret);
        let (files, _) = Proc::default().held_files(own, 4096).unwrap();
        let found = files.iter().find(|found| found.id == id).unwrap();
        assert_eq!((found.hold, found.unlisted), (Hold::Mapped, storage));
        assert_eq!(found.bytes, 64 * page as u64, "its size: its pages cannot be counted");
        // SAFETY: nothing refers to the mapping.
        unsafe { munmap(start.unwrap(), page) }.unwrap();
    }

    #[test]
    fn a_file_that_only_a_thread_with_a_table_of_its_own_holds_is_found() {
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: takes a number; other threads do not use this one's descriptors.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let memfd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
            assert_eq!(rustix::io::write(&memfd, &[1; 8192]), Ok(8192));
            let stat = rustix::fs::fstat(&memfd).unwrap();
            send.send(FileId { device: stat.st_dev, inode: stat.st_ino }).unwrap();
            let _ = ended.recv();
        });
        let id = receive.recv().unwrap();
        let (held, _) = Proc::default().held_files(std::process::id(), 100_000).unwrap();
        assert_eq!(held.iter().filter(|file| file.id == id).count(), 1);
        drop(end);
        thread.join().unwrap();
    }
}
