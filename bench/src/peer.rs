//! The other end of a round trip: the same program, started again.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

/// The first argument that makes a benchmark a peer.
const PEER: &str = "peer";

/// Runs `serve` with the arguments of a peer. `None`: the program was not started as one.
pub fn serve(serve: impl FnOnce(&[&str]) -> Result<()>) -> Option<Result<()>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    (words.first() == Some(&PEER)).then(|| serve(&words[1..]))
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
        Self::start_as(None, arguments, stdin, stdout)
    }

    /// As [`start`](Peer::start), as another user.
    pub fn start_as(
        uid: Option<u32>,
        arguments: &[&str],
        stdin: Stdio,
        stdout: Stdio,
    ) -> Result<Self> {
        let program = std::env::current_exe().context("where am I?")?;
        let mut command = Command::new(program);
        command.arg(PEER).args(arguments).stdin(stdin).stdout(stdout).stderr(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let mut peer = Self(command.spawn().context("cannot start the peer")?);
        let stderr = peer.0.stderr.take().context("no stderr")?;
        let mut first = String::new();
        BufReader::new(stderr).read_line(&mut first).context("the peer's first words")?;
        let (first, words) = (first.trim(), arguments.join(" "));
        anyhow::ensure!(first == READY, "peer {words}: {first}");
        Ok(peer)
    }

    /// As [`start_as`](Peer::start_as), with pipes to its stdin and from its stdout.
    pub fn start_talking(uid: Option<u32>, arguments: &[&str]) -> Result<Talking> {
        let mut peer = Self::start_as(uid, arguments, Stdio::piped(), Stdio::piped())?;
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

/// A process that executes orders, a line each, and answers each with a line.
pub struct Worker {
    /// `None`: it is finished.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    // Killed once it has ended.
    _process: Peer,
}

impl Worker {
    /// Starts a peer, as another user if one is given.
    pub fn start(uid: Option<u32>, arguments: &[&str]) -> Result<Self> {
        let (process, orders, answers) = Peer::start_talking(uid, arguments)?;
        Ok(Self { orders: Some(orders), answers, _process: process })
    }

    /// Takes a child that has pipes as its stdin and stdout.
    pub fn of(mut child: Child) -> Result<Self> {
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.context("no stdout")?);
        Ok(Self { orders, answers, _process: Peer(child) })
    }

    /// Sends an order, and does not wait.
    pub fn order(&mut self, order: &str) -> Result<()> {
        writeln!(self.orders.as_mut().context("no stdin")?, "{order}").context("a worker is gone")
    }

    /// Waits for the next answer.
    pub fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        let len = self.answers.read_line(&mut line).context("a worker")?;
        anyhow::ensure!(len > 0, "a worker has ended");
        Ok(line.trim_end().to_owned())
    }
}

/// Closes its stdin and waits for the end of its stdout: a peer with a child of its own reaps it
/// then. A peer that is killed leaves its child to init.
impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = io::copy(&mut self.answers, &mut io::sink());
    }
}

/// Printed by a peer when it accepts requests.
pub fn report_ready() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    eprintln!("{READY}");
}
