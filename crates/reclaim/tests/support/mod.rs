//! Child processes with memory, to be killed.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod forked;
pub mod freezer;

use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::time::{Duration, Instant};

use reclaim::{Identity, Victim};
use rustix::process::{Pid, Signal, kill_process};
use test_support::helper::Helper;
use test_support::programs::memory_hog;

/// Maximum wait for any event that is expected.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A child, killed and waited for on drop at the latest, with its children.
pub struct Holder {
    helper: Helper,
    /// Its pid as it sees it: differs if it is in a pid namespace of its own.
    pub own_pid: u32,
}

/// The command that starts a child.
pub fn helper() -> Command {
    Command::new(memory_hog())
}

/// The command that starts a child through another program, like `unshare`.
pub fn behind(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(memory_hog());
    command
}

impl Holder {
    /// Starts a child with this much memory, MiB.
    pub fn start(mib: usize) -> Self {
        Self::run(&mut helper(), mib)
    }

    /// Starts a child with this much memory, MiB, that has then executed a command.
    pub fn with(mib: usize, command: &str) -> Self {
        let mut holder = Self::start(mib);
        holder.helper.execute(command);
        holder
    }

    /// Starts a child by the given command.
    pub fn run(command: &mut Command, mib: usize) -> Self {
        let mut helper = Helper::run(command);
        helper.execute(&format!("grow {}", mib << 10));
        let own_pid = helper.request("pid").expect("it lives").parse().expect("a pid");
        Self { helper, own_pid }
    }

    pub fn pid(&self) -> u32 {
        self.helper.pid()
    }

    pub fn identity(&self) -> Identity {
        identity(self.pid())
    }
}

impl Deref for Holder {
    type Target = Helper;

    fn deref(&self) -> &Helper {
        &self.helper
    }
}

impl DerefMut for Holder {
    fn deref_mut(&mut self) -> &mut Helper {
        &mut self.helper
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The child was not waited for, so its pid is not reused, nor are those of its children,
        // which it keeps.
        if self.helper.is_alive() {
            let young = children(self.pid());
            let old: Vec<u32> = young.iter().flat_map(|child| children(*child)).collect();
            for pid in young.into_iter().chain(old) {
                let pid = Pid::from_raw(pid as i32).unwrap();
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Identity of the process that has this pid.
pub fn identity(pid: u32) -> Identity {
    Victim::open(pid).unwrap().identity()
}

/// The letter of its state; `None` if it has exited.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Children of all threads of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let pids = |list: String| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    lists.flat_map::<Vec<u32>, _>(pids).collect()
}

/// Waits until a condition holds.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
