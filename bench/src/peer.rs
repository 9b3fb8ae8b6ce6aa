//! The other end of a round trip: the same program, started again.

use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

/// The first argument that makes a benchmark a peer.
pub const PEER: &str = "peer";

/// The arguments of a peer; `None`: the program was not started as one.
pub fn arguments() -> Option<Vec<String>> {
    let mut words = std::env::args().skip(1);
    (words.next()? == PEER).then(|| words.collect())
}

/// Line that a peer prints on stderr when it accepts requests.
const READY: &str = "ready";

/// A peer, its stdin and its stdout.
pub type Talking = (Peer, ChildStdin, BufReader<ChildStdout>);

/// A peer; killed on drop.
pub struct Peer(Child);

impl Peer {
    /// Starts the running program as `peer ARGUMENTS`, with `stdin` and `stdout` as its descriptors
    /// 0 and 1, and waits until it is ready. It inherits core and priority.
    pub fn start(arguments: &[&str], stdin: Stdio, stdout: Stdio) -> Result<Self> {
        Self::spawn(arguments, stdin, stdout, |mut command| command.spawn())
    }

    fn spawn(
        arguments: &[&str],
        stdin: Stdio,
        stdout: Stdio,
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("where am I?")?;
        let mut command = Command::new(program);
        command.arg(PEER).args(arguments).stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        let mut peer = Self(spawn(command).context("cannot start the peer")?);
        let stderr = peer.0.stderr.take().context("no stderr")?;
        let mut first = String::new();
        BufReader::new(stderr).read_line(&mut first).context("the peer's first words")?;
        anyhow::ensure!(
            first.trim_end() == READY,
            "peer {}: {}",
            arguments.join(" "),
            first.trim()
        );
        Ok(peer)
    }

    /// As [`start`](Peer::start), with one descriptor as its stdin.
    pub fn start_on(arguments: &[&str], stdin: OwnedFd) -> Result<Self> {
        Self::start(arguments, stdin.into(), Stdio::null())
    }

    /// As [`start`](Peer::start), without descriptors, started by `spawn`.
    pub fn start_by(
        arguments: &[&str],
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Result<Self> {
        Self::spawn(arguments, Stdio::null(), Stdio::null(), spawn)
    }

    /// As [`start`](Peer::start), with pipes to its stdin and from its stdout.
    pub fn start_talking(arguments: &[&str]) -> Result<Talking> {
        Self::start_talking_by(arguments, |mut command| command.spawn())
    }

    /// As [`start_talking`](Peer::start_talking), started by `spawn`.
    pub fn start_talking_by(
        arguments: &[&str],
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Result<Talking> {
        let mut peer = Self::spawn(arguments, Stdio::piped(), Stdio::piped(), spawn)?;
        let stdin = peer.0.stdin.take().context("no stdin")?;
        let stdout = peer.0.stdout.take().context("no stdout")?;
        Ok((peer, stdin, BufReader::new(stdout)))
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Closes a peer's stdin and waits for the end of its stdout: a peer with a child of its own reaps
/// it then. A peer that is killed leaves its child to init.
pub fn finish(stdin: Option<ChildStdin>, stdout: &mut BufReader<ChildStdout>) {
    drop(stdin);
    let _ = io::copy(stdout, &mut io::sink());
}

/// Printed by a peer when it accepts requests.
pub fn report_ready() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    eprintln!("{READY}");
}
