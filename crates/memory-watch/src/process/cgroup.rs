//! `/proc/<pid>/cgroup`.

use super::Proc;
use machine_memory::ReadError;

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
