//! Processes that take memory when told to: this test program again, as another user.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};

use super::eventually;

/// Name of the ignored test that has [`obey`] as its body, in each program that uses hogs.
const HELPER: &str = "hog_that_other_tests_start";
const VARIABLE: &str = "HEADROOM_TEST_HOG";

/// A process that obeys, killed and reaped at the latest on drop.
pub struct Hog {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _program: Arc<Program>,
}

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
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        for path in [dir.path(), &path] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let program = Arc::new(Program { path, _dir: dir });
        *known = Arc::downgrade(&program);
        program
    })
}

impl Hog {
    /// Starts one that has no memory to speak of yet.
    pub fn start(uid: u32) -> Self {
        let program = program();
        let mut child = Command::new(&program.path)
            .args([HELPER, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .current_dir("/")
            .uid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut hog = Self { child, orders, answers, _program: program };
        assert_eq!(hog.answer().as_deref(), Some("ready"));
        hog
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to take so much more, without waiting.
    pub fn grow(&mut self, kib: u64) {
        // A dead one does not listen.
        let _ = writeln!(self.orders, "grow {kib}");
    }

    /// Tells it to call itself `hog-NUMBER`, and waits.
    pub fn name(&mut self, number: u32) {
        writeln!(self.orders, "name {number}").unwrap();
        assert_eq!(self.answer().as_deref(), Some("done"));
    }

    /// Tells it to fork so many children, which share its memory until they write, and waits.
    pub fn fork(&mut self, children: u32) {
        writeln!(self.orders, "fork {children}").unwrap();
        assert_eq!(self.answer().as_deref(), Some("done"));
    }

    /// Waits until it has done what it was told; `false`: it was killed over it.
    pub fn survived(&mut self) -> bool {
        let answer = self.answer();
        if answer.is_none() {
            let status = self.child.wait().unwrap();
            assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
        }
        answer.is_some()
    }

    /// Waits until it has been killed.
    pub fn died(&mut self) {
        let status = eventually("the hog dies", || self.child.try_wait().unwrap());
        assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    fn answer(&mut self) -> Option<String> {
        let answers = self.answers.by_ref().map_while(Result::ok);
        answers.filter_map(|line| line.strip_prefix("hog: ").map(str::to_owned)).next()
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The hog's life: orders from standard input until it ends.
pub fn obey() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let say = |what: &str| println!("\nhog: {what}");
    let mut memory: Vec<Vec<u8>> = Vec::new();
    say("ready");
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (verb, number) = order.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        match verb {
            "grow" => {
                // Untouched at first: calloc's pages come with the writes.
                let mut more = vec![0u8; number << 10];
                for page in more.chunks_mut(4096) {
                    page[0] = 1;
                }
                memory.push(more);
                say("done");
            }
            "name" => {
                std::fs::write("/proc/self/comm", format!("hog-{number}")).unwrap();
                say("done");
            }
            "fork" => {
                for _ in 0..number {
                    fork_one();
                }
                say("done");
            }
            _ => panic!("{order:?}"),
        }
    }
    std::hint::black_box(&memory);
}

/// A child that shares all memory, does nothing, and dies with its parent.
fn fork_one() {
    let parent = std::process::id() as i32;
    // SAFETY: the child calls only prctl, getppid, pause and _exit, which are safe after a fork whatever
    // other threads did.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have been killed before that took effect.
            if libc::getppid() != parent {
                libc::_exit(0);
            }
            loop {
                libc::pause();
            }
        }
    }
}
