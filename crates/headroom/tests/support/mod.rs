//! Runs the shipped binary, and a daemon with replies that the test chooses.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod help;
pub mod pty;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde::{Serialize, de::DeserializeOwned};

/// The folder of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust sources of the crates and tests, joined.
pub fn sources() -> String {
    let mut folders = vec![root().join("crates"), root().join("tests")];
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &std::fs::read_to_string(&path).unwrap();
            }
        }
    }
    text
}

/// The command, with sockets in `dir` in place of the system's.
pub fn headroom(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headroom"));
    command
        .arg("--binderd-socket")
        .arg(dir.join("binderd.sock"))
        .arg("--oomd-socket")
        .arg(dir.join("oomd.sock"))
        .stdin(Stdio::null());
    command
}

/// Runs it; returns the exit code, standard output and standard error.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("cannot run headroom");
    let text = |bytes| String::from_utf8(bytes).expect("the output is not UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// A daemon on a real control socket, stopped on drop.
pub struct FakeDaemon {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeDaemon {
    /// Listens on `socket` and answers with `answer`.
    pub fn start<Q: DeserializeOwned, R: Serialize>(
        socket: PathBuf,
        answer: impl Fn(Q) -> R + Send + 'static,
    ) -> Self {
        let mut server = control::Server::bind(&socket, 0o600).expect("cannot listen");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                server.serve(|_, request: Result<Q, String>| answer(request.expect("bad request")));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; a second one would hide the first.
            let _ = thread.join();
        }
    }
}
