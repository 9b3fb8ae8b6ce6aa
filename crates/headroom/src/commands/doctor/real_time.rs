//! Programs that run at a real-time priority above that of the binder daemon's event loop.

use std::fs;
use std::path::Path;

use headroom_linux::sched::SchedAttr;
use rustix::process::Pid;

/// Name of the daemon's threads: the kernel keeps 15 bytes.
const DAEMON: &str = "headroom-binder";
/// The level of the daemon's event loop unless `--priority` sets another one.
const DEFAULT_LEVEL: u32 = 1;

struct Thread {
    tid: i32,
    name: String,
    level: u32,
}

/// Describes the levels; an error names the strongest program above the loop.
pub(super) fn above_the_loop() -> Result<String, String> {
    let threads = real_time_threads(Path::new("/proc"));
    let daemon = threads.iter().filter(|thread| thread.name == DAEMON);
    let own = daemon.map(|thread| thread.level).max().unwrap_or(DEFAULT_LEVEL);
    let above = threads.iter().filter(|thread| thread.name != DAEMON && thread.level > own);
    match above.max_by_key(|thread| thread.level) {
        None => Ok(format!("no program runs at a real-time priority above {own}")),
        Some(Thread { tid, name, level }) => Err(format!(
            "{name} (thread {tid}) runs at real-time priority {level}, the event loop at {own}"
        )),
    }
}

/// Threads of programs with a real-time policy. Only files are read that a program which hangs in
/// `execve` does not block.
fn real_time_threads(proc: &Path) -> Vec<Thread> {
    let numbers = |folder: &Path| -> Vec<i32> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let mut found = Vec::new();
    for pid in numbers(proc) {
        let folder = proc.join(pid.to_string());
        // Kernel threads have no memory; the daemon does not compete with those.
        let sizes = fs::read_to_string(folder.join("statm")).unwrap_or_default();
        if sizes.starts_with("0 ") || sizes.is_empty() {
            continue;
        }
        for tid in numbers(&folder.join("task")) {
            let attr = Pid::from_raw(tid).and_then(|tid| SchedAttr::of(Some(tid)).ok());
            if let Some(attr) = attr.filter(SchedAttr::is_realtime) {
                let name = fs::read_to_string(folder.join(format!("task/{tid}/comm")));
                let name = name.unwrap_or_default().trim_end().to_owned();
                found.push(Thread { tid, name, level: attr.priority });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_time_thread_is_found_and_kernel_threads_are_not() {
        std::thread::spawn(|| {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            let find = || real_time_threads(Path::new("/proc")).iter().any(|one| one.tid == own);
            assert!(!find(), "an ordinary thread");
            if SchedAttr::fifo(2).apply(None).is_err() {
                test_support::skip("needs CAP_SYS_NICE");
                return;
            }
            assert!(find());
            assert!(above_the_loop().is_err_and(|error| error.contains("real-time priority")));
            assert!(!real_time_threads(Path::new("/proc")).iter().any(|one| one.tid == 2));
        })
        .join()
        .unwrap();
    }
}
