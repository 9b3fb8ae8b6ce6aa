//! Children to be killed: this test program again, holding memory.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod forked;
pub mod freezer;
pub mod hung;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reclaim::Identity;
use rustix::process::{Pid, Signal, kill_process};

pub const HELPER: &str = "holds_memory_for_another_test";
const MIB_VARIABLE: &str = "RECLAIM_TEST_HOLD_MIB";
const ROLE_VARIABLE: &str = "RECLAIM_TEST_ROLE";
/// After so many seconds a child whose test has failed ends by itself.
const LEFT_ALONE_S: u32 = 100;
/// How long anything may take that does happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The helper's body: call it from an ignored test named [`HELPER`].
pub fn hold_memory() {
    let Ok(mib) = std::env::var(MIB_VARIABLE) else { return };
    let mut memory = vec![0u8; mib.parse::<usize>().unwrap() << 20];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    let role = std::env::var(ROLE_VARIABLE).unwrap_or_default();
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("children", count) => have_children(count.parse().unwrap()),
        ("hang", path) => {
            say_holding();
            // Never answered.
            let _ = std::fs::metadata(format!("{path}/anything"));
        }
        ("share", _) => share_memory(),
        ("patient", _) => {
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGTERM, ignore as *const () as usize) };
        }
        ("polite", _) => {
            // SAFETY: the handler calls _exit, which a handler may.
            unsafe { libc::signal(libc::SIGTERM, exit_3 as *const () as usize) };
        }
        _ => {}
    }
    say_holding();
    loop {
        std::thread::sleep(Duration::from_secs(120));
        std::hint::black_box(&memory);
    }
}

extern "C" fn ignore(_: i32) {}

extern "C" fn exit_3(_: i32) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(3) }
}

fn say_holding() {
    println!("\nholding {}", std::process::id());
}

/// Children, who have a child each, and hold nothing but what they inherit.
fn have_children(count: u32) {
    for _ in 0..count {
        // SAFETY: the children only wait for signals.
        unsafe {
            if libc::fork() == 0 {
                libc::fork();
                libc::alarm(LEFT_ALONE_S);
                loop {
                    libc::pause();
                }
            }
        }
    }
}

/// A child that is a process of its own in the same memory, and waits.
fn share_memory() {
    extern "C" fn wait(_: *mut libc::c_void) -> i32 {
        loop {
            // SAFETY: waits for a signal.
            unsafe {
                libc::alarm(LEFT_ALONE_S);
                libc::pause();
            }
        }
    }
    let stack = Box::leak(Box::new([0u128; 4096]));
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the child gets a stack of its own, which is never freed, and only waits on it.
    let pid = unsafe { libc::clone(wait, top, flags, std::ptr::null_mut()) };
    assert!(pid > 0);
}

/// A child, killed and waited for on drop at the latest.
pub struct Holder {
    pub child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    /// As it sees itself: another one in a pid namespace of its own.
    pub own_pid: u32,
}

/// The command that becomes a helper.
pub fn helper(mib: usize, role: &str) -> Command {
    in_front(&mut Command::new(std::env::current_exe().unwrap()), mib, role)
}

/// The same behind another program that starts it, like `unshare`.
pub fn behind(program: &str, arguments: &[&str], mib: usize, role: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(std::env::current_exe().unwrap());
    in_front(&mut command, mib, role)
}

fn in_front(command: &mut Command, mib: usize, role: &str) -> Command {
    let mut whole = Command::new(command.get_program());
    whole
        .args(command.get_args())
        .args([HELPER, "--exact", "--ignored", "--nocapture"])
        .env(MIB_VARIABLE, mib.to_string())
        .env(ROLE_VARIABLE, role);
    whole
}

impl Holder {
    /// Starts a child that holds so much memory.
    pub fn start(mib: usize) -> Self {
        Self::run(&mut helper(mib, ""))
    }

    /// The same with a role.
    pub fn with_role(mib: usize, role: &str) -> Self {
        Self::run(&mut helper(mib, role))
    }

    /// Starts one by its command.
    pub fn run(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut holder = Self { child, lines, own_pid: 0 };
        holder.own_pid = holder.number_after("holding ");
        holder
    }

    /// The number that it prints after a word; what it prints before is lost.
    pub fn number_after(&mut self, word: &str) -> u32 {
        let found = self.lines.by_ref().map(|line| line.unwrap());
        let mut found = found.filter_map(|line| line.strip_prefix(word)?.parse().ok());
        found.next().expect("it never said so")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn identity(&self) -> Identity {
        identity(self.pid())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Not waited for yet, so its pid is its own, and its children's are, being held by it.
        if let Ok(None) = self.child.try_wait() {
            let young = children(self.pid());
            let old: Vec<u32> = young.iter().flat_map(|child| children(*child)).collect();
            for pid in young.into_iter().chain(old) {
                let pid = Pid::from_raw(pid as i32).unwrap();
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who has this pid.
pub fn identity(pid: u32) -> Identity {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let uid = rustix::process::getuid().as_raw();
    Identity { pid, uid, start_ticks: fields[19].parse().unwrap() }
}

/// The letter of its state; `None` when it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The children of all its threads.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let pids = |list: String| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    lists.flat_map::<Vec<u32>, _>(pids).collect()
}

/// Waits until something is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
