//! Counts of kernel events, by a private instance of tracefs.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const TRACEFS: &str = "/sys/kernel/tracing";
/// Size of the buffer, KiB per CPU: some ten thousand events.
const BUFFER_KIB: &str = "4096";
/// Limit for other processes to release an instance that is to be removed.
const PATIENCE: Duration = Duration::from_secs(5);

/// One event, being counted. Its instance is removed on drop.
pub struct Trace {
    instance: PathBuf,
    event: PathBuf,
}

impl Trace {
    /// Counts `event`, as `kmem/mm_page_alloc`, where `filter` is true, on behalf of the
    /// processes `pids`. An error names what is missing.
    pub fn start(event: &str, filter: &str, pids: &[u32]) -> Result<Self> {
        Self::start_in(Path::new(TRACEFS), event, filter, pids)
    }

    fn start_in(tracefs: &Path, event: &str, filter: &str, pids: &[u32]) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let known = tracefs.join("events").join(event);
        anyhow::ensure!(known.exists(), "no tracepoint {}", known.display());
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("headroom-bench-{}-{number}", std::process::id());
        let instance = tracefs.join("instances").join(name);
        fs::create_dir(&instance).with_context(|| format!("cannot make {}", instance.display()))?;
        let trace = Self { event: instance.join("events").join(event), instance };
        write(&trace.instance.join("buffer_size_kb"), BUFFER_KIB)?;
        write(&trace.event.join("filter"), filter)?;
        let threads: Result<Vec<Vec<String>>> = pids.iter().map(|pid| threads(*pid)).collect();
        write(&trace.instance.join("options/event-fork"), "1")?;
        write(&trace.instance.join("set_event_pid"), &threads?.concat().join(" "))?;
        write(&trace.event.join("enable"), "1")?;
        Ok(trace)
    }

    /// Number of events so far, including those that are not in the buffer any more.
    pub fn count(&self) -> Result<u64> {
        let folder = self.instance.join("per_cpu");
        let cpus = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        cpus.map(|cpu| {
            let path = cpu?.path().join("stats");
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            Ok(happened(&text))
        })
        .sum()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::write(self.event.join("enable"), "0");
        let until = Instant::now() + PATIENCE;
        // A process that another thread is starting has this process's open files until its exec.
        while let Err(error) = fs::remove_dir(&self.instance) {
            if error.kind() != ErrorKind::ResourceBusy || Instant::now() > until {
                return eprintln!("{} is left behind: {error}", self.instance.display());
            }
            sleep(Duration::from_millis(5));
        }
    }
}

/// The tids of a process: tracefs filters by thread.
fn threads(pid: u32) -> Result<Vec<String>> {
    let folder = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&folder).with_context(|| folder.clone())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
}

/// Events in a CPU's statistics: those in its buffer, and those that were overwritten.
fn happened(stats: &str) -> u64 {
    let of = |line: &str| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "entries" | "overrun").then(|| value.trim().parse::<u64>().ok())?
    };
    stats.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_overruns_are_events_that_happened() {
        let stats = "entries: 12\noverrun: 30\ncommit overrun: 5\nbytes: 7\ndropped events: 1\n";
        assert_eq!(happened(stats), 42);
        assert_eq!(happened(""), 0);
    }

    #[test]
    fn an_event_that_does_not_exist_is_named_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("instances")).unwrap();
        let error = Trace::start_in(folder.path(), "kmem/no_such", "", &[]).err().unwrap();
        assert!(error.to_string().contains("kmem/no_such"), "{error}");
        assert_eq!(fs::read_dir(folder.path().join("instances")).unwrap().count(), 0);
    }

    #[test]
    fn page_allocations_of_this_process_are_seen_and_the_instance_goes_away() {
        let trace = match Trace::start("kmem/mm_page_alloc", "order >= 0", &[std::process::id()]) {
            Ok(trace) => trace,
            Err(why) => return test_support::skip(format_args!("{why:#}")),
        };
        let before = trace.count().unwrap();
        let memory = vec![1u8; 4 << 20];
        assert!(std::hint::black_box(&memory).iter().all(|byte| *byte == 1));
        assert!(trace.count().unwrap() > before);
        let instance = trace.instance.clone();
        drop(trace);
        assert!(!instance.exists());
    }
}
