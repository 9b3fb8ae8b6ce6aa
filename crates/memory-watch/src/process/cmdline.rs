//! `/proc/<pid>/cmdline`.

use super::Proc;
use machine_memory::ReadError;

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

#[cfg(test)]
mod tests {
    use super::super::tests::fake;

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
}
