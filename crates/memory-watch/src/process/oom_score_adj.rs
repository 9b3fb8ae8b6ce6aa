//! `/proc/<pid>/oom_score_adj`.

use super::Proc;
use machine_memory::ReadError;

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

    #[test]
    fn reads_a_negative_number() {
        let (_dir, mut proc) = fake(3, "oom_score_adj", b"-1000\n");
        assert_eq!(proc.oom_score_adj(3).unwrap(), -1000);
    }
}
