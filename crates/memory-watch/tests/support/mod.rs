//! What the tests share: watched processes and patience.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod swap;

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::Child;
use std::process::ChildStdin;
use std::process::ChildStdout;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use libbpf_rs::ErrorKind;
use memory_ledger::Uid;
use memory_watch::Notifier;
use memory_watch::NotifierError;
use memory_watch::process::Proc;

pub const PAGE: u64 = 4096;
pub const MIB: u64 = (1 << 20) / PAGE;
/// A limit no test reaches, for those that want an account only.
pub const FAR_AWAY: u64 = 1 << 40;

/// The notifier, or `None` after having said why the test is skipped.
pub fn notifier() -> Option<Notifier> {
    if !rustix::process::geteuid().is_root() {
        test_support::skip("needs root");
        return None;
    }
    match Notifier::load() {
        Ok(notifier) => Some(notifier),
        Err(error) if is_refused(&error) => {
            test_support::skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The kernel lacks it or the container forbids it. A program that the verifier rejects is our
/// fault.
fn is_refused(error: &NotifierError) -> bool {
    match error {
        NotifierError::Unsupported(_) => true,
        NotifierError::Bpf { source, .. } => {
            let judged_by_verifier = error.to_string().contains("processed ");
            source.kind() == ErrorKind::PermissionDenied && !judged_by_verifier
        }
        _ => false,
    }
}

/// Before Linux 6.2 a thread tells of its faults in batches of 64 only, so the account may be that
/// many pages a thread behind.
pub fn fault_batch() -> u64 {
    let types = libbpf_rs::btf::Btf::from_vmlinux().expect("the kernel's types");
    let batched = types.type_by_name::<libbpf_rs::btf::BtfType<'_>>("mm_rss_stat").is_some();
    if batched { 64 } else { 0 }
}

/// A child process that takes commands; killed when dropped.
pub struct Hog {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Hog {
    /// Starts one as `uid` and waits until it is that user.
    pub fn start(uid: Uid) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_memory-watch-hog"))
            .arg(uid.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the hog");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut hog = Self { child, input, output };
        assert_eq!(hog.answer(), "ready");
        // A change of uid is charged at the next fault (before Linux 6.2: at the next batch).
        hog.tell("touch 100");
        hog
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives a command without waiting for its end.
    pub fn begin(&mut self, command: &str) {
        // A hog that was killed meanwhile does not listen; the test will see that by itself.
        let _ = writeln!(self.input, "{command}");
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the hog's answer");
        line.trim_end().to_owned()
    }

    /// Gives a command and waits for its answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    /// Does a command that must succeed.
    pub fn tell(&mut self, command: &str) {
        assert_eq!(self.ask(command), "ok", "{command}");
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("wait for the hog").is_none()
    }

    /// Waits until it is dead; whether SIGKILL did it.
    pub fn was_killed(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        eventually("the hog dies", || !self.is_alive());
        self.child.wait().expect("wait for the hog").signal() == Some(libc::SIGKILL)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition, at most ten seconds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "still not so after 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What `/proc` says a user's processes are charged, in pages.
pub fn pages_by_proc(uid: Uid) -> u64 {
    let mut proc = Proc::default();
    let mut pids = Vec::new();
    proc.pids(&mut pids).expect("list /proc");
    pids.into_iter()
        .filter_map(|pid| proc.status(pid).ok())
        .filter(|status| status.uid == Some(uid))
        .filter_map(|status| status.charged_bytes())
        .sum::<u64>()
        / PAGE
}
