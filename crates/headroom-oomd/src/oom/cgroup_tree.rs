//! The cgroup hierarchy: the cgroups that match a pattern, and the processes of a cgroup.

use std::collections::BTreeSet;
use std::path::Path;

use machine_memory::ReadError;
use memory_ledger::CgroupLimit;
use memory_ledger::cgroup::Folder;
use memory_watch::ProcessSample;
use memory_watch::cgroups::{CgroupMemory, Cgroups, Members};
use memory_watch::process::Proc;

/// Maximum number of cgroups with a limit; further matches have none, which is reported.
pub(super) const MAX_CGROUPS: usize = 1024;

/// The cgroup v2 hierarchy, if there is one.
#[derive(Default)]
pub(super) struct CgroupTree {
    tree: Option<Cgroups>,
    proc: Proc,
}

impl CgroupTree {
    /// Sets the root directory of the hierarchy.
    pub(super) fn set_root(&mut self, root: &Path) {
        self.tree = Some(Cgroups::at(root));
    }

    /// Finds the hierarchy unless it is known. The error is the reason that none can be used.
    pub(super) fn find(&mut self) -> Result<(), String> {
        if self.tree.is_some() {
            return Ok(());
        }
        match Cgroups::find(Path::new("/proc")) {
            Ok(Some(tree)) => {
                self.tree = Some(tree);
                Ok(())
            }
            Ok(None) => {
                let lost = "limits of cgroups and sessions are not enforced: no cgroup hierarchy \
                            of version 2 is mounted; it is looked for again at the next reload";
                Err(lost.to_owned())
            }
            Err(error) => Err(format!("limits of cgroups are not enforced: {error}")),
        }
    }

    /// The paths that match, without duplicates; may be more than [`MAX_CGROUPS`].
    pub(super) fn search(&self, limits: &[CgroupLimit]) -> BTreeSet<String> {
        let Some(tree) = &self.tree else { return BTreeSet::new() };
        limits.iter().flat_map(|limit| walk(tree, limit.pattern.folders())).collect()
    }

    /// The figures of a cgroup's memory controller. `None`: there is no hierarchy.
    pub(super) fn memory(&self, path: &str) -> Option<Result<Option<CgroupMemory>, ReadError>> {
        self.tree.as_ref().map(|tree| tree.memory(path))
    }

    /// Whether a cgroup and all its descendants have no process.
    pub(super) fn is_empty(&self, path: &str) -> bool {
        let members = self.tree.as_ref().map(|tree| tree.members(path));
        members.is_some_and(|it| it.is_ok_and(|it| it == Members::Pids(Vec::new())))
    }

    /// The pids of a cgroup and all its descendants, ascending. `None`: the cgroup is gone.
    /// `samples` are all processes.
    pub(super) fn members(&mut self, path: &str, samples: &[ProcessSample]) -> Option<Vec<u32>> {
        match self.tree.as_ref()?.members(path) {
            Ok(Members::Pids(pids)) => Some(pids),
            Ok(Members::TooManyFolders) => {
                let all = samples.iter().map(|sample| sample.tgid);
                Some(all.filter(|pid| is_inside(&mut self.proc, *pid, path)).collect())
            }
            Err(error) => {
                if !error.is_gone() {
                    tracing::warn!("{error}; no process of this cgroup is found");
                }
                None
            }
        }
    }
}

/// The existing cgroups that match a pattern. Directories of literal components are not listed.
fn walk(tree: &Cgroups, folders: &[Folder]) -> Vec<String> {
    let mut heads = vec![String::new()];
    for folder in folders {
        let mut next = Vec::new();
        for head in &heads {
            match folder {
                Folder::Named(name) => next.push(format!("{head}/{name}")),
                Folder::Like(_) => {
                    // The cgroup may have been removed.
                    let names = tree.children(head).unwrap_or_default();
                    let meant = names.iter().filter(|name| folder.matches(name));
                    next.extend(meant.map(|name| format!("{head}/{name}")));
                }
            }
            if next.len() > MAX_CGROUPS {
                break;
            }
        }
        heads = next;
    }
    heads.retain(|path| tree.exists(path));
    heads
}

/// Whether a process is in this cgroup or a descendant, according to `/proc/<pid>/cgroup`.
fn is_inside(proc: &mut Proc, pid: u32, path: &str) -> bool {
    let own = proc.cgroup(pid).ok().and_then(|paths| paths.unified).unwrap_or_default();
    own.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_that_can_match_are_looked_into() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/x-1/job", "a/x-2/job", "a/x-3", "a/y-1/job", "b/x-1/job"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let tree = Cgroups::at(dir.path());
        let found = |text: &str| {
            let pattern = memory_ledger::CgroupPattern::new(text).unwrap();
            let mut found = walk(&tree, pattern.folders());
            found.sort();
            found
        };
        assert_eq!(found("/a/x-*/job"), ["/a/x-1/job", "/a/x-2/job"]);
        assert_eq!(found("/a/x-3"), ["/a/x-3"]);
        assert!(found("/a/x-9").is_empty() && found("/none/*").is_empty());
        assert_eq!(found("/?"), ["/a", "/b"]);
    }

    #[test]
    fn a_process_is_inside_its_own_cgroup_and_those_above() {
        let mut proc = Proc::default();
        let us = std::process::id();
        let own = proc.cgroup(us).unwrap().unified.unwrap_or_default();
        assert!(own.is_empty() || is_inside(&mut proc, us, &own));
        assert!(!is_inside(&mut proc, us, "/no-such-cgroup"));
        assert!(!is_inside(&mut proc, u32::MAX / 2, "/a"));
    }
}
