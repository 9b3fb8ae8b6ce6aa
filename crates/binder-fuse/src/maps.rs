//! Finds the address at which a client mapped its open, in `/proc/<pid>/maps`, and detects that the
//! address space of the mapping no longer exists.
//!
//! FUSE does not report `mmap`. Every open has its own inode, so the line with the right device
//! and inode number is the mapping of that open and of no other.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use headroom_linux::descriptors::KeptFd;
use headroom_linux::mountinfo::Device;
use serde::{Deserialize, Serialize};

/// The mapping, with addresses of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientMapping {
    pub(crate) address: u64,
    pub(crate) len: u64,
    /// The process has made it writable, which the protocol forbids.
    pub(crate) writable: bool,
}

/// Result of the search for a mapping.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// `None`: there is none, the process is gone, or its list is too long.
    pub(crate) mapping: Option<ClientMapping>,
    /// Present with a mapping.
    pub(crate) address_space: Option<AddressSpace>,
    /// Number of areas that were read; 0: the task has no address space.
    pub(crate) areas: u64,
}

/// Number of threads whose maps are read if the main thread has none.
const MAX_THREADS_READ: usize = 8;

/// Finds the mapping of `inode` on `device` in the maps of `pid`, among the first `most` areas.
pub(crate) fn find(pid: u32, device: Device, inode: u64, most: u64) -> Lookup {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let find = |task: &Path| find_of(task, device, inode, most);
    let lookup = find(&process);
    if lookup.areas > 0 {
        return lookup;
    }
    // A main thread that has ended has no address space, while the others still have it.
    let Ok(threads) = std::fs::read_dir(process.join("task")) else { return lookup };
    let lookups = threads.flatten().take(MAX_THREADS_READ).map(|thread| find(&thread.path()));
    lookups.into_iter().find(|lookup| lookup.areas > 0).unwrap_or_default()
}

/// `task`: the folder of a process or thread in `/proc`.
fn find_of(task: &Path, device: Device, inode: u64, most: u64) -> Lookup {
    // Opened before the list: should execve replace the address space meanwhile, that is detected.
    let address_space = AddressSpace::of(task);
    let Ok(file) = File::open(task.join("maps")) else { return Lookup::default() };
    let mut areas = 0;
    let maps = BufReader::with_capacity(16 * 1024, file);
    let mapping = find_in(maps, device, inode, || {
        areas += 1;
        areas <= most
    });
    let address_space = mapping.map(|_| address_space);
    Lookup { mapping, address_space, areas: areas.saturating_sub(1) }
}

/// Reads an area whenever `reads_next` returns true.
fn find_in(
    mut maps: impl BufRead,
    device: Device,
    inode: u64,
    mut reads_next: impl FnMut() -> bool,
) -> Option<ClientMapping> {
    let mut found: Option<ClientMapping> = None;
    let mut line = Vec::with_capacity(256);
    while reads_next() {
        line.clear();
        if maps.read_until(b'\n', &mut line).ok()? == 0 {
            return found;
        }
        let area = std::str::from_utf8(&line).ok().and_then(Area::parse);
        let area = area.filter(|area| area.device == device && area.inode == inode);
        match (&mut found, area) {
            (None, Some(area)) if area.offset == 0 => {
                let len = area.end - area.start;
                found = Some(ClientMapping { address: area.start, len, writable: area.writable });
            }
            // mprotect(2) or madvise(2) on a part splits the mapping into adjacent areas.
            (Some(mapping), Some(area))
                if area.start == mapping.address + mapping.len && area.offset == mapping.len =>
            {
                mapping.len += area.end - area.start;
                mapping.writable |= area.writable;
            }
            (Some(_), _) => return found,
            (None, _) => {}
        }
    }
    None
}

/// One line.
struct Area {
    start: u64,
    end: u64,
    writable: bool,
    offset: u64,
    device: Device,
    inode: u64,
}

impl Area {
    /// `7f00-7f10 r--p 00000000 00:27 4098   /path`
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = Device {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
        };
        let inode = fields.next()?.parse().ok()?;
        let writable = permissions.as_bytes().get(1) == Some(&b'w');
        Some(Self { start: hex(start)?, end: hex(end)?, writable, offset, device, inode })
    }
}

/// While a reader waits, the address space is checked once in this time: a waiting reader is most
/// likely a thread of it.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Whether a thread waits in a read of the open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    Waiting,
    NoneWaiting,
}

/// The address space that a receive buffer is mapped in. `execve(2)` and the exit of the opener end
/// it, while the open can remain. No event reports an `execve`.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    /// Refers to the address space without keeping it alive. `None`: it no longer exists, or cannot
    /// be checked.
    pagemap: Option<File>,
    exists: bool,
    checked: Option<Instant>,
}

/// An [`AddressSpace`] in a state.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SavedAddressSpace {
    pagemap: Option<KeptFd>,
    exists: bool,
}

