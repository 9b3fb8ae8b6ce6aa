//! `/proc/<pid>/status`.

use super::Proc;
use machine_memory::ReadError;
use machine_memory::text::{keys_and_values, kib_to_bytes};
use memory_ledger::Uid;

/// Identity and exact resident sizes. The sizes are `None` for kernel threads and zombies, and
/// where the kernel is too old to have the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `Name`, zero-padded.
    pub comm: [u8; 16],
    /// `State`: `R`, `S`, `D`, `Z`, `T`, ...
    pub state: u8,
    /// `NSpgid`, first column: the process group in the namespace of the proc filesystem.
    pub group: Option<u32>,
    /// `NSsid`, first column: the session, which is the pid of its leader.
    pub session: Option<u32>,
    /// `VmSize`, in bytes.
    pub size_bytes: Option<u64>,
    /// `VmExe`, in bytes.
    pub code_bytes: Option<u64>,
    /// `Tgid`.
    pub tgid: Option<u32>,
    /// `PPid`.
    pub ppid: Option<u32>,
    /// `Uid`, first column: the real one.
    pub uid: Option<Uid>,
    /// `RssAnon`, in bytes.
    pub anon_bytes: Option<u64>,
    /// `RssFile`, in bytes.
    pub file_bytes: Option<u64>,
    /// `RssShmem`, in bytes.
    pub shmem_bytes: Option<u64>,
    /// `VmSwap`, in bytes.
    pub swap_bytes: Option<u64>,
    /// `VmLck`, in bytes: the size of locked mappings.
    pub locked_bytes: Option<u64>,
    /// `VmPTE`, in bytes.
    pub page_table_bytes: Option<u64>,
    /// The main thread has exited and another thread is running: the sizes are read from that
    /// thread.
    pub main_thread_exited: bool,
    /// `CoreDumping`: the process dumps core, which SIGKILL ends.
    pub dumps_core: bool,
    /// `Threads`.
    pub threads: Option<u64>,
}

impl Status {
    /// Exiting or dead.
    pub fn is_exiting(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Memory charged to a user: anonymous + shared + swapped-out bytes. `None` without an address
    /// space.
    pub fn charged_bytes(&self) -> Option<u64> {
        Some(self.anon_bytes? + self.shmem_bytes.unwrap_or(0) + self.swap_bytes.unwrap_or(0))
    }
}

impl Proc {
    /// Whether the process has no address space any more, or does not exist.
    pub fn has_exited(&mut self, pid: u32) -> bool {
        self.status(pid).map_or_else(|error| error.is_gone(), |status| status.anon_bytes.is_none())
    }

    /// Reads `/proc/<pid>/status`. If the main thread has exited before others, the sizes are read
    /// from another thread.
    pub fn status(&mut self, pid: u32) -> Result<Status, ReadError> {
        let status = self.status_in(pid, "status")?;
        if status.anon_bytes.is_some() || status.threads.is_none_or(|threads| threads < 2) {
            return Ok(status);
        }
        let folder = self.root.join(pid.to_string()).join("task");
        let threads = std::fs::read_dir(&folder).map_err(|e| ReadError::io(&folder, e))?;
        for thread in threads.flatten() {
            let file = format!("task/{}/status", thread.file_name().display());
            // The thread may have exited by now.
            if let Ok(of_thread) = self.status_in(pid, &file)
                && of_thread.anon_bytes.is_some()
            {
                let main_thread_exited = true;
                let Status { size_bytes, code_bytes, .. } = of_thread;
                let Status { anon_bytes, file_bytes, shmem_bytes, .. } = of_thread;
                let Status { swap_bytes, locked_bytes, page_table_bytes, .. } = of_thread;
                return Ok(Status {
                    size_bytes,
                    code_bytes,
                    anon_bytes,
                    file_bytes,
                    shmem_bytes,
                    swap_bytes,
                    locked_bytes,
                    page_table_bytes,
                    main_thread_exited,
                    ..status
                });
            }
        }
        Ok(status)
    }

