//! Speeds up the exit of a killed process: nice -20 for its threads, and removal from a frozen
//! control group.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use headroom_linux::mountinfo::{self, MountEntry};
use headroom_linux::sched::SchedAttr;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::victim::Victim;

const HIGHEST: i32 = -20;
/// Room for the names of some twenty threads.
const LISTED_BYTES: usize = 512;

/// Result of boosting a victim that had not exited after `process_mrelease`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boost {
    /// Number of threads with a raised priority.
    pub threads: usize,
    /// The victim was moved out of a frozen control group.
    pub thawed: bool,
    /// The last error, if any.
    pub refused: Option<Errno>,
}

impl Boost {
    /// Raises and thaws a process that was sent SIGKILL, so there is nothing to undo.
    pub fn new(victim: &Victim) -> Self {
        let mut boost = Self::default();
        if let Some(tasks) = open_tasks(victim) {
            let mut buffer = [MaybeUninit::uninit(); LISTED_BYTES];
            let mut entries = RawDir::new(tasks.as_fd(), &mut buffer);
            while let Some(Ok(entry)) = entries.next() {
                let tid = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
                match tid.and_then(Pid::from_raw).map(|tid| raise(&tasks, tid)) {
                    Some(Ok(Raise::Done)) => boost.threads += 1,
                    Some(Err(errno)) => boost.refused = Some(errno),
                    Some(Ok(Raise::NotNeeded)) | None => {}
                }
            }
        }
        match leave_frozen(victim) {
            Ok(thawed) => boost.thawed = thawed == Thawed::Yes,
            Err(errno) => boost.refused = Some(errno),
        }
        boost
    }
}

/// The `task` folder of the victim; `None` once it has exited.
fn open_tasks(victim: &Victim) -> Option<OwnedFd> {
    let path = format!("/proc/{}/task", victim.pid());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    // The pid was still the victim's after the folder was opened, so the folder is the victim's.
    (!victim.has_exited() && victim.has_its_pid()).then_some(tasks)
}

enum Raise {
    Done,
    /// The thread has exited, or is real-time.
    NotNeeded,
}

/// The system calls identify threads by tid only, and a thread may exit between two of them: if it
/// has exited afterwards, its previous attributes are applied to the thread that may have got its
/// tid.
fn raise(tasks: &OwnedFd, tid: Pid) -> Result<Raise, Errno> {
    let Ok(before) = SchedAttr::of(Some(tid)) else { return Ok(Raise::NotNeeded) };
    let ordinary = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE];
    if !ordinary.contains(&(before.policy as i32)) || !has(tasks, tid) {
        return Ok(Raise::NotNeeded);
    }
    let done = SchedAttr::other(HIGHEST).apply(Some(tid));
    if !has(tasks, tid) {
        // That thread may have exited as well.
        let _ = before.apply(Some(tid));
        return Ok(Raise::NotNeeded);
    }
    done.map(|()| Raise::Done)
}

fn has(tasks: &OwnedFd, tid: Pid) -> bool {
    rustix::fs::statat(tasks, tid.to_string().as_str(), AtFlags::empty()).is_ok()
}

/// Whether a process was moved out of a frozen control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thawed {
    /// It was moved out.
    Yes,
    /// No freezer holds it.
    No,
}

/// Moves a process that a version 1 freezer holds, where no signal reaches it, to the nearest
/// ancestor that is not frozen: other processes in its group stay frozen. In version 2 SIGKILL ends
/// a frozen process.
fn leave_frozen(victim: &Victim) -> Result<Thawed, Errno> {
    let pid = victim.pid();
    let own = freezer_path(pid).filter(|own| own != "/");
    let Some(own) = own else { return Ok(Thawed::No) };
    let Some(mount) = freezer_mount(Path::new("/proc/self/mountinfo")) else {
        return Ok(Thawed::No);
    };
    let group = mount.join(own.trim_start_matches('/'));
    // A frozen process cannot exit, so its pid is not reused until it is moved.
    if !is_frozen(&group) || !victim.has_its_pid() {
        return Ok(Thawed::No);
    }
    let Some(awake) = awake_ancestor(&group, &mount) else { return Ok(Thawed::No) };
    let moved = join(awake, pid).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO));
    moved.map(|()| Thawed::Yes)
}

fn join(group: &Path, pid: u32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// The nearest ancestor that is not frozen. The root has no state and is never frozen.
fn awake_ancestor<'a>(group: &'a Path, mount: &Path) -> Option<&'a Path> {
    let above = group.ancestors().skip(1).take_while(|above| above.starts_with(mount));
    above.into_iter().find(|above| !is_frozen(above))
}

fn is_frozen(group: &Path) -> bool {
    let state = fs::read_to_string(group.join("freezer.state"));
    state.is_ok_and(|state| matches!(state.trim_end(), "FROZEN" | "FREEZING"))
}

/// The process's group in the version 1 freezer.
fn freezer_path(pid: u32) -> Option<String> {
    parse_own(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Parses lines like `6:freezer:/group`.
fn parse_own(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        controllers.split(',').any(|name| name == "freezer").then(|| path.to_owned())
    })
}

fn freezer_mount(mountinfo: &Path) -> Option<PathBuf> {
    parse_mount(&fs::read(mountinfo).ok()?)
}

/// The mount point of the whole freezer hierarchy.
fn parse_mount(mountinfo: &[u8]) -> Option<PathBuf> {
    let is_freezer = |mount: &MountEntry| {
        mount.fs_type == "cgroup"
            && mount.has_super_option("freezer")
            && mount.root == Path::new("/")
    };
    mountinfo::entries(mountinfo).find(is_freezer).map(|mount| mount.mount_point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_s_group_of_the_freezer_is_found_among_others() {
        let text = "9:name=systemd:/\n6:devices,freezer:/a:b\n1:cpu:/x\n0::/y\n";
        assert_eq!(parse_own(text).as_deref(), Some("/a:b"));
        assert_eq!(parse_own("0::/\n"), None);
        assert_eq!(parse_own("nonsense"), None);
    }

    #[test]
    fn the_freezer_s_mount_is_found_and_a_part_of_it_is_not_enough() {
        let whole = b"30 2 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     36 23 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n";
        assert_eq!(parse_mount(whole), Some("/sys/fs/cgroup/freezer".into()));
        let part = b"36 23 0:30 /docker/1 /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        assert_eq!(parse_mount(part), None);
        assert_eq!(parse_mount(b"36 23 0:30 / / rw - ext4 /dev/vda rw\n"), None);
    }

    #[test]
    fn the_nearest_group_above_that_is_awake_takes_it() {
        let mount = tempfile::tempdir().unwrap();
        let root = mount.path();
        let group = root.join("a/b/c");
        fs::create_dir_all(&group).unwrap();
        for (name, state) in [("a", "THAWED"), ("a/b", "FROZEN"), ("a/b/c", "FROZEN")] {
            fs::write(root.join(name).join("freezer.state"), format!("{state}\n")).unwrap();
        }
        assert_eq!(awake_ancestor(&group, root), Some(root.join("a").as_path()));
        assert_eq!(awake_ancestor(&root.join("a"), root), Some(root));
        assert!(is_frozen(&group) && !is_frozen(root));
    }
}
