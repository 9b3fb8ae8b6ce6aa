//! Finds the address at which a client mapped its open, in `/proc/<pid>/maps`.
//!
//! FUSE does not report `mmap`. Every open has its own inode, so the line with the right device
//! and inode number is the mapping of that open and of no other.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use headroom_linux::mountinfo::Device;

use crate::address_space::AddressSpace;

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
    let Ok(file) = std::fs::File::open(task.join("maps")) else { return Lookup::default() };
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

#[cfg(test)]
mod tests {
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
}
