//! Setup and checks of the attacks on memory.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use harness::MIB;
use harness::daemon::Daemon;
use harness::users::{Uid, map_subordinate};
use headroom_linux::machine_memory::Meminfo;

use crate::attack::{ATTACKER, RECEIVER, Witness};
use crate::run::programs;

/// Lifetime of the processes besides an attack, seconds.
const SECONDS: &str = "60";
/// The abstract socket of a program that receives files.
pub const SOCKET_NAME: &str = "headroom-adversary";

/// Writes the maps of a user namespace that an attack has created, and lets the attack continue.
pub fn map_namespace(attack: &mut Child) -> anyhow::Result<ChildStdout> {
    let mut stdin = attack.stdin.take().context("no standard input")?;
    let mut stdout = attack.stdout.take().context("no standard output")?;
    stdout.read_exact(&mut [0]).context("the attack did not make its namespace")?;
    map_subordinate(attack.id(), ATTACKER).context("cannot map subordinate uids")?;
    stdin.write_all(b"m")?;
    Ok(stdout)
}

/// An attack that fills memory as subordinate uids.
pub struct SubordinateMemory;

impl Witness for SubordinateMemory {
    fn begun(&self, attack: &mut Child) -> anyhow::Result<()> {
        map_namespace(attack).map(drop)
    }
}

/// As [`SubordinateMemory`], while a container that root has created uses the same uids: its memory
/// does not count for the attacker.
pub struct ContainerOfRoot;

impl Witness for ContainerOfRoot {
    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        let mut command = Command::new(programs().join("container"));
        // Small enough for the bound of the attacker's memory, which is measured by uid.
        command.args(["-", SECONDS, "24"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut container = command.spawn().context("cannot start the container")?;
        map_namespace(&mut container)?;
        Ok(vec![container])
    }

    fn begun(&self, attack: &mut Child) -> anyhow::Result<()> {
        map_namespace(attack).map(drop)
    }
}

/// A kernel that permits io_uring for ordinary users.
pub struct IoUring;

impl Witness for IoUring {
    fn missing(&self) -> Option<&'static str> {
        let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let enabled = disabled.is_ok_and(|it| it.trim() == "0");
        (!enabled).then_some("io_uring is disabled for ordinary users")
    }
}

/// A setuid program of root.
pub struct SetuidHelper;

impl SetuidHelper {
    pub fn path() -> PathBuf {
        programs().join("hold-setuid")
    }
}

impl Witness for SetuidHelper {
    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        fs::copy(programs().join("hold"), Self::path())?;
        fs::set_permissions(Self::path(), fs::Permissions::from_mode(0o4755))?;
        Ok(Vec::new())
    }

    fn clean_up(&self) {
        let _ = fs::remove_file(Self::path());
    }
}

/// Another user's program that keeps the files that it receives.
pub struct Receiver {
    /// Number of its processes that map each file; 0: none.
    pub mappings: u32,
}

impl Witness for Receiver {
    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        let mappings =
            if self.mappings == 0 { "hold".to_owned() } else { self.mappings.to_string() };
        let mut command = RECEIVER.command(programs().join("receive_files"));
        command.args(["-", SECONDS, SOCKET_NAME, &mappings]).stdout(Stdio::piped());
        let mut receiver = command.spawn().context("cannot start the receiver")?;
        let stdout = receiver.stdout.as_mut().context("no standard output")?;
        stdout.read_exact(&mut [0]).context("the receiver does not listen")?;
        Ok(vec![receiver])
    }
}

/// SysV segments, which outlive their processes.
pub struct SysvSegments;

impl Witness for SysvSegments {
    fn clean_up(&self) {
        // Columns 2 and 8: the segment's id and the owner's uid.
        let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        for line in segments.lines().skip(1) {
            let column = |at: usize| line.split_whitespace().nth(at);
            if column(7).and_then(|uid| uid.parse().ok()).is_some_and(|uid| ATTACKER.has(Uid(uid)))
            {
                let id = column(1).unwrap_or_default();
                let _ = Command::new("ipcrm").args(["-m", id]).status();
            }
        }
    }
}

/// Huge pages that are reserved for the attack.
pub struct HugePages;

impl HugePages {
    pub const MIB: u64 = 64;
    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    fn reserved() -> u64 {
        let count = fs::read_to_string(Self::COUNT).unwrap_or_default();
        count.trim().parse().unwrap_or(0)
    }
}

impl Witness for HugePages {
    fn missing(&self) -> Option<&'static str> {
        let usable = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists();
        // Huge pages that other programs have reserved must not be changed.
        (!usable || Self::reserved() != 0).then_some("huge pages are missing, or in use")
    }

    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        fs::write(Self::COUNT, (Self::MIB / 2).to_string())?;
        ensure!(Self::reserved() == Self::MIB / 2, "memory is too fragmented for huge pages");
        Ok(Vec::new())
    }

    fn clean_up(&self) {
        let _ = fs::write(Self::COUNT, "0");
    }
}

/// A machine with swap.
pub struct Swap;

impl Witness for Swap {
    fn missing(&self) -> Option<&'static str> {
        let free = Meminfo::read(Path::new("/proc")).ok().and_then(|meminfo| meminfo.swap_free);
        (free.unwrap_or(0) < 400 * MIB).then_some("it needs 400 MiB of free swap")
    }
}

/// A cgroup that is delegated to the attacker.
pub struct ManyCgroups;

impl ManyCgroups {
    pub fn path() -> PathBuf {
        Self::root().unwrap_or(Path::new("/")).join("headroom-adversary")
    }

    fn root() -> Option<&'static Path> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        roots.into_iter().find(|root| root.join("cgroup.controllers").exists())
    }
}

impl Witness for ManyCgroups {
    fn missing(&self) -> Option<&'static str> {
        Self::root().is_none().then_some("there is no cgroup v2 hierarchy")
    }

    fn prepare(&self, _daemon: &Daemon) -> anyhow::Result<Vec<Child>> {
        let folder = Self::path();
        self.clean_up();
        fs::create_dir(&folder)?;
        let owner = Some(ATTACKER.uid.0);
        chown(&folder, owner, owner)?;
        chown(folder.join("cgroup.procs"), owner, owner)?;
        Ok(Vec::new())
    }

    fn begun(&self, attack: &mut Child) -> anyhow::Result<()> {
        // Into the delegated subtree, within which it may move itself.
        fs::write(Self::path().join("cgroup.procs"), attack.id().to_string())?;
        let mut stdin = attack.stdin.take().context("no standard input")?;
        Ok(stdin.write_all(b"m")?)
    }

    fn clean_up(&self) {
        for cgroup in fs::read_dir(Self::path()).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(cgroup.path());
        }
        let _ = fs::remove_dir(Self::path());
    }
}
