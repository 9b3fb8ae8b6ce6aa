//! Programs that are started as other users.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use control::Uid;
use test_support::helper::Helper;

/// A copy of a program that any user can execute; removed with its last process.
pub struct Program {
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Program {
    /// Returns the single copy of `source`, named `name`.
    pub fn shared(known: &Mutex<Weak<Self>>, source: &Path, name: &str) -> Arc<Self> {
        let mut known = known.lock().unwrap();
        known.upgrade().unwrap_or_else(|| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            // Copied by another process: a child that another test forks meanwhile would hold the
            // copy open for writing, and then it could not be executed (ETXTBSY).
            assert!(Command::new("cp").arg(source).arg(&path).status().unwrap().success());
            for path in [dir.path(), &path] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            let program = Arc::new(Self { path, _dir: dir });
            *known = Arc::downgrade(&program);
            program
        })
    }

    /// Starts the program as `uid`.
    pub fn start(&self, uid: Uid, environment: &[(&str, &str)]) -> Helper {
        let mut command = Command::new(&self.path);
        command.envs(environment.iter().copied()).current_dir("/").uid(uid.0);
        Helper::run(command.stderr(Stdio::null()))
    }
}
