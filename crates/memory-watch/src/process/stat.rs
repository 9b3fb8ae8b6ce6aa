//! `/proc/<pid>/stat`.

use super::NS_PER_TICK;
use super::Proc;
use machine_memory::ReadError;

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

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

    #[test]
    fn reads_its_own_process() {
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
}