    fn status_in(&mut self, pid: u32, file: &str) -> Result<Status, ReadError> {
        let content = self.read(pid, file)?;
        let mut status = Status { comm: comm(content.bytes), ..Status::default() };
        // Only the name can contain bytes that are not UTF-8, and lossy conversion would allocate.
        let from = content.bytes.iter().position(|&b| b == b'\n').unwrap_or(0);
        let text = std::str::from_utf8(&content.bytes[from..])
            .map_err(|_| content.malformed("the file as UTF-8"))?;
        for (key, value) in keys_and_values(text) {
            match key {
                "Tgid" => status.tgid = value.parse().ok(),
                "State" => status.state = value.bytes().next().unwrap_or(0),
                "NSpgid" => status.group = first(value),
                "NSsid" => status.session = first(value),
                "VmSize" => status.size_bytes = kib_to_bytes(value),
                "VmExe" => status.code_bytes = kib_to_bytes(value),
                "PPid" => status.ppid = value.parse().ok(),
                "Uid" => status.uid = first(value).map(Uid),
                "RssAnon" => status.anon_bytes = kib_to_bytes(value),
                "RssFile" => status.file_bytes = kib_to_bytes(value),
                "RssShmem" => status.shmem_bytes = kib_to_bytes(value),
                "VmSwap" => status.swap_bytes = kib_to_bytes(value),
                "VmLck" => status.locked_bytes = kib_to_bytes(value),
                "VmPTE" => status.page_table_bytes = kib_to_bytes(value),
                "CoreDumping" => status.dumps_core = value == "1",
                "Threads" => status.threads = value.parse().ok(),
                _ => (),
            }
        }
        Ok(status)
    }
}

/// The first of several numbers.
fn first(value: &str) -> Option<u32> {
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// The name in the first line, where a backslash and a line feed are escaped.
fn comm(status: &[u8]) -> [u8; 16] {
    let mut comm = [0; 16];
    let line = status.strip_prefix(b"Name:\t").unwrap_or_default();
    let mut bytes = line.iter().copied().take_while(|byte| *byte != b'\n');
    for place in &mut comm[..15] {
        *place = match bytes.next() {
            Some(b'\\') => match bytes.next() {
                Some(b'n') => b'\n',
                other => other.unwrap_or(0),
            },
            other => other.unwrap_or(0),
        };
    }
    comm
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    #[test]
    fn reads_its_own_process() {
        let status = Proc::default().status(std::process::id()).unwrap();
        assert_eq!(status.tgid, Some(std::process::id()));
        assert_eq!(status.uid, Some(Uid(rustix::process::getuid().as_raw())));
        assert!(status.charged_bytes().unwrap() > 0);
        let stat = Proc::default().stat(std::process::id()).unwrap();
        assert_eq!((status.group, status.session), (Some(stat.group), Some(stat.session)));
        assert_eq!((status.comm, status.ppid), (stat.comm, Some(stat.ppid)));
        assert!(status.size_bytes > status.code_bytes && status.code_bytes > Some(0));
        assert!(!status.is_exiting());
    }

    #[test]
    fn a_name_is_not_escaped() {
        let (_dir, mut proc) = fake(5, "status", b"Name:\ta\\\\b\\nc\xff\nTgid:\t5\n");
        assert_eq!(&proc.status(5).unwrap().comm[..7], b"a\\b\nc\xff\0");
    }

    #[test]
    fn a_thread_shows_the_sizes_when_the_main_thread_has_exited() {
        let (dir, mut proc) = fake(5, "status", b"Name:\tx\nTgid:\t5\nUid:\t7\t7\nThreads:\t2\n");
        for (tid, text) in [(5, "Name:\tx\nThreads:\t2\n"), (6, "Name:\tx\nRssAnon:\t8 kB\n")] {
            let thread = dir.path().join(format!("5/task/{tid}"));
            std::fs::create_dir_all(&thread).unwrap();
            std::fs::write(thread.join("status"), text).unwrap();
        }
        let status = proc.status(5).unwrap();
        assert_eq!((status.uid, status.anon_bytes), (Some(Uid(7)), Some(8 << 10)));
        assert!(status.main_thread_exited);
    }

    #[test]
    fn a_zombie_has_no_sizes() {
        let (_dir, mut proc) = fake(5, "status", b"Name:\t\xff:x\nTgid:\t5\nUid:\t7\t8\t9\t9\n");
        let status = proc.status(5).unwrap();
        assert_eq!((status.tgid, status.uid), (Some(5), Some(Uid(7))));
        assert_eq!(status.charged_bytes(), None);
    }
}
