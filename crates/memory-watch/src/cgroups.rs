//! Control groups of version 2: list, memory usage and member processes.
//!
//! The hierarchy's root is a parameter, so that a test can use plain files. Paths are from that
//! root, and begin with `/`; that of the root itself is empty.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headroom_linux::machine_memory::ReadError;
use headroom_linux::mountinfo;

/// Maximum number of cgroups below one that are searched for processes.
const MOST_FOLDERS: usize = 4096;
/// Maximum number of direct children that are listed: a user that may create some may create many.
const MOST_LISTED: usize = 16_384;

/// Usage of a cgroup and all its descendants, by its memory controller, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Anonymous memory.
    pub anon: u64,
    /// Shared memory and files of tmpfs, mapped or not.
    pub shmem: u64,
    /// Page cache, shared memory and swap that is in memory as well.
    pub file: u64,
    /// Pages on the lists of file pages: page cache, and lazily freed anonymous memory.
    pub listed_file: u64,
    /// Mapped pages of files and of shared memory.
    pub file_mapped: u64,
    /// Swapped-out memory.
    pub swap: u64,
    /// Part of `swap`: pages that are in memory as well.
    pub swap_cached: u64,
    /// Kernel memory: page tables, stacks, slab. `None` before Linux 5.18.
    pub kernel: Option<u64>,
    /// Part of `kernel`: slab that can be reclaimed.
    pub slab_reclaimable: u64,
}

impl CgroupMemory {
    /// Maximum of the part of `anon` that is lazily freed (`MADV_FREE`), bytes. A page that was
    /// written to since remains on its list until the kernel reclaims memory, and is included.
    pub fn lazily_freed_bytes(&self) -> u64 {
        let cache_bytes = self.file.saturating_sub(self.shmem + self.swap_cached);
        self.listed_file.saturating_sub(cache_bytes).min(self.anon)
    }
}

/// The member processes of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    /// Pids, ascending.
    Pids(Vec<u32>),
    /// Too many cgroups below it to search all; `/proc/<pid>/cgroup` has the cgroup of each
    /// process.
    TooManyFolders,
}

/// The hierarchy.
#[derive(Clone, Debug)]
pub struct Cgroups {
    root: PathBuf,
}

impl Cgroups {
    /// The hierarchy that is mounted where the process of `proc` can see it; `None`: there is none.
    pub fn find(proc: &Path) -> Result<Option<Self>, ReadError> {
        let path = proc.join("self/mountinfo");
        let text = fs::read(&path).map_err(|e| ReadError::io(&path, e))?;
        let mounts = mountinfo::entries(&text).filter(|mount| mount.fs_type == "cgroup2");
        // Prefer a mount of the whole hierarchy to one of a part of it.
        let best = mounts.min_by_key(|mount| mount.root != Path::new("/"));
        Ok(best.map(|mount| Self::at(mount.mount_point)))
    }

    /// The hierarchy with this folder as its root.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The root folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The hierarchy has the memory controller, though perhaps not in every cgroup.
    pub fn has_memory(&self) -> bool {
        let controllers = fs::read_to_string(self.root.join("cgroup.controllers"));
        controllers.is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
    }

    fn folder(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A cgroup with this path exists.
    pub fn exists(&self, path: &str) -> bool {
        self.folder(path).is_dir()
    }

    /// Names of the direct children, in any order, 16,384 at most; names that are not UTF-8 are
    /// left out. The cgroup may have been removed.
    pub fn children(&self, path: &str) -> Result<Vec<String>, ReadError> {
        let folder = self.folder(path);
        let names = subfolders(&folder).map_err(|e| ReadError::io(&folder, e))?;
        Ok(names.into_iter().filter_map(|name| name.into_os_string().into_string().ok()).collect())
    }

    /// Memory usage of a cgroup; `None`: the memory controller is off for it.
    pub fn memory(&self, path: &str) -> Result<Option<CgroupMemory>, ReadError> {
        let folder = self.folder(path);
        let stat = folder.join("memory.stat");
        let text = match fs::read_to_string(&stat) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => {
                return Ok(None);
            }
            Err(error) => return Err(ReadError::io(&stat, error)),
        };
        let mut memory = CgroupMemory::default();
        let mut anon_is_there = false;
        for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            let place = match key {
                "anon" => {
                    anon_is_there = true;
                    &mut memory.anon
                }
                "shmem" => &mut memory.shmem,
                "file" => &mut memory.file,
                "active_file" | "inactive_file" => {
                    let bytes: u64 = value.parse().map_err(|_| ReadError::parse(&stat, key))?;
                    memory.listed_file += bytes;
                    continue;
                }
                "file_mapped" => &mut memory.file_mapped,
                "swapcached" => &mut memory.swap_cached,
                "kernel" => memory.kernel.insert(0),
                "slab_reclaimable" => &mut memory.slab_reclaimable,
                _ => continue,
            };
            *place = value.parse().map_err(|_| ReadError::parse(&stat, key))?;
        }
        if !anon_is_there {
            return Err(ReadError::parse(&stat, "anon"));
        }
        // Without swap accounting this file does not exist.
        let swap = fs::read_to_string(folder.join("memory.swap.current")).unwrap_or_default();
        memory.swap = swap.trim().parse().unwrap_or(0);
        Ok(Some(memory))
    }

    /// The processes of a cgroup and of all its descendants. Processes that exit meanwhile are left
    /// out.
    pub fn members(&self, path: &str) -> Result<Members, ReadError> {
        self.members_within(path, MOST_FOLDERS)
    }

    /// Like [`members`](Self::members), with a maximum number of cgroups below it.
    pub fn members_within(&self, path: &str, folders_most: usize) -> Result<Members, ReadError> {
        let top = self.folder(path);
        let mut pids = Vec::new();
        read_pids(&top, &mut pids).map_err(|e| ReadError::io(&top.join("cgroup.procs"), e))?;
        let mut folders = vec![top];
        let mut looked_into = 0;
        while let Some(folder) = folders.pop() {
            let Ok(names) = subfolders(&folder) else { continue };
            looked_into += names.len();
            if looked_into > folders_most {
                return Ok(Members::TooManyFolders);
            }
            for name in names {
                let below = folder.join(name);
                match read_pids(&below, &mut pids) {
                    // Processes can hide behind a path that is too long.
                    Err(e) if e.kind() == io::ErrorKind::InvalidFilename => {
                        return Ok(Members::TooManyFolders);
                    }
                    _ => folders.push(below),
                }
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(Members::Pids(pids))
    }
}

fn subfolders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.take(MOST_LISTED).map(|entry| entry.file_name().into()).collect())
}

