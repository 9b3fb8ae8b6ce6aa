//! Replaces the running program by another one in the same process, with the clients attached
//! (`docs/design/upgrade.md`).

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use binder_driver::Driver;
use binder_driver::state::{self, StateError};
use binder_fuse::{Config, Server, ServerState, VerifiedState};
use control::RequestId;
use control::binderd::{Reply, Upgraded};
use headroom_linux::clock::monotonic_ns;
use headroom_linux::descriptors::{KeptFd, check_descriptors};
use serde::{Deserialize, Serialize};

use crate::Listeners;
use crate::next_program::{self, StateFile, UpgradeRequest, VERSION};

/// Limit for the verification of the state. No client is served meanwhile.
const CHECK_LIMIT: Duration = Duration::from_secs(10);

/// State of the daemon, with the server's state `S`: to be written, or read.
#[derive(Serialize, Deserialize)]
struct DaemonState<S> {
    /// Version of the program that writes it.
    from: String,
    /// Start of the pause, nanoseconds of `CLOCK_MONOTONIC`.
    paused_ns: u64,
    descriptors: Descriptors,
    server: S,
}

type ReadState = DaemonState<ServerState<Driver>>;

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

impl<D> DaemonState<ServerState<D>> {
    fn descriptors(&self) -> Vec<KeptFd> {
        self.descriptors.all().chain(self.server.descriptors()).collect()
    }
}

impl ReadState {
    fn verify(self) -> Result<VerifiedDaemon, StateError> {
        check_descriptors(self.descriptors()).map_err(StateError::Inconsistent)?;
        let Self { from, paused_ns, descriptors, server } = self;
        Ok(VerifiedDaemon { from, paused_ns, descriptors, server: server.verify()? })
    }
}

fn read_verified(bytes: &[u8]) -> Result<VerifiedDaemon, StateError> {
    state::read::<ReadState>(bytes)?.verify()
}

/// Runs `--check-state`: verifies the state in standard input, and reports that.
pub fn check_state() -> anyhow::Result<()> {
    read_verified(&next_program::read_state_to_check()?)?;
    next_program::report_verified();
    Ok(())
}

/// Replaces the program; returns only if that fails. The server then continues to serve.
pub fn replace_program(
    server: &mut Server,
    control: &control::Server,
    listeners: Option<&Listeners>,
    request: &UpgradeRequest,
) -> anyhow::Error {
    match try_replace_program(server, control, listeners, request) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn try_replace_program(
    server: &mut Server,
    control: &control::Server,
    listeners: Option<&Listeners>,
    UpgradeRequest { id, program }: &UpgradeRequest,
) -> anyhow::Result<Infallible> {
    let paused_ns = monotonic_ns();
    let requester = control.connection(*id).context("the client has closed its connection")?.0;
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
    let kept = state.descriptors();
    drop(state);
    let file = StateFile::create(&bytes)?;
    drop(bytes);
    program.check(&file, CHECK_LIMIT)?;
    paused.end_guardian();
    Err(next_program::execute(program, &file, kept))
}

/// What was taken over from the previous program.
pub struct Resumed {
    pub server: Server,
    pub control: control::Server,
    pub listeners: Option<Listeners>,
    pub completion: Completion,
}

/// Runs `--resume`: continues with the state in the descriptor `fd`.
pub fn resume(config: &Config, socket: &Path, fd: i32) -> anyhow::Result<Resumed> {
    next_program::restore_name();
    let VerifiedDaemon { from, paused_ns, descriptors, server } =
        read_verified(&StateFile::read(fd)?)?;
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
    let completion = Completion { requester, from, paused_ns, opens: server.open_count() };
    Ok(Resumed { server, control, listeners, completion })
}

/// Reports the upgrade to the client that has requested it.
pub struct Completion {
    /// `None`: it has closed its connection.
    requester: Option<RequestId>,
    /// Version of the program before this one.
    from: String,
    /// Start of the pause, nanoseconds of `CLOCK_MONOTONIC`.
    paused_ns: u64,
    /// Number of opens that were taken over.
    opens: usize,
}

impl Completion {
    /// Logs the upgrade and sends the reply, immediately before the daemon serves again.
    pub fn report(self, server: &mut control::Server) {
        let Self { requester, from, paused_ns, opens } = self;
        let pause = Duration::from_nanos(monotonic_ns().saturating_sub(paused_ns));
        tracing::info!(
            "upgraded from {from} to {VERSION}: {opens} opens continue after a pause of {:.1} ms",
            pause.as_secs_f64() * 1000.0
        );
        let reply = Reply::Upgraded(Upgraded {
            from,
            to: VERSION.to_owned(),
            processes: u32::try_from(opens).unwrap_or(u32::MAX),
            pause_us: u64::try_from(pause.as_micros()).unwrap_or(u64::MAX),
        });
        if let Some(requester) = requester {
            server.reply(requester, &reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a bus in use. The e2e test
    /// `a_program_that_does_not_verify_the_state_is_not_executed` writes it to the file that
    /// `HEADROOM_WRITE_STATE` names: only before the release of its format.
    fn stored_state() -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states");
        std::fs::read(folder.join(state::VERSION.to_string())).unwrap()
    }

    #[test]
    fn a_stored_state_is_verified() {
        assert_eq!(read_verified(&stored_state()).map(drop), Ok(()));
    }

    #[test]
    fn a_descriptor_that_occurs_twice_is_refused() {
        let mut state: ReadState = state::read(&stored_state()).unwrap();
        state.descriptors.requester = state.descriptors.control;
        let error = state.verify().map(drop).unwrap_err().to_string();
        assert!(error.contains("occurs twice"), "{error}");
    }

    #[test]
    fn no_changed_byte_makes_the_reader_panic() {
        let stored = stored_state();
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
