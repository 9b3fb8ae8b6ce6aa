//! The shipped binary, with a socket and a configuration of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use control::oomd::{AccountRef, Reply, Request, Status, UserLimit, Why};
use control::{Client, Uid};
use rustix::process::{Pid, Signal, kill_process};

use super::eventually;
use super::journal::Journal;

/// A running daemon, killed on drop.
pub struct Daemon {
    child: Child,
    arguments: Vec<String>,
    prepare: Box<dyn Fn(&mut Command)>,
    dir: tempfile::TempDir,
    log: Arc<Mutex<Vec<String>>>,
    /// Reads the log until the daemon has closed standard error.
    reader: std::thread::JoinHandle<()>,
}

/// The binary with a configuration file and a socket in `dir`.
pub fn command(dir: &Path, config: &str) -> Command {
    let path = dir.join("oomd.toml");
    // The daemons of tests must enforce their limits only, whatever the memory pressure of the
    // system.
    let machine = if config.contains("[machine]") { "" } else { "[machine]\nenabled = false\n" };
    std::fs::write(&path, format!("{config}\n{machine}")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headroom-oomd"));
    command.arg("--config").arg(path).arg("--socket").arg(dir.join("oomd.sock"));
    command.arg("--reclaimer").arg(dir.join("binderd.sock"));
    command
}

impl Daemon {
    /// Starts a daemon with this configuration and further arguments, and waits until it replies.
    pub fn start(config: &str, arguments: &[&str]) -> Self {
        Self::start_prepared(config, arguments, |_| ())
    }

    /// Starts a daemon whose command, and those of its successors, are modified by `prepare`.
    pub fn start_prepared(
        config: &str,
        arguments: &[&str],
        prepare: impl Fn(&mut Command) + 'static,
    ) -> Self {
        Self::launch(config, arguments, None, Box::new(prepare))
    }

    /// Starts a daemon whose standard error is connected to this journal.
    pub fn start_with_journal(
        config: &str,
        arguments: &[&str],
        journal: &Journal,
        prepare: impl Fn(&mut Command) + 'static,
    ) -> Self {
        Self::launch(config, arguments, Some(journal), Box::new(prepare))
    }

    fn launch(
        config: &str,
        arguments: &[&str],
        journal: Option<&Journal>,
        prepare: Box<dyn Fn(&mut Command)>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Other users have to reach the socket.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), all).unwrap();
        let mut command = command(dir.path(), config);
        let arguments = Vec::from_iter(arguments.iter().map(|word| word.to_string()));
        let (stderr, writer) = std::io::pipe().unwrap();
        if let Some(journal) = journal {
            // The mount for the journal precedes the restrictions of `prepare`.
            journal.attach(&mut command, &writer);
        }
        prepare(&mut command);
        let child = command.args(&arguments).stderr(writer).spawn().unwrap();
        // The command holds the write end of the pipe.
        drop(command);
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = log.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let mut daemon = Self { child, arguments, prepare, dir, log, reader };
        eventually("the daemon answers", || {
            let ended = daemon.child.try_wait().unwrap();
            assert!(ended.is_none(), "the daemon ended: {ended:?} {:?}", daemon.log());
            let mut client = Client::connect(&daemon.socket()).ok()?;
            client.call::<Reply>(&Request::Status).ok()
        });
        daemon
    }

    /// Kills the daemon and starts another one in its place, after a pause.
    pub fn replace(&mut self, config: &str, pause: std::time::Duration) {
        self.die();
        std::thread::sleep(pause);
        self.start_again(config);
    }

    /// Kills the daemon with SIGKILL, as the kernel's OOM killer would.
    pub fn die(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts another daemon after this one was killed or has exited, with the same arguments.
    pub fn start_again(&mut self, config: &str) {
        let mut command = command(self.dir.path(), config);
        (self.prepare)(&mut command);
        self.child = command.args(&self.arguments).stderr(Stdio::null()).spawn().unwrap();
        eventually("the next daemon answers", || {
            let mut client = Client::connect(&self.socket()).ok()?;
            client.call::<Reply>(&Request::Status).ok()
        });
    }

    /// Writes a configuration file: `oomd.toml`, or a drop-in `oomd.d/NAME`.
    pub fn write_config(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Path of the lease socket.
    pub fn lease_socket(&self) -> PathBuf {
        self.dir.path().join(control::lease::LEASE_SOCKET_NAME)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("oomd.sock")
    }

    /// Path where the daemon expects the control socket of a `headroom-binderd`.
    pub fn reclaimer(&self) -> PathBuf {
        self.dir.path().join("binderd.sock")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The lines that the daemon has logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends one request, as root.
    pub fn request(&self, request: &Request) -> Reply {
        Client::connect(&self.socket()).unwrap().call(request).unwrap()
    }

    /// Sends one request with another user's credentials.
    pub fn request_as(&self, uid: Uid, request: &Request) -> Reply {
        let (socket, request) = (self.socket(), request.clone());
        let call = move || Client::connect(&socket).unwrap().call(&request).unwrap();
        test_support::spawn_as(uid, call).join().unwrap()
    }

    pub fn set_limit(&self, uid: Uid, hard_bytes: u64) {
        let account = AccountRef::user(uid);
        let request = Request::SetLimit { account, hard_bytes, soft_bytes: None, grace_s: None };
        assert_eq!(self.request(&request), Reply::Done);
    }

    pub fn status(&self) -> Status {
        match self.request(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    pub fn limit(&self, uid: Uid) -> Option<UserLimit> {
        self.limits().into_iter().find(|limit| limit.account.uid == uid.0)
    }

    /// The limits of all users.
    pub fn limits(&self) -> Vec<UserLimit> {
        match self.request(&Request::ListLimits) {
            Reply::Limits { limits } => limits,
            other => panic!("{other:?}"),
        }
    }

    /// Decisions about a user, oldest first.
    pub fn why(&self, uid: Uid) -> Vec<Why> {
        self.why_account(AccountRef::user(uid))
    }

    /// Decisions about any account, oldest first.
    pub fn why_account(&self, account: AccountRef) -> Vec<Why> {
        match self.request(&Request::Why { last: 1000 }) {
            Reply::Why { records } => {
                records.into_iter().rev().filter(|why| why.account == account).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// The first decision about a user, once its victim's memory is back or given up.
    pub fn ended(&self, uid: Uid) -> Why {
        self.ended_account(AccountRef::user(uid))
    }

    /// The first decision about any account, once its victim's memory is back or given up.
    pub fn ended_account(&self, account: AccountRef) -> Why {
        eventually("a kill has come to its end", || {
            let first = self.why_account(account).into_iter().next()?;
            (first.outcome != control::oomd::Outcome::Dying).then_some(first)
        })
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn stop(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        eventually("the daemon ends", || self.child.try_wait().unwrap());
    }

    /// Sends a signal and waits. Returns the exit status, the directory and the log.
    pub fn end(mut self, signal: Signal) -> (ExitStatus, tempfile::TempDir, Vec<String>) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let status = eventually("the daemon ends", || self.child.try_wait().unwrap());
        eventually("its log is read", || self.reader.is_finished().then_some(()));
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        let log = self.log();
        (status, dir, log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the daemon's log\n{}\n---", self.log().join("\n"));
        }
    }
}
