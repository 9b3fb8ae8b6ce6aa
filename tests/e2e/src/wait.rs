//! Bounded waits, and the state of a process in `/proc`.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit after which a test counts as hung. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `done` returns a value; `None` if `patience` is over.
pub fn until<T>(patience: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(value) = done() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// `/proc/PID/status` of a process or thread: `stat` waits for an `execve`. `None`: it was reaped.
pub fn status(tid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{tid}/status")).ok()
}

/// The value of a field of a [`status`].
pub fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// The state letter of a process or thread (`S`, `D`, `T`, `Z`...); `None` if it has been reaped.
pub fn state(tid: u32) -> Option<char> {
    field(&status(tid)?, "State:")?.chars().next()
}

/// Number of descriptors that a process has open; 0 if it has exited.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// The states of all threads of a process, and where in the kernel each of them sleeps.
pub fn describe(pid: u32) -> String {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("process {pid} is gone");
    };
    let mut lines = Vec::new();
    for thread in threads.flatten() {
        let tid = thread.file_name().to_string_lossy().into_owned();
        let state = tid.parse().ok().and_then(state).unwrap_or('?');
        let wchan = fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
        lines.push(format!("thread {tid}: {state} {wchan}"));
    }
    lines.join("; ")
}

/// Waits until the thread sleeps (`S`), so that it has reached the expected blocking call. An
/// earlier short sleep would be mistaken for it, so the sleep must last for a while.
pub fn until_asleep(tid: u32) -> bool {
    let mut in_a_row = 0;
    until(PATIENCE, || {
        in_a_row = if state(tid) == Some('S') { in_a_row + 1 } else { 0 };
        (in_a_row >= 5).then_some(())
    })
    .is_some()
}
