//! What tells a process from others with its name: `cmdline`, `cgroup`, `cwd` of `/proc/<pid>`.

use headroom_linux::machine_memory::ReadError;
use headroom_linux::pidfd;
use memory_ledger::{Comm, ProcessId};

use super::Proc;

/// Bytes of each text.
const MOST_BYTES: usize = 256;

/// What tells a process from others with its name; for display. Each text has at most 256 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Its name when the rest was read.
    pub comm: Comm,
    /// The command line, its arguments joined by blanks.
    pub command: String,
    /// Its cgroup of version 2; empty if there is none.
    pub cgroup: String,
    /// The working directory; empty if it cannot be read.
    pub folder: String,
    /// The pid of its parent.
    pub parent_pid: u32,
    /// The name of its parent; empty if that has exited.
    pub parent: String,
}

impl Proc {
    /// The details of exactly this process. `None`: its pid is another process's by now. Waits for
    /// the lock of the process's mappings.
    pub fn details(&mut self, id: ProcessId) -> Result<Option<Details>, ReadError> {
        let pid = id.pid;
        let command = self.cmdline(pid)?;
        let cgroup = self.cgroup(pid)?.unified.unwrap_or_default();
        let folder = std::fs::read_link(self.root().join(pid.to_string()).join("cwd"));
        let folder = folder.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        // Last: if the pid is still that of the process, all that was read before is its own.
        let status = self.status(pid)?;
        if self.start_number(pid)? != id.start_time {
            return Ok(None);
        }
        let parent_pid = status.ppid.unwrap_or(0);
        let parent = self.status(parent_pid).map(|parent| Comm::new(&parent.comm).to_string());
        Ok(Some(Details {
            comm: Comm::new(&status.comm),
            command: shortened(command),
            cgroup: shortened(cgroup),
            folder: shortened(folder),
            parent_pid,
            parent: shortened(parent.unwrap_or_default()),
        }))
    }

    /// The start number of the process that has this pid now, as in [`ProcessId`].
    fn start_number(&mut self, pid: u32) -> Result<u64, ReadError> {
        let gone = |error| ReadError::io(&self.root().join(pid.to_string()), error);
        match pidfd::number(pidfd::open(pid).map_err(gone)?) {
            Some(number) => Ok(number),
            None => Ok(self.stat(pid)?.start_time_ns()),
        }
    }
}

/// At most [`MOST_BYTES`] bytes, each character that does not print as `?`.
fn shortened(text: String) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.len() <= MOST_BYTES {
        return text;
    }
    let most = MOST_BYTES - '…'.len_utf8();
    let starts = text.char_indices().map(|(at, _)| at);
    let end = starts.take_while(|at| *at <= most).last().unwrap_or(0);
    format!("{}…", &text[..end])
}

impl Proc {
    /// The command line, its arguments joined by blanks and control characters shown as `?`; empty
    /// for a kernel thread. A process can write any text there: for display, not for decisions
    /// alone.
    pub fn cmdline(&mut self, pid: u32) -> Result<String, ReadError> {
        let content = self.read(pid, "cmdline")?;
        let end = content.bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
        let text = String::from_utf8_lossy(&content.bytes[..end]);
        Ok(text
            .chars()
            .map(|c| match c {
                '\0' => ' ',
                c if c.is_control() => '?',
                c => c,
            })
            .collect())
    }
}

/// The cgroups of a process, as paths from the root of their hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPaths {
    /// In the v2 hierarchy.
    pub unified: Option<String>,
    /// In the v1 memory hierarchy.
    pub v1_memory: Option<String>,
    /// In the v1 freezer hierarchy.
    pub v1_freezer: Option<String>,
    /// In the v1 cpu hierarchy.
    pub v1_cpu: Option<String>,
}

impl Proc {
    /// Reads `/proc/<pid>/cgroup`.
    pub fn cgroup(&mut self, pid: u32) -> Result<CgroupPaths, ReadError> {
        let content = self.read(pid, "cgroup")?;
        let text = String::from_utf8_lossy(content.bytes);
        let mut paths = CgroupPaths::default();
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                return Err(content.malformed("a line as id:controllers:path"));
            };
            if id == "0" && controllers.is_empty() {
                paths.unified = Some(path.to_owned());
            }
            for controller in controllers.split(',') {
                let place = match controller {
                    "memory" => &mut paths.v1_memory,
                    "freezer" => &mut paths.v1_freezer,
                    "cpu" => &mut paths.v1_cpu,
                    _ => continue,
                };
                *place = Some(path.to_owned());
            }
        }
        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    #[test]
    fn the_details_are_those_of_this_process_only() {
        let mut proc = Proc::default();
        let pid = std::process::id();
        let start_time = proc.start_number(pid).unwrap();
        let details = proc.details(ProcessId { pid, start_time }).unwrap().unwrap();
        let folder = std::env::current_dir().unwrap();
        assert_eq!(details.folder, folder.to_str().unwrap());
        assert_eq!(details.parent_pid, std::os::unix::process::parent_id());
        assert!(!details.command.is_empty() && !details.parent.is_empty(), "{details:?}");
        let other = ProcessId { pid, start_time: start_time + 1 };
        assert_eq!(proc.details(other).unwrap(), None);
    }

    #[test]
    fn a_text_is_cut_between_two_characters() {
        let text = shortened("ä\n".repeat(200));
        assert!(text.len() <= MOST_BYTES && text.starts_with("ä?ä?") && text.ends_with('…'));
        assert_eq!(shortened("short".to_owned()), "short");
    }

    #[test]
    fn arguments_are_joined_and_control_characters_hidden() {
        let (_dir, mut proc) = fake(3, "cmdline", b"sleep\0\x1b[31m\0\0");
        assert_eq!(proc.cmdline(3).unwrap(), "sleep ?[31m");
    }

    #[test]
    fn a_kernel_thread_has_none() {
        let (_dir, mut proc) = fake(3, "cmdline", b"");
        assert_eq!(proc.cmdline(3).unwrap(), "");
    }

    #[test]
    fn finds_both_versions_and_keeps_colons_in_paths() {
        let (_dir, mut proc) =
            fake(3, "cgroup", b"4:cpu,cpuacct:/a\n3:memory:/b:c\n0::/user.slice/x\n");
        let paths = proc.cgroup(3).unwrap();
        assert_eq!(paths.unified.as_deref(), Some("/user.slice/x"));
        assert_eq!(paths.v1_memory.as_deref(), Some("/b:c"));
        assert_eq!(paths.v1_cpu.as_deref(), Some("/a"));
        assert_eq!(paths.v1_freezer, None);
    }

    #[test]
    fn a_line_without_colons_is_an_error() {
        let (_dir, mut proc) = fake(3, "cgroup", b"nonsense\n");
        assert!(proc.cgroup(3).unwrap_err().to_string().contains("id:controllers:path"));
    }
}
