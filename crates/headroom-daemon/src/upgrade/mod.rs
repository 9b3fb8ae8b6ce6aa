//! Replaces the running program by another one in the same process (`docs/design/upgrade.md`).
//!
//! A daemon accepts a request, writes its state to a [`StateFile`], has the program
//! [check](Program::check) it, and [executes](execute) the program, which reads it.

mod completion;
mod program;

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use control::{Peer, RequestId};
use headroom_linux::kept_fd::{Inherited, KeptFd};
use owners::Uid;
use rustix::fs::{MemfdFlags, memfd_create};

pub use self::completion::{Completion, Upgraded};
pub use self::program::Program;

/// Version of the programs of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Output of `--check-state`: the exit status alone may be that of a program that ignores options.
const VERIFIED: &str = "verified";

/// A request that was accepted.
pub struct UpgradeRequest {
    /// The request to reply to.
    pub id: RequestId,
    /// The program to execute.
    pub program: Program,
}

/// Requests for upgrades.
#[derive(Default)]
pub struct UpgradeRequests {
    /// Besides root, this user may upgrade.
    user: Option<Uid>,
    accepted: Option<UpgradeRequest>,
}

impl UpgradeRequests {
    /// Requests to a daemon that root may upgrade, and `user`, to whom it belongs.
    pub fn new(user: Option<Uid>) -> Self {
        Self { user, accepted: None }
    }

    /// Accepts a request if its sender may upgrade and the program can be executed; otherwise
    /// returns the reason.
    pub fn accept(
        &mut self,
        id: RequestId,
        peer: Peer,
        program: Option<&Path>,
    ) -> Result<(), String> {
        // The uid 0 of a container is not that of the machine.
        let is_root = peer.is_root() && peer.owner.is_root();
        if !is_root && self.user != Some(peer.uid) {
            return Err(format!("uid {} may not upgrade the daemon: only root may", peer.uid));
        }
        if self.accepted.is_some() {
            return Err("another upgrade has begun: try again".to_owned());
        }
        let program = match program {
            Some(path) => Program::trusted(path, self.user),
            None => Program::installed(),
        };
        let program = program.map_err(|error| format!("{error:#}"))?;
        self.accepted = Some(UpgradeRequest { id, program });
        Ok(())
    }

    /// Whether a request was accepted.
    pub fn is_pending(&self) -> bool {
        self.accepted.is_some()
    }

    /// Removes and returns the request that was accepted.
    pub fn take(&mut self) -> Option<UpgradeRequest> {
        self.accepted.take()
    }
}

/// A state in memory, which the next program reads.
pub struct StateFile(File);

impl StateFile {
    /// Writes a state.
    pub fn create(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut file: File = memfd_create("upgrade-state", MemfdFlags::CLOEXEC)
            .context("cannot make a file for the state")?
            .into();
        file.write_all(bytes).context("cannot write the state")?;
        file.rewind().context("cannot rewind the state")?;
        Ok(Self(file))
    }

    /// Reads the state in the descriptor `fd`, which `--resume` names.
    pub fn read(fd: i32) -> anyhow::Result<Vec<u8>> {
        ensure!(fd > 2, "--resume {fd}: that one has another use");
        // SAFETY: the descriptor was passed to us for this purpose and is not used elsewhere in
        // this process; if it is not open, operations on it fail.
        let file = unsafe { File::from_raw_fd(fd) };
        let length = file.metadata().with_context(|| format!("--resume {fd}"))?.len();
        let mut bytes = vec![0; usize::try_from(length)?];
        file.read_exact_at(&mut bytes, 0).with_context(|| format!("--resume {fd}"))?;
        Ok(bytes)
    }
}

/// Reads the state in standard input, for `--check-state`.
pub fn read_state_to_check() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    Ok(bytes)
}

/// Reports that the state was verified, for `--check-state`.
pub fn report_verified() {
    println!("{VERIFIED}");
}

/// Executes the program with the state and these descriptors; returns only if that fails.
pub fn execute(program: &Program, state: &StateFile, kept: Vec<KeptFd>) -> anyhow::Error {
    let kept = kept.into_iter().chain([KeptFd::of(&state.0)]).collect();
    match InheritedDescriptors::new(kept).context("cannot keep the descriptors open") {
        Ok(_inherited) => program.execute(state.0.as_raw_fd()),
        Err(error) => error,
    }
}

/// Descriptors that the next executed program inherits. Dropping it undoes that.
struct InheritedDescriptors(Vec<KeptFd>);

impl InheritedDescriptors {
    fn new(descriptors: Vec<KeptFd>) -> io::Result<Self> {
        let this = Self(descriptors);
        this.0.iter().try_for_each(|fd| fd.set_inherited(Inherited::Yes))?;
        Ok(this)
    }
}

impl Drop for InheritedDescriptors {
    fn drop(&mut self) {
        for fd in &self.0 {
            // Cannot fail: it is open.
            let _ = fd.set_inherited(Inherited::No);
        }
    }
}

/// Gives the process the name of its program: before Linux 6.14, fexecve(3) names it after the
/// number of the descriptor.
pub fn restore_name() {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name).map(OsStrExt::as_bytes);
    if let Some(name) = name.and_then(|name| std::ffi::CString::new(name).ok()) {
        // The kernel shortens it.
        let _ = rustix::thread::set_name(&name);
    }
}
