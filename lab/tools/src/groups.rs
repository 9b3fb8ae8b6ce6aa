//! The scenario's control groups and the processes in them.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use crate::Result;
use crate::clock::now_ns;

/// A started process and, after it has exited, the time and status.
pub struct Part {
    name: &'static str,
    child: Child,
    /// The time at which its exit was noticed, and its status.
    pub ended: Option<(u64, ExitStatus)>,
}

impl Part {
    /// Reaps it if it has exited; whether it has.
    pub fn reap(&mut self) -> bool {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some((now_ns(), status));
        }
        self.ended.is_some()
    }

    /// Whether it was killed by a signal.
    pub fn was_killed(&self) -> bool {
        self.ended.is_some_and(|(_, how)| how.signal().is_some())
    }

    /// Waits until it has exited.
    pub fn wait(&mut self) {
        let _ = self.child.wait();
    }

    /// `{"who", "how", "after_ms"}` as JSON; `None` while it is running.
    pub fn story(&self, started_ns: u64) -> Option<String> {
        let (at, how) = self.ended?;
        let end = match how.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit {}", how.code().unwrap_or(-1)),
        };
        let after_ms = at.saturating_sub(started_ns) / 1_000_000;
        Some(format!("{{\"who\":\"{}\",\"how\":\"{end}\",\"after_ms\":{after_ms}}}", self.name))
    }
}

/// The directory of this process's control group.
pub fn own_cgroup() -> Result<String> {
    let text =
        fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
    let path = text.lines().find_map(|l| l.strip_prefix("0::")).ok_or("no cgroup v2")?;
    Ok(format!("/sys/fs/cgroup{}", path.trim_end_matches('/')))
}

/// The control groups below this process's group.
pub struct Groups {
    base: PathBuf,
}

impl Groups {
    /// Makes `observer` (and moves this process there, since a group with children must be empty),
    /// `interactive`, `bystander`, `load`.
    pub fn new(base: &str) -> Result<Self> {
        let groups = Self { base: PathBuf::from(base) };
        for name in ["observer", "interactive", "bystander", "load"] {
            fs::create_dir_all(groups.path(name)).map_err(|e| format!("{base}/{name}: {e}"))?;
        }
        let procs = fs::read_to_string(groups.base.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            // Kernel threads stay in the root group.
            let _ = fs::write(groups.path("observer/cgroup.procs"), pid);
        }
        fs::write(groups.base.join("cgroup.subtree_control"), "+memory")
            .map_err(|e| format!("{base}: memory: {e}"))?;
        // For systemd-oomd, the only OOM manager here that ignores oom_score_adj.
        let attribute = c"trusted.oomd_omit".as_ptr();
        let path =
            std::ffi::CString::new(groups.path("observer").into_os_string().into_encoded_bytes());
        let path = path.map_err(|_| "a NUL in the cgroup's path")?;
        // SAFETY: both strings are terminated, and the value has one byte.
        let done = unsafe { libc::setxattr(path.as_ptr(), attribute, c"1".as_ptr().cast(), 1, 0) };
        if done != 0 {
            eprintln!(
                "lab-tools: no extended attributes on cgroups ({}), going on",
                std::io::Error::last_os_error()
            );
        }
        Ok(groups)
    }

    /// The directory of a group.
    pub fn path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Starts this program in the group of that name.
    pub fn start(&self, name: &'static str, uid: libc::uid_t, words: &[&str]) -> Result<Part> {
        let procs = self.path(name).join("cgroup.procs");
        let mut command =
            Command::new(std::env::current_exe().map_err(|e| format!("our own path: {e}"))?);
        command.args(words);
        // SAFETY: only plain writes between fork and exec, and this process has one thread.
        unsafe {
            command.pre_exec(move || {
                fs::write(&procs, "0")?;
                fs::write("/proc/self/oom_score_adj", "0")?;
                // std's own uid() would be applied before this closure, which needs root.
                let dropped = uid == 0
                    || (libc::setgroups(0, std::ptr::null()) == 0
                        && libc::setgid(uid) == 0
                        && libc::setuid(uid) == 0);
                if !dropped {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| format!("cannot start {name}: {e}"))?;
        Ok(Part { name, child, ended: None })
    }

    /// Whether the group has no process.
    pub fn is_empty(&self, name: &str) -> bool {
        fs::read_to_string(self.path(name).join("cgroup.events"))
            .is_ok_and(|text| text.contains("populated 0"))
    }

    /// Kills all processes in the groups.
    pub fn end_all(&self) {
        for name in ["interactive", "bystander", "load"] {
            let _ = fs::write(self.path(name).join("cgroup.kill"), "1");
        }
    }
}
