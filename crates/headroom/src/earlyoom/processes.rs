//! What is read of each process.

use std::fs;
use std::os::unix::fs::MetadataExt;

use memory_ledger::earlyoom::Process;
use memory_watch::process::Proc;

use super::arguments::Arguments;
use super::say::Say;

/// Of the command line so many bytes are shown.
const CMDLINE_BYTES: usize = 256;

/// A process with what is shown of it.
pub struct Known {
    /// What counts.
    pub process: Process,
    /// Its name, 15 bytes at most.
    pub name: String,
    /// Its arguments, joined by blanks.
    pub cmdline: String,
}

/// Reads them all.
pub struct Processes {
    proc: Proc,
    // Kept for its room.
    found: Vec<Process>,
}

impl Processes {
    /// None is read yet.
    pub fn new() -> Self {
        Self { proc: Proc::default(), found: Vec::with_capacity(8192) }
    }

    /// The victim by the rules of the command line; `None`: there is nobody.
    pub fn choose(&mut self, arguments: &Arguments, say: &Say) -> Option<Known> {
        let mut pids = Vec::new();
        if let Err(error) = self.proc.pids(&mut pids) {
            say.warn(&error.to_string());
        }
        pids.sort_unstable();
        self.found.clear();
        for pid in pids {
            // Gone since it was listed.
            let Some(process) = self.read(pid, arguments) else { continue };
            if say.is_debugging() {
                let Process { pid, oom_score, rss_kib, uid, .. } = process;
                let name = comm(pid).unwrap_or_default();
                say.debug(&format!(
                    "pid {pid}: oom_score {oom_score}, {rss_kib} KiB, uid {uid}, {name:?}"
                ));
            }
            self.found.push(process);
        }
        let victim = arguments.taste.choose(&self.found, std::process::id())?.clone();
        let name = comm(victim.pid).unwrap_or_default();
        let mut cmdline = self.proc.cmdline(victim.pid).unwrap_or_default();
        let end = cmdline.char_indices().map(|(at, _)| at).find(|at| *at >= CMDLINE_BYTES);
        cmdline.truncate(end.unwrap_or(cmdline.len()));
        Some(Known { process: victim, name, cmdline })
    }

    fn read(&mut self, pid: u32, arguments: &Arguments) -> Option<Process> {
        let stat = self.proc.stat(pid).ok()?;
        let number = |file: &str| -> Option<i64> {
            fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?.trim().parse().ok()
        };
        let mut process = Process {
            pid,
            parent_pid: stat.ppid,
            uid: fs::metadata(format!("/proc/{pid}")).ok()?.uid(),
            oom_score: number("oom_score")?,
            oom_score_adj: number("oom_score_adj")? as i32,
            zombie: stat.state == b'Z' && stat.threads <= 1,
            rss_kib: (self.proc.statm(pid).ok()?.resident_pages * page_kib()) as i64,
            ..Process::default()
        };
        let patterns = [&arguments.prefer, &arguments.avoid, &arguments.ignore];
        if patterns.iter().any(|pattern| pattern.is_some()) {
            let name = comm(pid)?;
            let [preferred, avoided, ignored] =
                patterns.map(|pattern| pattern.as_ref().is_some_and(|it| it.matches(&name)));
            (process.preferred, process.avoided, process.ignored) = (preferred, avoided, ignored);
        }
        Some(process)
    }
}

fn page_kib() -> u64 {
    rustix::param::page_size() as u64 >> 10
}

fn comm(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    Some(String::from_utf8_lossy(name).into_owned())
}
