//! Replaces the running program by another one in the same process, with the clients attached
//! (`docs/design/upgrade.md`).

mod program;

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use binder_driver::Driver;
use binder_driver::state::{self, StateError};
use binder_fuse::{Config, Inherited, KeptFd, Server, ServerState, VerifiedState};
use control::binderd::Reply;
use control::{Answer, Peer, RequestId};
use headroom_linux::clock::monotonic_ns;
use owners::Uid;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use self::program::Program;
use crate::listeners::Listeners;
use crate::run_folder::Scope;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Output of `--check-state`: the exit status alone may be that of a program that ignores options.
const VERIFIED: &str = "verified";

/// A request that was accepted.
pub struct UpgradeRequest {
    pub id: RequestId,
    program: Program,
}

/// Requests for upgrades.
pub struct UpgradeRequests {
    scope: Scope,
    accepted: Option<UpgradeRequest>,
}

impl UpgradeRequests {
    pub fn new(scope: Scope) -> Self {
        Self { scope, accepted: None }
    }

    /// Accepts a request if its sender may upgrade and the program can be executed. `mount` is the
    /// mount point of the bus.
    pub fn accept(
        &mut self,
        mount: &Path,
        id: RequestId,
        peer: Peer,
        program: Option<&Path>,
    ) -> Answer<Reply> {
        let own = Uid(rustix::process::geteuid().as_raw());
        let user = (self.scope == Scope::User).then_some(own);
        // The uid 0 of a container is not that of the machine.
        let is_root = peer.is_root() && peer.owner.is_root();
        if !is_root && user != Some(peer.uid) {
            let message = format!("uid {} may not upgrade the daemon: only root may", peer.uid);
            return Answer::Now(Reply::Error { message });
        }
        if self.accepted.is_some() {
            let message = "another upgrade has begun: try again".to_owned();
            return Answer::Now(Reply::Error { message });
        }
        let opened = match program {
            Some(path) => Program::trusted(path, mount, user),
            None => Program::installed(),
        };
        match opened {
            Ok(program) => {
                self.accepted = Some(UpgradeRequest { id, program });
                Answer::Later
            }
            Err(error) => Answer::Now(Reply::Error { message: format!("{error:#}") }),
        }
    }

    /// Removes and returns the request that was accepted.
    pub fn take(&mut self) -> Option<UpgradeRequest> {
        self.accepted.take()
    }
}

/// State of the daemon: to be written (`D` is `&Driver`), or read (`Driver`).
#[derive(Serialize, Deserialize)]
#[serde(bound(
    serialize = "ServerState<D>: Serialize",
    deserialize = "ServerState<D>: Deserialize<'de>"
))]
struct DaemonState<D> {
    /// Version of the program that writes it.
    from: String,
    /// Start of the pause, nanoseconds of `CLOCK_MONOTONIC`.
    paused_ns: u64,
    descriptors: Descriptors,
    server: ServerState<D>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Descriptors {
    control: KeptFd,
    control_of_root: Option<KeptFd>,
    /// The connection of the client that has requested the upgrade.
    requester: KeptFd,
    listeners: Option<KeptFd>,
}

impl Descriptors {
    fn all(self) -> impl Iterator<Item = KeptFd> {
        let optional = [self.control_of_root, self.listeners];
        [self.control, self.requester].into_iter().chain(optional.into_iter().flatten())
    }
}

/// A state that was read and verified.
struct VerifiedDaemon {
    from: String,
    paused_ns: u64,
    descriptors: Descriptors,
    server: VerifiedState,
}

impl<D> DaemonState<D> {
    fn descriptors(&self) -> Vec<KeptFd> {
        self.descriptors.all().chain(self.server.descriptors()).collect()
    }
}

impl DaemonState<Driver> {
    fn verify(self) -> Result<VerifiedDaemon, StateError> {
        binder_fuse::check_descriptors(self.descriptors()).map_err(StateError::Inconsistent)?;
        let Self { from, paused_ns, descriptors, server } = self;
        Ok(VerifiedDaemon { from, paused_ns, descriptors, server: server.verify()? })
    }
}

fn read_verified(bytes: &[u8]) -> Result<VerifiedDaemon, StateError> {
    state::read::<DaemonState<Driver>>(bytes)?.verify()
}

/// Runs `--check-state`: verifies the state in standard input, and reports that.
pub fn check_state() -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    read_verified(&bytes)?;
    println!("{VERIFIED}");
    Ok(())
}