fn read_pids(folder: &Path, pids: &mut Vec<u32>) -> io::Result<()> {
    let text = match fs::read_to_string(folder.join("cgroup.procs")) {
        Ok(text) => text,
        // A threaded cgroup: its processes are members of one of its ancestors.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error),
    };
    // 0: a process of another pid namespace.
    pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()).filter(|pid| *pid > 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with these files.
    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let cgroups = Cgroups::at(dir.path());
        (dir, cgroups)
    }

    #[test]
    fn the_hierarchy_is_found_wherever_it_is_mounted() {
        let found = |mountinfo: &str| {
            let (dir, _) = tree(&[("self/mountinfo", mountinfo)]);
            Cgroups::find(dir.path()).unwrap().map(|it| it.root().to_owned())
        };
        let v1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(found(v1), None);
        let hybrid = "41 31 0:38 / /sys/fs/cgroup/unified rw shared:7 - cgroup2 cgroup2 rw\n";
        let expected = Some(PathBuf::from("/sys/fs/cgroup/unified"));
        assert_eq!(found(&format!("{v1}{hybrid}")), expected);
        let part = "40 31 0:38 /a /mnt rw - cgroup2 cgroup2 rw\n";
        assert_eq!(found(&format!("{part}{hybrid}")), expected);
        assert_eq!(found(part), Some(PathBuf::from("/mnt")));
        let odd = "41 31 0:38 / /a\\040b\\x rw,x - cgroup2 none rw\n";
        assert_eq!(found(odd), Some(PathBuf::from("/a b\\x")));
        assert!(Cgroups::find(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn memory_is_read_from_the_controller_if_present() {
        let stat = "anon 4096\nfile 90\nfile_mapped 20\nshmem 30\n\
                    inactive_file 70\nactive_file 7\nsome_new_thing 7\n";
        let (_dir, cgroups) = tree(&[
            ("cgroup.controllers", "cpu memory\n"),
            ("a/memory.stat", stat),
            ("a/memory.swap.current", "8192\n"),
            ("a/b/cgroup.procs", ""),
            ("bad/memory.stat", "anon lots\n"),
            ("worse/memory.stat", "file 1\n"),
        ]);
        let expected = CgroupMemory {
            anon: 4096,
            shmem: 30,
            file: 90,
            listed_file: 77,
            file_mapped: 20,
            swap: 8192,
            ..CgroupMemory::default()
        };
        assert_eq!(cgroups.memory("/a").unwrap(), Some(expected));
        assert_eq!(expected.lazily_freed_bytes(), 17, "more than the cache of 60");
        assert_eq!(cgroups.memory("/a/b").unwrap(), None);
        assert!(cgroups.memory("/gone").unwrap_err().is_gone());
        for (path, key) in [("/bad", "anon"), ("/worse", "anon")] {
            let error = cgroups.memory(path).unwrap_err().to_string();
            assert!(error.contains("memory.stat") && error.ends_with(key), "{error}");
        }
        assert!(cgroups.has_memory() && !Cgroups::at("/nonexistent").has_memory());
    }

    #[test]
    fn members_include_descendants_and_children_are_folders_only() {
        let (_dir, cgroups) = tree(&[
            ("a/cgroup.procs", "30\n0\n"),
            ("a/b/cgroup.procs", "10\n"),
            ("a/b/c/cgroup.procs", "20\n"),
            ("a/empty/cgroup.procs", ""),
            ("other/cgroup.procs", "40\n"),
        ]);
        assert_eq!(cgroups.members("/a").unwrap(), Members::Pids(vec![10, 20, 30]));
        assert!(cgroups.members("/gone").unwrap_err().is_gone());
        let mut children = cgroups.children("/a").unwrap();
        children.sort();
        assert_eq!(children, ["b", "empty"]);
        assert_eq!(cgroups.children("").unwrap().len(), 2);
        assert!(cgroups.exists("/a/b") && !cgroups.exists("/a/cgroup.procs"));
    }

    #[test]
    fn a_cgroup_with_too_many_descendants_is_an_error() {
        let (dir, cgroups) = tree(&[("a/cgroup.procs", "1\n")]);
        for n in 0..=MOST_FOLDERS {
            fs::create_dir(dir.path().join(format!("a/{n}"))).unwrap();
        }
        assert_eq!(cgroups.members("/a").unwrap(), Members::TooManyFolders);
    }

    #[test]
    fn the_machines_own_hierarchy_is_read() {
        let Some(cgroups) = Cgroups::find(Path::new("/proc")).unwrap() else {
            test_support::skip("no hierarchy of version 2 is mounted");
            return;
        };
        let Members::Pids(pids) = cgroups.members("").unwrap() else { return };
        assert!(pids.contains(&std::process::id()), "every process is below the root");
    }
}
