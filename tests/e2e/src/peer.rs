//! A client in a separate process.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Bus, wait};

/// A running `peer`; killed on drop, and then it must exit within a time limit. Also killed when
/// the thread that started it exits.
pub struct Peer {
    what: String,
    child: Child,
    lines: Receiver<String>,
    ended: Option<ExitStatus>,
}

/// Result of [`Peer::line_within`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// A line.
    Line(String),
    /// It has exited.
    End,
    /// No line within the time limit.
    Silence,
}

impl Peer {
    /// Starts `program` (the `peer` of this crate) on a device with an action and its arguments.
    pub fn start(program: &Path, device: &Path, arguments: &[&str]) -> Self {
        Self::start_by(program, device, arguments, |mut command| command.spawn())
    }

    /// As [`start`](Self::start), as a client of a bus, under a seccomp filter if the bus has some.
    pub fn start_on(bus: &Bus, program: &Path, device: &str, arguments: &[&str]) -> Self {
        Self::start_by(program, &bus.device(device), arguments, |command| bus.spawn(command))
    }

    /// As [`start`](Self::start), with a function that starts the command.
    pub fn start_by(
        program: &Path,
        device: &Path,
        arguments: &[&str],
        spawn: impl FnOnce(Command) -> io::Result<Child>,
    ) -> Self {
        let mut command = Command::new(program);
        command.arg(device).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child =
            spawn(command).unwrap_or_else(|e| panic!("cannot start {}: {e}", program.display()));
        let output = child.stdout.take().map(BufReader::new).into_iter();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in output.flat_map(BufRead::lines).map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { what: format!("peer {}", arguments.join(" ")), child, lines, ended: None }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints, waited for; `None` if it exits first.
    pub fn line(&self) -> Option<String> {
        match self.line_within(wait::PATIENCE) {
            Word::Line(line) => Some(line),
            Word::End => None,
            Word::Silence => {
                panic!("{} prints nothing ({})", self.what, wait::describe(self.pid()))
            }
        }
    }

    /// As [`line`](Self::line), with another time limit.
    pub fn line_within(&self, patience: Duration) -> Word {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Word::Line(line),
            Err(RecvTimeoutError::Disconnected) => Word::End,
            Err(RecvTimeoutError::Timeout) => Word::Silence,
        }
    }

    /// Waits for a certain line.
    pub fn expect(&self, wanted: &str) -> &Self {
        let line = self.line();
        assert_eq!(line.as_deref(), Some(wanted), "{}", self.what);
        self
    }

    /// Waits until it sleeps in the kernel.
    pub fn expect_asleep(&self) -> &Self {
        let state = wait::describe(self.pid());
        assert!(wait::until_asleep(self.pid()), "{} does not block ({state})", self.what);
        self
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal)
            .unwrap_or_else(|e| panic!("signal to {}: {e}", self.what));
    }

    /// Waits until it has exited, and fails if it does not: the process hangs in the driver.
    pub fn wait(&mut self) -> ExitStatus {
        self.wait_within(wait::PATIENCE)
    }

    fn wait_within(&mut self, patience: Duration) -> ExitStatus {
        if let Some(status) = self.ended {
            return status;
        }
        let status = wait::until(patience, || self.child.try_wait().ok().flatten());
        let hangs = || panic!("{} does not end ({})", self.what, wait::describe(self.pid()));
        *self.ended.insert(status.unwrap_or_else(hangs))
    }

    /// Waits until it has exited, which must be with success.
    pub fn wait_for_success(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{}: {status}", self.what);
    }

    /// Kills it and waits until it has exited: within a time limit, whatever it was doing.
    pub fn kill(&mut self) {
        self.kill_within(wait::PATIENCE);
    }

    /// As [`kill`](Self::kill), with another time limit.
    pub fn kill_within(&mut self, patience: Duration) {
        let _ = self.child.kill();
        let status = self.wait_within(patience);
        assert!(status.signal().is_some() || status.success(), "{}: {status}", self.what);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            // A panic here would abort a test that is failing already.
            let gone = wait::until(wait::PATIENCE, || self.child.try_wait().ok().flatten());
            if gone.is_none() {
                let state = wait::describe(self.pid());
                eprintln!("{} cannot be killed ({state})", self.what);
            }
        }
    }
}
