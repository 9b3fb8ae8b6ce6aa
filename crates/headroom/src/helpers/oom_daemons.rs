//! Other programs that kill processes when memory runs short.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Their process names, at most 15 bytes.
const NAMES: [&str; 4] = ["earlyoom", "systemd-oomd", "nohang", "oomd"];

/// Processes with such a name whose programs are looked at.
const MOST_CANDIDATES: usize = 64;
/// Longest wait for these. The link to the program of a process waits for its `execve`, which the
/// process can delay without end.
const LONGEST: Duration = Duration::from_secs(5);

/// Those that run, according to the `/proc` in this folder.
pub fn running(proc: &Path) -> Vec<&'static str> {
    let candidates = fs::read_dir(proc)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| Some((name_of(&entry.path())?, entry.path())))
        .take(MOST_CANDIDATES);
    let (results, found) = channel();
    for (name, process) in candidates {
        let results = results.clone();
        std::thread::spawn(move || {
            let _ = results.send(is_of_root(process).then_some(name));
        });
    }
    drop(results);
    let end = Instant::now() + LONGEST;
    let next = || found.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
    let mut found: Vec<&str> = std::iter::from_fn(next).flatten().collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The name of an OOM daemon.
fn name_of(process: &Path) -> Option<&'static str> {
    let comm = fs::read_to_string(process.join("comm")).ok()?;
    NAMES.into_iter().find(|name| *name == comm.trim_end())
}

/// A process can choose its name, so its program must be owned by root.
fn is_of_root(process: PathBuf) -> bool {
    fs::metadata(process.join("exe")).is_ok_and(|program| program.uid() == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn process(proc: &Path, pid: &str, comm: &str, exe: &Path) {
        let folder = proc.join(pid);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
        symlink(exe, folder.join("exe")).unwrap();
    }

    #[test]
    fn a_daemon_is_known_by_its_name_and_by_a_program_of_root() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let proc = tempfile::tempdir().unwrap();
        let [roots, users] = ["roots", "users"].map(|name| proc.path().join(name));
        fs::write(&roots, "").unwrap();
        fs::write(&users, "").unwrap();
        chown(&users, Some(1000), Some(1000)).unwrap();
        process(proc.path(), "1", "earlyoom", &roots);
        process(proc.path(), "2", "earlyoom", &roots);
        process(proc.path(), "3", "systemd-oomd", &users);
        process(proc.path(), "4", "headroom-oomd", &roots);
        process(proc.path(), "5", "nohang", &roots);
        assert_eq!(running(proc.path()), ["earlyoom", "nohang"]);
        assert!(running(Path::new("/nonexistent")).is_empty());
        // A program that cannot be looked at hides no other.
        let Some(hung) = test_support::hung::Hung::mount() else { return };
        process(proc.path(), "6", "oomd", &hung.path().join("program"));
        assert_eq!(running(proc.path()), ["earlyoom", "nohang"]);
        assert!(hung.is_waited_for());
    }
}