impl SavedAddressSpace {
    pub(crate) fn descriptor(&self) -> Option<KeptFd> {
        self.pagemap
    }

    /// # Safety
    ///
    /// As for [`KeptFd::take`].
    pub(crate) unsafe fn restore(self) -> io::Result<AddressSpace> {
        // SAFETY: as guaranteed by the caller.
        let pagemap = self.pagemap.map(|fd| unsafe { fd.take() }).transpose()?;
        Ok(AddressSpace { pagemap: pagemap.map(File::from), exists: self.exists, checked: None })
    }
}

impl AddressSpace {
    pub(crate) fn save(&self) -> SavedAddressSpace {
        SavedAddressSpace { pagemap: self.pagemap.as_ref().map(KeptFd::of), exists: self.exists }
    }

    /// The current one of a process or thread, whose folder in `/proc` is `task`. Waits while it is
    /// in execve.
    fn of(task: &Path) -> Self {
        // A kernel without CONFIG_PROC_PAGE_MONITOR has no such file.
        let pagemap = File::open(task.join("pagemap")).ok();
        Self { pagemap, exists: true, checked: None }
    }

    pub(crate) fn exists(&mut self, readers: Readers) -> bool {
        let Some(pagemap) = &self.pagemap else { return self.exists };
        let now = Instant::now();
        let is_recent = self.checked.is_some_and(|checked| now - checked < CHECK_INTERVAL);
        if readers == Readers::Waiting && is_recent {
            return true;
        }
        self.checked = Some(now);
        // A read that is not aligned fails with EINVAL without touching the address space; that of
        // one that no longer exists returns nothing.
        if let Ok(0) = pagemap.read_at(&mut [0; 1], 0) {
            self.exists = false;
            self.pagemap = None;
        }
        self.exists
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const FUSE: Device = Device { major: 0, minor: 0x27 };

    const MAPS: &str = "\
55d0c0a00000-55d0c0a21000 r-xp 00001000 fe:00 4098                       /usr/bin/client
7f1200000000-7f12000fe000 r--p 00000000 00:27 4098                       /dev/binderfs/binder
7f1200200000-7f1200300000 r--p 00000000 00:27 4099                       \
/dev/binderfs/binder (deleted)
7f1200400000-7f1200401000 r--p 00000000 00:27 5000                       /dev/binderfs/binder
7f1200401000-7f1200402000 rw-p 00001000 00:27 5000                       /dev/binderfs/binder
7f1200500000-7f1200501000 r--p 00002000 00:27 5001                       /dev/binderfs/binder
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0                          [stack]
";

    fn find_sample(inode: u64) -> Option<ClientMapping> {
        find_in(MAPS.as_bytes(), FUSE, inode, || true)
    }

    #[test]
    fn device_and_inode_together_name_the_mapping() {
        let mapping = find_sample(4098).unwrap();
        assert_eq!(mapping.address, 0x7f12_0000_0000);
        assert_eq!(mapping.len, 0xfe000);
        assert!(!mapping.writable);
        assert!(find_sample(4099).is_some(), "an unlinked device goes on working");
        assert_eq!(find_sample(1), None);
    }

    #[test]
    fn a_split_mapping_is_one_and_writable_if_any_part_is() {
        let mapping = find_sample(5000).unwrap();
        assert_eq!((mapping.len, mapping.writable), (0x2000, true));
    }

    #[test]
    fn a_list_that_is_too_long_is_abandoned() {
        // The mapping is the second area, and ends at the third.
        let find = |most| {
            let mut areas = 0..most;
            find_in(MAPS.as_bytes(), FUSE, 4098, || areas.next().is_some())
        };
        assert!(find(2).is_none() && find(3).is_some());
    }

    #[test]
    fn a_mapping_that_does_not_start_at_the_start_of_the_file_is_none() {
        assert_eq!(find_sample(5001), None);
    }

    #[test]
    fn execve_and_exit_end_an_address_space() {
        let mut own = AddressSpace::of(Path::new("/proc/self"));
        assert!(own.pagemap.is_some() && own.exists(Readers::NoneWaiting));
        let mut child = Command::new("sh")
            .args(["-c", "echo begun; read line; exec sh -c 'echo replaced; read line'"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut input = child.stdin.take().unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let task = PathBuf::from(format!("/proc/{}", child.id()));
        let mut first = AddressSpace::of(&task);
        assert!(first.exists(Readers::NoneWaiting));
        std::io::Write::write_all(&mut input, b"go\n").unwrap();
        output.read_line(&mut line).unwrap();
        let mut second = AddressSpace::of(&task);
        std::thread::sleep(CHECK_INTERVAL);
        assert!(!first.exists(Readers::Waiting) && second.exists(Readers::NoneWaiting));
        drop(input);
        child.wait().unwrap();
        assert!(!second.exists(Readers::NoneWaiting));
    }
}
