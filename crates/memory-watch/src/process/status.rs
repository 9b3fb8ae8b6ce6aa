//! `status`, `stat`, `statm` and `oom_score_adj` of `/proc/<pid>`: identity, state and sizes.

use headroom_linux::machine_memory::{ReadError, keys_and_values, kib_to_bytes};
use memory_ledger::Uid;

use super::{NS_PER_TICK, Proc};

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

/// The fields that are used, numbered as in proc(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Field 2, zero-padded; the kernel cuts it to 15 bytes.
    pub comm: [u8; 16],
    /// Field 3: `R`, `S`, `D`, `Z`, `T`, ...
    pub state: u8,
    /// Field 4: the parent's tgid.
    pub ppid: u32,
    /// Field 5: the process group.
    pub group: u32,
    /// Field 6: the session id, which is the pid of its leader.
    pub session: u32,
    /// Field 9: `PF_*` flags.
    pub flags: u64,
    /// Field 20.
    pub threads: u64,
    /// Field 22: clock ticks from boot to the start.
    pub start_ticks: u64,
    /// Field 24, in pages; may leave out pages that CPUs have not folded yet.
    pub rss_pages: u64,
}

impl Stat {
    const PF_EXITING: u64 = 0x4;
    const PF_KTHREAD: u64 = 0x0020_0000;

    /// Start time as in [`crate::ProcessSample::start_number`], rounded down to a tick.
    pub fn start_time_ns(&self) -> u64 {
        self.start_ticks * NS_PER_TICK
    }

    /// A kernel thread.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & Self::PF_KTHREAD != 0
    }

    /// Exiting or dead.
    pub fn is_exiting(&self) -> bool {
        self.flags & Self::PF_EXITING != 0 || matches!(self.state, b'Z' | b'X')
    }
}

impl Proc {
    /// Reads `/proc/<pid>/stat`.
    pub fn stat(&mut self, pid: u32) -> Result<Stat, ReadError> {
        let content = self.read(pid, "stat")?;
        // The name may contain any bytes, including brackets, blanks and broken UTF-8; the last
        // bracket ends it.
        let bytes = content.bytes;
        let open = bytes.iter().position(|&b| b == b'(');
        let close = bytes.iter().rposition(|&b| b == b')');
        let (Some(open), Some(close)) = (open, close) else {
            return Err(content.malformed("the name in brackets"));
        };
        if close < open {
            return Err(content.malformed("the name in brackets"));
        }
        let mut comm = [0; 16];
        let name = &bytes[open + 1..close];
        let len = name.len().min(15);
        comm[..len].copy_from_slice(&name[..len]);

        let rest = std::str::from_utf8(&bytes[close + 1..])
            .map_err(|_| content.malformed("the fields after the name"))?;
        let mut fields = Fields { rest: rest.split_ascii_whitespace(), next: 3 };
        let mut field = |number| {
            fields.get(number).ok_or_else(|| content.malformed(&format!("field {number}")))
        };
        let state = field(3)?.as_bytes()[0];
        let mut number = |index| {
            field(index)?
                .parse::<i64>()
                .map(|value| value.max(0) as u64)
                .map_err(|_| content.malformed(&format!("field {index} as a number")))
        };
        Ok(Stat {
            comm,
            state,
            ppid: number(4)? as u32,
            group: number(5)? as u32,
            session: number(6)? as u32,
            flags: number(9)?,
            threads: number(20)?,
            start_ticks: number(22)?,
            rss_pages: number(24)?,
        })
    }
}

struct Fields<'s> {
    rest: std::str::SplitAsciiWhitespace<'s>,
    next: usize,
}

impl<'s> Fields<'s> {
    /// Field `number`, counted from 1; to be called in ascending order.
    fn get(&mut self, number: usize) -> Option<&'s str> {
        let skip = number - self.next;
        self.next = number + 1;
        self.rest.nth(skip)
    }
}

/// Sizes in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statm {
    /// Size of the address space.
    pub size_pages: u64,
    /// Resident: anonymous + file + shared memory. Newer kernels may leave out a few dozen pages
    /// per CPU that are not folded into the counter yet.
    pub resident_pages: u64,
    /// Part of `resident_pages`: file and shared memory pages.
    pub shared_pages: u64,
}

impl Proc {
    /// Reads `/proc/<pid>/statm`.
    pub fn statm(&mut self, pid: u32) -> Result<Statm, ReadError> {
        let content = self.read(pid, "statm")?;
        let mut fields = content.text()?.split_ascii_whitespace();
        let mut field = |name: &str| {
            fields.next().and_then(|f| f.parse().ok()).ok_or_else(|| content.malformed(name))
        };
        Ok(Statm {
            size_pages: field("the size")?,
            resident_pages: field("the resident size")?,
            shared_pages: field("the shared size")?,
        })
    }
}

impl Proc {
    /// Adjustment of the kernel's OOM score: -1000 (never killed) to 1000 (killed first).
    pub fn oom_score_adj(&mut self, pid: u32) -> Result<i16, ReadError> {
        let content = self.read(pid, "oom_score_adj")?;
        content.text()?.trim().parse().map_err(|_| content.malformed("a number"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    #[test]
    fn status_reads_its_own_process() {
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

    #[test]
    fn stat_reads_its_own_process() {
        let stat = Proc::default().stat(std::process::id()).unwrap();
        assert_eq!(stat.ppid, std::os::unix::process::parent_id());
        assert!(stat.start_ticks > 0 && stat.rss_pages > 0 && stat.threads > 0);
        assert!(!stat.is_kernel_thread() && !stat.is_exiting());
    }

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let line = "7 (a) S (b\u{fffd}) D 3 7 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 12345 9 77 1";
        let (_dir, mut proc) = fake(7, "stat", line.as_bytes());
        let stat = proc.stat(7).unwrap();
        assert_eq!(&stat.comm[..9], "a) S (b\u{fffd}".as_bytes().get(..9).unwrap());
        assert_eq!((stat.state, stat.ppid, stat.session), (b'D', 3, 5));
        assert_eq!((stat.threads, stat.start_ticks, stat.rss_pages), (3, 12345, 77));
    }

    #[test]
    fn a_short_line_is_an_error_that_names_file_and_field() {
        let (_dir, mut proc) = fake(7, "stat", b"7 (a) S 1 2");
        let message = proc.stat(7).unwrap_err().to_string();
        assert!(message.contains("/7/stat") && message.contains("field 6"), "{message}");
    }

    #[test]
    fn reads_three_numbers() {
        let (_dir, mut proc) = fake(9, "statm", b"100 60 20 1 0 30 0\n");
        let statm = proc.statm(9).unwrap();
        assert_eq!(statm, Statm { size_pages: 100, resident_pages: 60, shared_pages: 20 });
    }

    #[test]
    fn an_empty_file_is_an_error() {
        let (_dir, mut proc) = fake(9, "statm", b"");
        assert!(proc.statm(9).is_err());
    }

    #[test]
    fn reads_a_negative_number() {
        let (_dir, mut proc) = fake(3, "oom_score_adj", b"-1000\n");
        assert_eq!(proc.oom_score_adj(3).unwrap(), -1000);
    }
}
