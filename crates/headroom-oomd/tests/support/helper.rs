//! A process that is this test program again, as another user, and is told what to do.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

/// A copy of this program that any user can reach; removed with the last hog.
pub struct Program {
    pub path: PathBuf,
    _dir: tempfile::TempDir,
}

pub fn program() -> Arc<Program> {
    static PROGRAM: Mutex<Weak<Program>> = Mutex::new(Weak::new());
    let mut known = PROGRAM.lock().unwrap();
    known.upgrade().unwrap_or_else(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hog");
        // By another process: a child that some other test forks just now would have the copy open
        // for writing, and nobody could run it.
        let ours = std::env::current_exe().unwrap();
        assert!(Command::new("cp").arg(ours).arg(&path).status().unwrap().success());
        for path in [dir.path(), &path] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let program = Arc::new(Program { path, _dir: dir });
        *known = Arc::downgrade(&program);
        program
    })
}

/// Killed and reaped at the latest on drop.
pub struct Helper {
    pub child: Child,
    pub orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// How its answers begin, among what the test harness prints.
    prefix: &'static str,
    _program: Arc<Program>,
}

impl Helper {
    /// Starts one as `uid`, whose body is that of the ignored test `test`.
    pub fn start(test: &str, uid: u32, environment: &[(&str, &str)], prefix: &'static str) -> Self {
        let program = program();
        let mut child = Command::new(&program.path)
            .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .envs(environment.iter().copied())
            .current_dir("/")
            .uid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, orders, answers, prefix, _program: program }
    }

    /// Its next answer; `None`: it is dead.
    pub fn answer(&mut self) -> Option<String> {
        let answers = self.answers.by_ref().map_while(Result::ok);
        answers.filter_map(|line| line.strip_prefix(self.prefix).map(str::to_owned)).next()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
