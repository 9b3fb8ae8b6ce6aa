//! A daemon of its own for each test, and clients in processes of their own.
#![allow(dead_code, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use binder_client::Client;
use control::binderd::{Device, Process, Reply, Request, Status};
use tempfile::TempDir;
use test_support::helper::Helper;

/// No operation takes a second; one that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this environment cannot mount; reports the reason once per test.
pub fn cannot_mount() -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "not root"
    } else if !Path::new("/dev/fuse").exists() {
        "no /dev/fuse"
    } else {
        return false;
    };
    test_support::skip(reason);
    true
}

/// Polls until `ready` returns a value.
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A running daemon; stopped, after cleaning up, when it is dropped.
pub struct Daemon {
    pub dir: TempDir,
    child: Child,
}

impl Daemon {
    /// Starts a daemon with three devices and the best mapping.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(args: &[&str]) -> Self {
        Self::start_in(TempDir::new().unwrap(), args)
    }

    pub fn start_in(dir: TempDir, args: &[&str]) -> Self {
        Self::start_prepared(dir, args, |_| {})
    }

    /// `prepare` may change the command.
    pub fn start_prepared(dir: TempDir, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        use std::os::unix::fs::PermissionsExt;
        // Clients of other users need access.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = Self::command(dir.path(), args);
        prepare(&mut command);
        let child = command.spawn().unwrap();
        let mut daemon = Self { dir, child };
        wait_for("the daemon", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("the daemon ended: {status}");
            }
            control::Client::connect(&daemon.socket()).ok()
        });
        daemon.status();
        daemon
    }

    pub fn command(dir: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headroom-binderd"));
        command.arg("--mount").arg(dir.join("mount")).arg("--socket").arg(dir.join("socket"));
        command.args(args);
        command
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn binder(&self) -> PathBuf {
        self.mount().join("binder")
    }

    pub fn request(&self, request: &Request) -> Reply {
        control::Client::connect(&self.socket()).unwrap().call(request).unwrap()
    }

    pub fn status(&self) -> Status {
        match self.request(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("not a status: {other:?}"),
        }
    }

    pub fn ls(&self) -> Vec<Device> {
        match self.request(&Request::Ls) {
            Reply::Ls { devices } => devices,
            other => panic!("not a list: {other:?}"),
        }
    }

    /// Opens of all devices by `pid`.
    pub fn opens_of(&self, pid: u32) -> Vec<Process> {
        let opens = self.ls().into_iter().flat_map(|device| device.processes);
        opens.filter(|process| process.pid == pid).collect()
    }

    /// Waits until a thread is blocked in a read of its device.
    pub fn wait_until_blocked(&self, tid: u32) {
        wait_for("a thread to block in a read", || {
            let opens = self.ls().into_iter().flat_map(|device| device.processes);
            let mut threads = opens.flat_map(|process| process.threads);
            threads.any(|thread| thread.tid == tid && thread.waiting).then_some(())
        });
    }

    /// Waits until `pid` has no open any more.
    pub fn wait_until_gone(&self, pid: u32) {
        wait_for("the opens of a dead process to go", || {
            self.opens_of(pid).is_empty().then_some(())
        });
    }

    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the daemon to end", || self.child.try_wait().unwrap())
    }

    /// Stops the daemon as an operator does; it must leave no files or mounts.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(libc::SIGTERM);
        self.wait()
    }

    /// Starts a client in a process of its own, a `bus_client` of this role.
    pub fn client(&self, role: &str) -> Helper {
        Helper::run(Command::new(bus_client()).arg(role).arg(self.binder()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_some() {
            return;
        }
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                self.signal(libc::SIGKILL);
                let _ = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
                let _ = self.child.wait();
                panic!("the daemon did not end");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "pid {pid}");
}

pub fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

pub fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// The program of the clients; `tests/e2e/src/bin/bus_client.rs` has its roles.
pub fn bus_client() -> PathBuf {
    test_support::programs::built("e2e", "bus_client")
}

/// Waits until a client has exited.
pub fn wait_for_end(client: &mut Helper) -> ExitStatus {
    wait_for("a client to end", || client.child.try_wait().unwrap())
}

pub fn open(device: impl AsRef<Path>) -> Client {
    Client::open(device, &binder_client::Options::default()).unwrap()
}
