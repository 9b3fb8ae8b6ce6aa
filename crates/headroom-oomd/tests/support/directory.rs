//! A directory of users: an NSS module whose state the test changes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use control::Uid;

use super::compile;

/// The directory of one test: users `u00` to `u09`, all in the group `nsstudents`.
pub struct Directory {
    dir: tempfile::TempDir,
    base: Uid,
}

impl Directory {
    /// A directory that is up. Its users have ten uids from `base` on.
    pub fn new(base: Uid) -> Self {
        let directory = Self { dir: tempfile::tempdir().unwrap(), base };
        let nsswitch = "passwd: files hrtest\ngroup: files hrtest\ninitgroups: files hrtest\n";
        std::fs::write(directory.path("nsswitch.conf"), nsswitch).unwrap();
        directory.set("up");
        directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The uid of a user.
    pub fn uid(&self, number: u32) -> Uid {
        Uid(self.base.0 + number)
    }

    /// Changes the state: `up`, `down`, `slow SECONDS` or `deleted NUMBER`.
    pub fn set(&self, state: &str) {
        let new = self.path("new");
        std::fs::write(&new, state).unwrap();
        std::fs::rename(new, self.path("state")).unwrap();
    }

    /// The questions so far: names, `uid NUMBER`, `gid` and `groups`.
    pub fn questions(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("state.log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A folder that lasts as long as the directory, for a daemon's state.
    pub fn state_folder(&self) -> PathBuf {
        let folder = self.path("kept");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Makes the command of a program use the directory, in a mount namespace of its own.
    pub fn prepare(&self) -> impl Fn(&mut Command) + use<> {
        let (nsswitch, state) = (self.path("nsswitch.conf"), self.path("state"));
        let base = self.base;
        move |command: &mut Command| {
            let script = "mount --bind \"$0\" /etc/nsswitch.conf && exec \"$@\"";
            let mut unshared = Command::new("unshare");
            unshared.args(["--mount", "sh", "-c", script]).arg(&nsswitch);
            unshared.arg(command.get_program()).args(command.get_args());
            unshared.env("LD_LIBRARY_PATH", module()).env("HEADROOM_NSS_STATE", &state);
            unshared.env("HEADROOM_NSS_BASE", base.to_string());
            *command = unshared;
        }
    }
}

/// The folder of the module, which is compiled once.
fn module() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let build = || {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libnss_hrtest.so.2");
        compile("nss_stub.c", &library, &["-std=c11", "-shared", "-fPIC"]);
        dir
    };
    FOLDER.get_or_init(build).path()
}
