//! A private `headroom-oomd`, gone at the end.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::Client;
use control::oomd::{Outcome, Reply, Request, Why};
use rustix::process::{Signal, set_parent_process_death_signal};
use tempfile::TempDir;

use crate::child::Child;

const PROGRAM: &str = "headroom-oomd";
/// How long anything may take that ought to happen.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Records that are asked for: more than any benchmark causes.
const RECORDS: u32 = 1000;

/// Where the daemon is: as given, in `$HEADROOM_BIN_DIR`, or beside this program.
pub fn program(given: Option<PathBuf>) -> Result<PathBuf> {
    let folder = || match std::env::var_os("HEADROOM_BIN_DIR") {
        Some(folder) => Some(PathBuf::from(folder)),
        None => Some(std::env::current_exe().ok()?.parent()?.to_owned()),
    };
    let program = given.or_else(|| Some(folder()?.join(PROGRAM))).unwrap_or_default();
    anyhow::ensure!(program.exists(), "{} is missing: build it", program.display());
    Ok(program)
}

/// The daemon; killed on drop.
pub struct Oomd {
    child: Child,
    folder: TempDir,
}

impl Oomd {
    /// Starts one with an empty configuration; `notifier` is `auto`, `bpf` or `proc`. Returns once it
    /// answers.
    pub fn start(program: &PathBuf, notifier: &str) -> Result<Self> {
        let folder = tempfile::tempdir().context("a folder for the daemon")?;
        let config = folder.path().join("oomd.toml");
        std::fs::write(&config, "").with_context(|| config.display().to_string())?;
        let mut command = Command::new(program);
        command.arg("--socket").arg(folder.path().join("oomd.sock"));
        command.arg("--config").arg(config).args(["--notifier", notifier]);
        let log = folder.path().join("oomd.log");
        let file = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        // SAFETY: one system call, on integers.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let oomd = Self { child: Child::start(&mut command)?, folder };
        let start = Instant::now();
        while Client::connect(&oomd.socket()).is_err() {
            if oomd.child.has_ended() {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                anyhow::bail!("{} ended: {last}", program.display());
            }
            anyhow::ensure!(start.elapsed() < PATIENCE, "{} does not answer", program.display());
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(oomd)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("oomd.sock")
    }

    fn ask(&self, request: &Request) -> Result<Reply> {
        Ok(Client::connect(&self.socket())?.call(request)?)
    }

    /// Limits a user.
    pub fn limit(&self, uid: u32, hard_bytes: u64) -> Result<()> {
        let reply = self.ask(&Request::SetLimit { uid, hard_bytes, soft_bytes: None })?;
        anyhow::ensure!(reply == Reply::Done, "no limit for uid {uid}: {reply:?}");
        Ok(())
    }

    /// All decisions so far, newest first.
    pub fn records(&self) -> Result<Vec<Why>> {
        match self.ask(&Request::Why { last: RECORDS })? {
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
            anyhow::ensure!(start.elapsed() < PATIENCE, "nobody was killed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
