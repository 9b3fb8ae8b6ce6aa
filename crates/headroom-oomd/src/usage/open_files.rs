//! Memory files that processes hold, for a system that is short of memory: they are in no
//! resident set, and the end of the processes frees them.

use std::collections::BTreeMap;

use memory_ledger::{ProcessId, Uid};
use memory_watch::process::{FileId, HeldFile, Hold, Storage};
use owners::Owner;

use super::measure::MOST_DESCRIPTORS;

/// A process whose open files are searched.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// The process.
    pub id: ProcessId,
    /// Its real uid: only files of this user count.
    pub uid: Uid,
    /// Its owner, whose processes share one budget of descriptors.
    pub owner: Owner,
    /// Its resident shared memory, bytes.
    pub shmem_bytes: u64,
}

/// A memory file and the processes of its owner that hold it.
#[derive(Default)]
struct OpenFile {
    bytes: u64,
    holders: Vec<ProcessId>,
}

/// The memory of the files that each process holds, bytes, without what its resident set may have
/// of those that it only maps. A file of several processes is
/// divided among them: the end of one frees nothing. `read` returns the memory files of a process,
/// and takes the number of descriptors that it checks off the budget.
pub(super) fn held_bytes(
    holders: &[Holder],
    mut read: impl FnMut(&Holder, &mut usize) -> Vec<(HeldFile, Storage)>,
) -> BTreeMap<ProcessId, u64> {
    let mut left: BTreeMap<Owner, usize> = BTreeMap::new();
    let mut files: BTreeMap<FileId, OpenFile> = BTreeMap::new();
    for holder in holders {
        let Holder { id, uid, owner, shmem_bytes } = holder;
        let mut resident_bytes = *shmem_bytes;
        let left = left.entry(*owner).or_insert(MOST_DESCRIPTORS);
        let read = read(holder, left).into_iter();
        for (mut file, storage) in read.filter(|(file, _)| file.owner == *uid) {
            if file.hold == Hold::Mapped && storage == Storage::Memory {
                let shown_bytes = file.bytes.min(resident_bytes);
                resident_bytes -= shown_bytes;
                file.bytes -= shown_bytes;
                if file.bytes == 0 {
                    continue;
                }
            }
            let open = files.entry(file.id).or_default();
            open.bytes = open.bytes.max(file.bytes);
            // Once, however many descriptors of a file the process has.
            if open.holders.last() != Some(id) {
                open.holders.push(*id);
            }
        }
    }
    let mut held = BTreeMap::new();
    for OpenFile { bytes, holders } in files.into_values() {
        let share = bytes / holders.len() as u64;
        for id in holders {
            *held.entry(id).or_default() += share;
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::super::measure::Measurer;
    use super::*;

    const OWNER: Owner = Owner::User(Uid(1000));

    #[test]
    fn what_the_resident_set_may_have_of_mapped_files_does_not_count() {
        let uid = Uid(1000);
        let file = |inode, bytes, hold| HeldFile {
            id: FileId { device: 1, inode },
            owner: uid,
            hold,
            bytes,
            unlisted: None,
        };
        let files = [
            (file(1, 100, Hold::Mapped), Storage::Memory),
            (file(2, 50, Hold::Mapped), Storage::Memory),
            (file(3, 7, Hold::Open), Storage::Memory),
            (file(4, 1000, Hold::Mapped), Storage::Unreclaimable),
        ];
        let id = ProcessId { pid: 1, start_time: 1 };
        let held = |shmem_bytes| {
            let holder = Holder { id, uid, owner: OWNER, shmem_bytes };
            held_bytes(&[holder], |_, _| files.to_vec())[&id]
        };
        assert_eq!((held(0), held(120), held(150)), (1157, 1037, 1007));
        assert_eq!(held(1 << 20), 1007);
    }

    #[test]
    fn a_file_is_divided_among_the_processes_of_its_owner() {
        let memfd = memfd_create("test", MemfdFlags::empty()).unwrap();
        rustix::io::write(&memfd, &[1; 64 << 10]).unwrap();
        let (own, uid) = (std::process::id(), Uid(rustix::process::getuid().as_raw()));
        let holder = |pid, uid| {
            let id = ProcessId { pid, start_time: 1 };
            Holder { id, uid, owner: OWNER, shmem_bytes: 0 }
        };
        let held = |holders: &[Holder]| Measurer::new().search_files(holders);
        let before = held(&[holder(own, uid)]).into_values().sum::<u64>();
        assert!(before >= 64 << 10, "{before}");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let shared = held(&[holder(own, uid), holder(child.id(), uid)]);
        let of_other_user = held(&[holder(child.id(), Uid(uid.0 + 1))]);
        child.kill().unwrap();
        child.wait().unwrap();
        let of_child = shared.iter().find(|(id, _)| id.pid == child.id()).map(|(_, bytes)| *bytes);
        assert!(of_child.is_some_and(|bytes| bytes >= 32 << 10), "{shared:?}");
        assert!(shared.values().sum::<u64>() >= 64 << 10, "{shared:?}");
        assert!(of_other_user.is_empty(), "{of_other_user:?}");
    }
}
