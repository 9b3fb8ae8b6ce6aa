//! A private daemon: the shipped binary with a socket, a configuration and a state folder in a
//! temporary folder.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use headroom_linux::descriptors::{PassRights, set_pass_rights};
use owners::Uid;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::client::Client;

/// Limit for the daemon to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The folder of the binaries, if they are not beside this program.
const FOLDER_VARIABLE: &str = "HEADROOM_BIN_DIR";

/// A program of Headroom: in `$HEADROOM_BIN_DIR`, or in the build folder of this one.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Ok(Path::new(&folder).join(name));
    }
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let found = found.into_iter().find(|path| path.exists());
    found.with_context(|| format!("{name} is not built: cargo build, or set {FOLDER_VARIABLE}"))
}

/// Lets the listening sockets of a daemon accept files, as all do before Linux 6.16.
pub fn accept_files(daemon: u32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(daemon.try_into()?).context("not a process")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let mut sockets = 0;
    for entry in fs::read_dir(format!("/proc/{daemon}/fd"))? {
        let Some(number) = entry?.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        // One that is closed meanwhile is no listening socket.
        let Ok(fd) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else { continue };
        if rustix::net::sockopt::socket_acceptconn(&fd) == Ok(true) {
            // Fails on a kernel where they accept files in any case.
            let _ = set_pass_rights(&fd, PassRights::Accepted);
            sockets += 1;
        }
    }
    ensure!(sockets >= 2, "{sockets} listening sockets, at least the control sockets expected");
    Ok(())
}

/// A running daemon, stopped on drop.
pub struct Daemon {
    child: Child,
    dir: tempfile::TempDir,
}

impl Daemon {
    /// Starts it with this configuration, and waits until it answers. It does not monitor the
    /// machine's own memory unless the configuration enables that.
    pub fn start(backend: Backend, config: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let at = |name: &str| dir.path().join(name);
        let machine =
            if config.contains("[machine]") { "" } else { "[machine]\nenabled = false\n" };
        fs::write(at("oomd.toml"), format!("{config}\n{machine}"))?;
        let log = File::create(at("log"))?;
        let mut command = Command::new(program("headroom-oomd")?);
        // As a service manager does: it leads a session.
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) };
        let child = command
            .arg("--config")
            .arg(at("oomd.toml"))
            .arg("--socket")
            .arg(at("oomd.sock"))
            .arg("--reclaimer")
            .arg(at("binderd.sock"))
            .arg("--state-dir")
            .arg(at("state"))
            .args(["--notifier", backend.name(), "--bpf-pin-dir", "none"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start headroom-oomd")?;
        let mut daemon = Self { child, dir };
        let end = Instant::now() + PATIENCE;
        while daemon.request(&json!({"request": "status"})).is_err() {
            ensure!(daemon.is_alive(), "headroom-oomd ended:\n{}", daemon.log());
            ensure!(Instant::now() < end, "headroom-oomd does not answer:\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Path of its control socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("oomd.sock")
    }

    /// Path of its lease socket.
    pub fn lease_socket(&self) -> PathBuf {
        self.dir.path().join("lease.sock")
    }

    /// Sends one request as root.
    pub fn request(&self, request: &Value) -> anyhow::Result<Value> {
        Client::connect(&self.socket(), PATIENCE)?.call(request)
    }

    /// Sets the limit of a user, at once also if the usage is above it.
    pub fn set_limit(&self, uid: Uid, bytes: u64) -> anyhow::Result<()> {
        let account = json!({"uid": uid.0});
        let request = json!({
            "request": "set-limit", "account": account, "hard_bytes": bytes, "grace_s": 0,
        });
        match self.request(&request)? {
            reply if reply["reply"] == "done" => Ok(()),
            reply => bail!("the limit was not set: {reply}"),
        }
    }

    /// Its decisions about these uids, oldest first.
    pub fn decisions(&self, concerned: impl Fn(Uid) -> bool) -> anyhow::Result<Vec<Value>> {
        let mut reply = self.request(&json!({"request": "why", "last": 100_000}))?;
        let Value::Array(records) = reply["records"].take() else { bail!("no records: {reply}") };
        let uid = |record: &Value| record["uid"].as_u64()?.try_into().ok().map(Uid);
        let ours = records.into_iter().rev().filter(|it| uid(it).is_some_and(&concerned));
        Ok(ours.collect())
    }

    /// Lets its listening sockets accept files, as all do before Linux 6.16.
    pub fn accept_files(&self) -> anyhow::Result<()> {
        accept_files(self.child.id())
    }

    /// Whether it is still running.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// CPU time that it has used, without its kernel threads.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        let stat = stat.unwrap_or_default();
        // The name may contain spaces; the state and the numbers from field 4 on follow it.
        let numbers = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let ticks = |at: usize| numbers.clone().nth(at).and_then(|word| word.parse::<u64>().ok());
        let ticks = ticks(11).unwrap_or(0) + ticks(12).unwrap_or(0);
        Duration::from_millis(ticks * 1000 / 100)
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + PATIENCE;
        while self.is_alive() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
