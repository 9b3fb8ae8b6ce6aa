//! `/proc/<pid>/statm`.

use super::Proc;
use machine_memory::ReadError;

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

#[cfg(test)]
mod tests {
    use super::super::tests::fake;
    use super::*;

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
}
