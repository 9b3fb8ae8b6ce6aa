//! A private `headroom-oomd`, killed at the end.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::oomd::{AccountRef, Outcome, Reply, Request, UserLimit, Why};
use control::{Client, Uid};
use harness::daemon::program;
use rustix::process::{Signal, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::child::Child;

/// Limit for any wait.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum of records to request: more than any benchmark causes.
const RECORDS: u32 = 1000;

/// The daemon; killed on drop.
pub struct Oomd {
    child: Child,
    folder: TempDir,
}

impl Oomd {
    /// Starts a daemon with these limits as its configuration; it does not watch the machine.
    /// `notifier` is `auto`, `bpf` or `proc`. Returns once it answers.
    pub fn start(notifier: &str, limits: &str) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the daemon")?;
        // Other users must be able to reach the sockets.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), all).context("permissions")?;
        let config = folder.path().join("oomd.toml");
        let text = format!("{limits}\n[machine]\nenabled = false\n");
        std::fs::write(&config, text).with_context(|| config.display().to_string())?;
        let child = launch(&program("headroom-oomd")?, folder.path(), notifier)?;
        Ok(Self { child, folder })
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Stops the process until [`go_on`](Self::go_on).
    pub fn stop(&self) {
        self.child.signal(libc::SIGSTOP);
    }

    /// Continues the process.
    pub fn go_on(&self) {
        self.child.signal(libc::SIGCONT);
    }

    /// Path of the lease socket.
    pub fn lease_socket(&self) -> PathBuf {
        self.folder.path().join(control::lease::LEASE_SOCKET_NAME)
    }

    /// Limit and account of a user.
    pub fn account(&self, uid: Uid) -> Result<UserLimit> {
        match self.call(&Request::ListLimits)? {
            Reply::Limits { limits } => limits
                .into_iter()
                .find(|limit| limit.account == AccountRef::user(uid))
                .with_context(|| format!("uid {uid} has no limit")),
            other => anyhow::bail!("instead of limits: {other:?}"),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("oomd.sock")
    }

    fn call(&self, request: &Request) -> Result<Reply> {
        Ok(Client::connect(&self.socket())?.call(request)?)
    }

    /// All decisions so far, newest first.
    pub fn records(&self) -> Result<Vec<Why>> {
        match self.call(&Request::Why { last: RECORDS })? {
            Reply::Why { records } => Ok(records),
            other => anyhow::bail!("instead of decisions: {other:?}"),
        }
    }

    /// Waits until the memory of the first victim is back, or the daemon has given up on it.
    pub fn first_kill_ended(&self) -> Result<Why> {
        let start = Instant::now();
        loop {
            if let Some(first) = self.records()?.last()
                && first.outcome != Outcome::Dying
            {
                return Ok(first.clone());
            }
            anyhow::ensure!(start.elapsed() < PATIENCE, "no process was killed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Starts the program with the files in its folder, and waits until it answers.
fn launch(program: &Path, folder: &Path, notifier: &str) -> Result<Child> {
    let socket = folder.join("oomd.sock");
    let mut command = Command::new(program);
    command.arg("--socket").arg(&socket);
    command.arg("--config").arg(folder.join("oomd.toml")).args(["--notifier", notifier]);
    let log = folder.join("oomd.log");
    let file = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    // SAFETY: one system call, on integers.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    let child = Child::start(&mut command)?;
    let start = Instant::now();
    while Client::connect(&socket).is_err() {
        if child.has_ended() {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let last = text.lines().last().unwrap_or_default();
            anyhow::bail!("{} ended: {last}", program.display());
        }
        anyhow::ensure!(start.elapsed() < PATIENCE, "{} does not answer", program.display());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(child)
}
