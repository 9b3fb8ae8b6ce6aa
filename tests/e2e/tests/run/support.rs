//! Running `headroom run` as a user without any privilege.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use e2e::wait;
use rustix::process::geteuid;

/// A user without files and privileges; used only if the tests run as root.
pub const NOBODY: u32 = 61234;

/// The library that sessions preload.
pub const RING_LIBRARY: &str = "libbinder_ring_preload.so";

/// Why there are no sessions on this machine.
fn obstacle() -> Option<String> {
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let works =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).output();
    match works {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// True if the test has to be skipped; the reason is printed.
pub fn skipped() -> bool {
    let obstacle = obstacle();
    if let Some(reason) = &obstacle {
        test_support::skip(reason);
    }
    obstacle.is_some()
}

/// Folder with the programs, which every user can execute, and the library beside them. (The build
/// folder may be in a home folder, and have a library of an earlier build.)
pub fn programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_peer")).parent().unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-programs");
        let folder = if is_public(folder.parent().unwrap()) {
            folder
        } else {
            std::env::temp_dir().join(format!("headroom-run-programs-{}", std::process::id()))
        };
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let library = test_support::programs::library(RING_LIBRARY);
        let programs = ["headroom", "headroom-binderd", "peer"].map(|name| built.join(name));
        for file in programs.iter().chain([&library]) {
            let (name, copy) = (file.display(), folder.join(file.file_name().unwrap()));
            // One that is executed cannot be written to.
            let _ = fs::remove_file(&copy);
            fs::copy(file, &copy).unwrap_or_else(|error| {
                panic!("{name}: {error}; build it first (cargo build --workspace --bins)")
            });
        }
        folder
    })
}

fn is_public(folder: &Path) -> bool {
    let open = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o005 == 0o005)
    };
    folder.ancestors().all(open)
}

/// The path of one of the programs.
pub fn program(name: &str) -> String {
    let path = programs().join(name);
    assert!(path.is_file(), "{name} is not built: cargo build --workspace --bins");
    path.to_str().expect("a path that is text").to_owned()
}

/// `headroom` as that user, without capabilities.
pub fn headroom() -> Command {
    let mut command = Command::new(program("headroom"));
    unprivileged(&mut command);
    command.current_dir("/").env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
    reset_signals(&mut command);
    command
}

/// A background job may have these signals ignored; a child inherits that, and a shell cannot trap
/// them then.
fn reset_signals(command: &mut Command) {
    // SAFETY: system calls alone.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

fn unprivileged(command: &mut Command) {
    // A user other than root stays the same.
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
}

/// Result of a command.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs it until it exits.
pub fn outcome(command: &mut Command) -> Outcome {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut session = Session::new(child.expect("cannot start it"));
    session.end()
}

/// Runs `headroom run -- sh -c SCRIPT` until it exits.
pub fn run_script(script: &str) -> Outcome {
    outcome(headroom().args(["run", "--", "sh", "-c", script]))
}

/// A running session; killed on drop.
pub struct Session {
    pub child: Child,
    output: Option<BufReader<std::process::ChildStdout>>,
}

impl Session {
    fn new(mut child: Child) -> Self {
        let output = child.stdout.take().map(BufReader::new);
        Self { child, output }
    }

    /// Starts `headroom run -- sh -c SCRIPT` whose processes can be identified by `token`.
    pub fn start(script: &str, token: &str) -> Self {
        let mut command = headroom();
        command.args(["run", "--", "sh", "-c", script]).env(TOKEN, token);
        Self::of(command)
    }

    /// Starts a command.
    pub fn of(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::new(command.spawn().expect("cannot start it"))
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut output = self.output.take().expect("its output");
        let (output, line) = self.within_patience("a line", move || {
            let mut line = String::new();
            output.read_line(&mut line).expect("cannot read its output");
            (output, line)
        });
        self.output = Some(output);
        line.trim_end().to_owned()
    }

    /// Waits until it exits.
    pub fn end(&mut self) -> Outcome {
        let (output, errors) = (self.output.take(), self.child.stderr.take());
        let out = self.within_patience("the end of its output", || all_of(output));
        let err = self.within_patience("the end of its errors", || all_of(errors));
        let status = wait::until(wait::PATIENCE, || self.child.try_wait().expect("its status"));
        let status = status.unwrap_or_else(|| panic!("it does not end: {out}\n{err}"));
        Outcome { code: status.code(), out, err }
    }

    /// Reads with a time limit.
    fn within_patience<T: Send + 'static>(
        &self,
        what: &str,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(read()));
        let pid = self.child.id();
        receiver
            .recv_timeout(wait::PATIENCE)
            .unwrap_or_else(|error| panic!("pid {pid}: {what}: {error}"))
    }
}

fn all_of(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_string(&mut text).expect("the output");
    }
    text
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Name of the variable that identifies the processes of a session.
pub const TOKEN: &str = "HEADROOM_TEST_TOKEN";

/// Processes with this token: pid and command line.
pub fn processes_with(token: &str) -> Vec<(u32, String)> {
    let wanted = format!("{TOKEN}={token}");
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let has_it = environment.split(|&byte| byte == 0).any(|one| one == wanted.as_bytes());
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            has_it.then(|| (pid, line.replace('\0', " ")))
        })
        .collect()
}

/// Waits until no process has the token.
pub fn expect_no_process_with(token: &str) {
    let gone = wait::until(wait::PATIENCE, || processes_with(token).is_empty().then_some(()));
    assert!(gone.is_some(), "still there: {:?}", processes_with(token));
}

/// The process with this token whose command line contains `part`.
pub fn process_with(token: &str, part: &str) -> u32 {
    let find = || processes_with(token).into_iter().find(|(_, line)| line.contains(part));
    match wait::until(wait::PATIENCE, find) {
        Some((pid, _)) => pid,
        None => panic!("no {part} in {:?}", processes_with(token)),
    }
}

/// Sends a signal.
pub fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("cannot send a signal");
}
