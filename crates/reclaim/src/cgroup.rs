//! Control groups that keep a victim from dying.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headroom_linux::mountinfo::{self, MountEntry};
use rustix::io::Errno;

use crate::victim::Victim;

/// A process that was moved to another group of the freezer.
#[derive(Debug)]
pub(crate) struct Moved {
    from: PathBuf,
}

impl Moved {
    /// Moves it back. A group that is gone has nobody to come back.
    pub(crate) fn back(self, pid: u32) {
        let _ = join(&self.from, pid);
    }
}

/// Moves a process that a version 1 freezer holds to the nearest group above that is not frozen:
/// others in its group stay as they are. `None`: no freezer holds it.
///
/// The process must not be waited for meanwhile: being frozen, it cannot end.
pub(crate) fn leave_frozen(victim: &Victim) -> Result<Option<Moved>, Errno> {
    let pid = victim.pid();
    let Some(own) = freezer_path(pid) else { return Ok(None) };
    let Some(mount) = freezer_mount(Path::new("/proc/self/mountinfo")) else { return Ok(None) };
    let group = mount.join(own.trim_start_matches('/'));
    // Whoever has the pid now is the one that was pinned.
    if !is_frozen(&group) || !victim.has_its_pid() {
        return Ok(None);
    }
    let Some(awake) = awake_ancestor(&group, &mount) else { return Ok(None) };
    // Before it is: it may die of it, and be reported, before we get to say so.
    victim.set_thawed(true);
    join(awake, pid).map_err(|e| {
        victim.set_thawed(false);
        Errno::from_io_error(&e).unwrap_or(Errno::IO)
    })?;
    Ok(Some(Moved { from: group }))
}

fn join(group: &Path, pid: u32) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
}

/// The nearest group above that is not frozen. The root has no state and never is.
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

/// From lines like `6:freezer:/group`.
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

/// Where the whole hierarchy of the freezer is mounted.
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