/// Replaces the program; returns only if that fails. The server then continues to serve.
pub fn upgrade(
    server: &mut Server,
    control: &control::Server,
    listeners: Option<&Listeners>,
    request: &UpgradeRequest,
) -> anyhow::Error {
    match try_upgrade(server, control, listeners, request) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn try_upgrade(
    server: &mut Server,
    control: &control::Server,
    listeners: Option<&Listeners>,
    UpgradeRequest { id, program }: &UpgradeRequest,
) -> anyhow::Result<Infallible> {
    let paused_ns = monotonic_ns();
    let requester = control.connection(*id).context("the client has closed its connection")?;
    let sockets = control.listeners();
    let descriptors = Descriptors {
        control: KeptFd::of(&sockets.all),
        control_of_root: sockets.root.as_ref().map(KeptFd::of),
        requester: KeptFd::of(&requester),
        listeners: listeners.map(KeptFd::of),
    };
    let mut paused = server.pause()?;
    let from = VERSION.to_owned();
    let state = DaemonState { from, paused_ns, descriptors, server: paused.state() };
    let bytes = state::write(&state)?;
    let mut kept = state.descriptors();
    drop(state);
    let mut file: File = memfd_create("binderd-state", MemfdFlags::CLOEXEC)
        .context("cannot make a file for the state")?
        .into();
    file.write_all(&bytes).context("cannot write the state")?;
    drop(bytes);
    file.rewind().context("cannot rewind the state")?;
    program.check(&file)?;
    kept.push(KeptFd::of(&file));
    paused.end_guardian();
    let _inherited = InheritedDescriptors::new(kept).context("cannot keep the descriptors open")?;
    Err(program.execute(&file))
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

/// What was taken over from the previous program.
pub struct Resumed {
    pub server: Server,
    pub control: control::Server,
    pub listeners: Option<Listeners>,
    pub completion: Completion,
}

/// Reports the upgrade to the client that has requested it.
pub struct Completion {
    requester: Option<RequestId>,
    from: String,
    paused_ns: u64,
}

/// Runs `--resume`: continues with the state in the descriptor `fd`.
pub fn resume(config: &Config, socket: &Path, fd: i32) -> anyhow::Result<Resumed> {
    restore_name();
    let VerifiedDaemon { from, paused_ns, descriptors, server } = read_verified(&read_state(fd)?)?;
    // SAFETY: each descriptor occurs once in the verified state, which is used once.
    let take = |kept: KeptFd| unsafe { kept.take() }.context("cannot take over a descriptor");
    let sockets = control::Listeners {
        all: take(descriptors.control)?,
        root: descriptors.control_of_root.map(take).transpose()?,
    };
    let mut control = control::Server::from_listeners(socket, sockets)?;
    let requester = control.adopt(take(descriptors.requester)?);
    let listeners = descriptors.listeners.map(take).transpose()?.map(Listeners::from_socket);
    // SAFETY: the previous program has left the descriptors open, and nothing else uses them.
    let server = unsafe { Server::continue_from(config, server) }?;
    let completion = Completion { requester, from, paused_ns };
    Ok(Resumed { server, control, listeners, completion })
}

/// Gives the process the name of its program: before Linux 6.14, fexecve(3) names it after the
/// number of the descriptor.
fn restore_name() {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name.as_deref().and_then(Path::file_name).map(OsStrExt::as_bytes);
    if let Some(name) = name.and_then(|name| CString::new(name).ok()) {
        // The kernel shortens it.
        let _ = rustix::thread::set_name(&name);
    }
}

fn read_state(fd: i32) -> anyhow::Result<Vec<u8>> {
    ensure!(fd > 2, "--resume {fd}: that one has another use");
    // SAFETY: the descriptor was passed to us for this purpose and is not used elsewhere in this
    // process; if it is not open, operations on it fail.
    let file = unsafe { File::from_raw_fd(fd) };
    let length = file.metadata().with_context(|| format!("--resume {fd}"))?.len();
    let mut bytes = vec![0; usize::try_from(length)?];
    file.read_exact_at(&mut bytes, 0).with_context(|| format!("--resume {fd}"))?;
    Ok(bytes)
}

impl Completion {
    /// Sends the reply, immediately before clients are served again.
    pub fn report(self, control: &mut control::Server, server: &Server) {
        let pause = Duration::from_nanos(monotonic_ns().saturating_sub(self.paused_ns));
        tracing::info!(
            "upgraded from {} to {VERSION}: {} opens continue after a pause of {:.1} ms",
            self.from,
            server.open_count(),
            pause.as_secs_f64() * 1000.0
        );
        let reply = Reply::Upgraded {
            from: self.from,
            to: VERSION.to_owned(),
            processes: u32::try_from(server.open_count()).unwrap_or(u32::MAX),
            pause_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
        };
        if let Some(requester) = self.requester {
            control.reply(requester, &reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a bus in use, by a program whose format had this version. The e2e test
    /// `a_program_that_does_not_verify_the_state_is_not_executed` writes that of the current format
    /// to the file that `HEADROOM_WRITE_STATE` names: only before its release.
    fn stored_state(version: u32) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states");
        std::fs::read(folder.join(version.to_string())).unwrap()
    }

    #[test]
    fn states_of_released_formats_are_verified() {
        for version in 1..=state::VERSION {
            let verified = read_verified(&stored_state(version)).map(drop);
            assert_eq!(verified, Ok(()), "version {version}");
        }
    }

    #[test]
    fn a_descriptor_that_occurs_twice_is_refused() {
        let mut state: DaemonState<Driver> = state::read(&stored_state(state::VERSION)).unwrap();
        state.descriptors.requester = state.descriptors.control;
        let error = state.verify().map(drop).unwrap_err().to_string();
        assert!(error.contains("occurs twice"), "{error}");
    }

    #[test]
    fn no_changed_byte_makes_the_reader_panic() {
        let stored = stored_state(state::VERSION);
        let (mut tried, mut refused) = (0, 0);
        // Each seventh, as all would take half a minute.
        for at in (0..stored.len()).step_by(7) {
            tried += 2;
            for flipped in [0x01, 0x80] {
                let mut bytes = stored.clone();
                bytes[at] ^= flipped;
                assert!(state::reseal(&mut bytes));
                refused += usize::from(read_verified(&bytes).is_err());
            }
        }
        assert!(refused > tried / 10, "only {refused} of {tried} changes were noticed");
    }
}
