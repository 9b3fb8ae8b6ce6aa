//! Folders for a daemon whose limits and decisions outlive it.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::daemon::Daemon;
use super::privileged;

/// A BPF filesystem for this test, unmounted on drop, and a state directory.
pub struct Place {
    bpffs: PathBuf,
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Option<Self> {
        if !privileged() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let bpffs = dir.path().join("bpf");
        std::fs::create_dir(&bpffs).unwrap();
        if let Err(errno) = mount("bpf", &bpffs, "bpf", MountFlags::empty(), None) {
            test_support::skip(format_args!("cannot mount a BPF filesystem: {errno}"));
            return None;
        }
        Some(Self { bpffs, dir })
    }

    pub fn pins(&self) -> PathBuf {
        self.bpffs.join("headroom")
    }

    pub fn arguments(&self) -> Vec<String> {
        let state = self.dir.path().join("state");
        [
            "--notifier=bpf".into(),
            option("--bpf-pin-dir", &self.pins()),
            option("--state-dir", &state),
        ]
        .to_vec()
    }

    pub fn daemon(&self, config: &str, more: &[&str]) -> Daemon {
        let arguments = self.arguments();
        let arguments: Vec<&str> =
            arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Daemon::start(config, &arguments)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = unmount(&self.bpffs, UnmountFlags::DETACH);
    }
}

pub fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
