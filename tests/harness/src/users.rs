//! Programs as other users, and how they are ended.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub use owners::Uid;
use rustix::process::{Pid, Signal, kill_process};

/// Uids of one test: its user, and the user's subordinate uids.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// The user, in the initial namespace.
    pub uid: Uid,
    /// The first subordinate uid.
    pub subordinate: u32,
    /// Number of subordinate uids.
    pub count: u32,
}

impl User {
    /// Whether this is one of its uids.
    pub fn has(&self, uid: Uid) -> bool {
        uid == self.uid || (self.subordinate..self.subordinate + self.count).contains(&uid.0)
    }

    /// A program as this user, in a new session, without privileges.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.run_as_self(&mut command);
        command
    }

    /// As [`command`](Self::command), for a program that is already prepared in other ways.
    pub fn run_as_self(&self, command: &mut Command) {
        let Uid(uid) = self.uid;
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            command.pre_exec(move || {
                let failed = libc::setsid() == -1
                    || libc::setgroups(0, std::ptr::null()) != 0
                    || libc::setresgid(uid, uid, uid) != 0
                    || libc::setresuid(uid, uid, uid) != 0;
                if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
    }

    /// Pids of its processes, including zombies.
    pub fn processes(&self) -> Vec<u32> {
        let real_uid = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
            uids.split_whitespace().next()?.parse().ok().map(Uid)
        };
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| real_uid(*pid).is_some_and(|uid| self.has(uid))).collect()
    }

    /// Kills all of its processes, repeatedly until none is left.
    pub fn end(&self, children: &mut [Child]) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.processes();
            for child in children.iter_mut() {
                let _ = child.try_wait();
            }
            if left.is_empty() || Instant::now() > end {
                return;
            }
            for pid in left.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Gives the process, which has just created a user namespace, its maps, as `newuidmap` and
/// `newgidmap` would: uid 0 is the user, those from 1 on the subordinate ones.
pub fn map_subordinate(pid: u32, user: User) -> io::Result<()> {
    let map = format!("0 {} 1\n1 {} {}\n", user.uid, user.subordinate, user.count);
    let folder = Path::new("/proc").join(pid.to_string());
    std::fs::write(folder.join("uid_map"), &map)?;
    std::fs::write(folder.join("gid_map"), &map)
}
