//! A process that executes a test's commands: one per line, each answered with a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The helper; killed and reaped on drop at the latest.
pub struct Helper {
    /// Public, so that the test can check its exit status.
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts it, and waits for its first answer.
    pub fn run(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut helper = Self { child, input, output };
        assert_eq!(helper.answer().as_deref(), Some("ready"), "{command:?}");
        helper
    }

    /// Its pid, or that of the program that has started it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command without waiting for its end.
    pub fn begin(&mut self, command: &str) {
        // A helper that was killed meanwhile does not read; the test notices that itself.
        let _ = writeln!(self.input, "{command}");
    }

    /// Its next answer; `None`: it has exited.
    pub fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap_or(0);
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Sends a command and waits for its answer.
    pub fn request(&mut self, command: &str) -> Option<String> {
        self.begin(command);
        self.answer()
    }

    /// Sends a command that must succeed.
    pub fn execute(&mut self, command: &str) {
        assert_eq!(self.request(command).as_deref(), Some("ok"), "{command}");
    }

    /// Whether it is still running.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("wait for the helper").is_none()
    }

    /// Waits for its end; returns the signal that killed it.
    pub fn signal(&mut self) -> Option<i32> {
        self.child.wait().expect("wait for the helper").signal()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
