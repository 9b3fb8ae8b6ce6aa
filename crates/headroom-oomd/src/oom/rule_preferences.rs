//! The kill preference of each process by the administrator's rules, cached per process.

use std::borrow::Cow;
use std::collections::HashMap;

use memory_ledger::rules::{Facts, Rule, Rules};
use memory_ledger::{Comm, KillPreference, Process, ProcessId, Uid};
use memory_watch::process::Proc;

use crate::usage::{Answer, BoundedReader, Question};

/// Lifetime of the cache, nanoseconds: a process can move to another cgroup, or execute another
/// program with the same name.
const CACHE_NS: u64 = 5_000_000_000;

/// The rules, and their cached results for recent processes.
pub struct RulePreferences {
    rules: Rules,
    proc: Proc,
    /// `exe` waits for a process in `execve`, and its path may be on a file server of a user.
    reader: BoundedReader,
    cache: HashMap<ProcessId, Cached>,
    /// How many processes each rule decided about in the last scan; `None`: there was none.
    processes: Vec<Option<u32>>,
    /// When the cache is emptied, nanoseconds, CLOCK_MONOTONIC.
    expires_ns: u64,
}

struct Cached {
    comm: Comm,
    /// Index of the rule that decides.
    rule: Option<usize>,
}

impl RulePreferences {
    /// Starts with an empty cache.
    pub fn new(rules: Rules) -> Self {
        Self {
            processes: vec![None; rules.0.len()],
            rules,
            proc: Proc::default(),
            reader: BoundedReader::default(),
            cache: HashMap::new(),
            expires_ns: 0,
        }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The rules, and how many processes each decided about in the last scan.
    pub fn matches(&self) -> impl Iterator<Item = (&Rule, Option<u32>)> {
        self.rules.0.iter().zip(self.processes.iter().copied())
    }

    /// Whether a rule may match this user's processes, so that the kernel program, which has no
    /// rules, must not choose among them. `avoid` rules about units and programs of all users do
    /// not count: they exempt no process, and a limit that is exceeded before a victim is armed
    /// comes first.
    pub fn concern(&self, uid: Uid) -> bool {
        let yields = |rule: &Rule| {
            let chosen_by_process = rule.name.is_some() || rule.cmdline.is_some();
            rule.preference == KillPreference::Avoid && rule.uid.is_none() && !chosen_by_process
        };
        let may_match = |rule: &&Rule| rule.uid.is_none_or(|user| user == uid);
        self.rules.0.iter().filter(may_match).any(|rule| !yields(rule))
    }

    /// Sets the preference of each process by the rules.
    pub fn apply(&mut self, processes: &mut [Process], now_ns: u64) {
        if self.rules.0.is_empty() {
            return;
        }
        if now_ns >= self.expires_ns {
            self.cache.clear();
            self.expires_ns = now_ns + CACHE_NS;
        }
        self.processes.fill(Some(0));
        for process in processes {
            let cached = self.cache.get(&process.id).filter(|cached| cached.comm == process.comm);
            let rule = match cached {
                Some(cached) => cached.rule,
                None => {
                    let mut facts = Files::new(&mut self.proc, &mut self.reader, process);
                    let rule = self.rules.first(&mut facts);
                    self.cache.insert(process.id, Cached { comm: process.comm, rule });
                    rule
                }
            };
            process.preference = self.rules.preference(rule);
            if let Some(Some(processes)) = rule.and_then(|rule| self.processes.get_mut(rule)) {
                *processes += 1;
            }
        }
    }
}

/// A process's files in `/proc`, each read at most once.
struct Files<'a> {
    proc: &'a mut Proc,
    reader: &'a mut BoundedReader,
    process: &'a Process,
    cmdline: Option<Option<String>>,
    exe: Option<Option<String>>,
    cgroup: Option<Option<String>>,
}

impl<'a> Files<'a> {
    fn new(proc: &'a mut Proc, reader: &'a mut BoundedReader, process: &'a Process) -> Self {
        Self { proc, reader, process, cmdline: None, exe: None, cgroup: None }
    }
}

impl Facts for Files<'_> {
    fn uid(&self) -> Uid {
        self.process.uid
    }

    fn name(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.process.comm.as_bytes())
    }

    fn cmdline(&mut self) -> Option<&str> {
        let pid = self.process.id.pid;
        self.cmdline.get_or_insert_with(|| self.proc.cmdline(pid).ok()).as_deref()
    }

    fn exe(&mut self) -> Option<&str> {
        let (id, owner) = (self.process.id, self.process.owner());
        let read = || {
            // In the midst of `execve`, of which its end would have to be awaited.
            if self.proc.status(id.pid).ok()?.code_bytes == Some(0) {
                return None;
            }
            match self.reader.read(owner, Question::Program(id.pid)) {
                Some(Answer::Program(program)) => program,
                _ => None,
            }
        };
        self.exe.get_or_insert_with(read).as_deref()
    }

    fn cgroup(&mut self) -> Option<&str> {
        let pid = self.process.id.pid;
        let read = || {
            let paths = self.proc.cgroup(pid).ok()?;
            // On a hybrid system systemd manages the unified hierarchy, which contains the units.
            paths.unified.or(paths.v1_memory)
        };
        self.cgroup.get_or_insert_with(read).as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_ledger::rules::Pattern;

    fn ourselves() -> Process {
        let id = ProcessId { pid: std::process::id(), start_time: 1 };
        Process { id, comm: Comm::new(b"test"), ..Process::default() }
    }

    fn rule_about_this_program(preference: KillPreference) -> Rules {
        let program = std::env::current_exe().unwrap();
        let exe = Some(Pattern::glob(program.to_str().unwrap()).unwrap());
        Rules(vec![Rule { exe, ..Rule::new(preference) }])
    }

    #[test]
    fn only_avoid_rules_about_units_and_programs_leave_the_choice_to_the_kernel_program() {
        let any = || Some(Pattern::glob("*").unwrap());
        let avoid = Rule::new(KillPreference::Avoid);
        let unit = Rule { unit: any(), ..avoid.clone() };
        let concerned =
            |rule: &Rule| RulePreferences::new(Rules(vec![rule.clone()])).concern(Uid(1000));
        assert!(!concerned(&unit) && !concerned(&Rule { exe: any(), ..avoid.clone() }));
        assert!(concerned(&Rule { name: any(), ..avoid }));
        assert!(concerned(&Rule { uid: Some(Uid(1000)), ..unit.clone() }));
        assert!(!concerned(&Rule { uid: Some(Uid(1001)), ..unit.clone() }));
        assert!(concerned(&Rule { preference: KillPreference::Never, ..unit }));
    }

    #[test]
    fn a_rule_finds_a_running_program_and_no_other() {
        let mut preferences = RulePreferences::new(rule_about_this_program(KillPreference::Never));
        assert!(preferences.matches().all(|(_, processes)| processes.is_none()));
        let gone = ProcessId { pid: u32::MAX / 2, start_time: 1 };
        let mut processes = [ourselves(), Process { id: gone, ..ourselves() }];
        preferences.apply(&mut processes, 0);
        assert_eq!(
            processes.map(|process| process.preference),
            [KillPreference::Never, KillPreference::Ordinary]
        );
        assert!(preferences.matches().map(|(_, processes)| processes).eq([Some(1)]));
    }

    #[test]
    fn a_program_that_is_mounted_over_another_ones_path_is_not_that_one() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = std::fs::canonicalize("/bin/true").unwrap();
        let script = "mount --bind /bin/sleep \"$1\" && exec \"$1\" 30";
        let mut child = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(&path)
            .spawn()
            .unwrap();
        let link = format!("/proc/{}/exe", child.id());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::fs::read_link(&link).ok().as_ref() != Some(&path) {
            assert!(std::time::Instant::now() < end, "{:?}", std::fs::read_link(&link));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let process = Process { id: ProcessId { pid: child.id(), start_time: 1 }, ..ourselves() };
        let exe = Files::new(&mut Proc::default(), &mut BoundedReader::default(), &process)
            .exe()
            .map(str::to_owned);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(exe, None);
    }

    #[test]
    fn cached_preferences_expire_with_time_and_with_a_new_name() {
        let mut preferences = RulePreferences::new(rule_about_this_program(KillPreference::Avoid));
        let mut preference = |rules: Option<Rules>, process: Process, now_ns| {
            if let Some(rules) = rules {
                preferences.rules = rules;
            }
            let mut processes = [process];
            preferences.apply(&mut processes, now_ns);
            processes[0].preference
        };
        assert_eq!(preference(None, ourselves(), 1), KillPreference::Avoid);
        let mut prefer = rule_about_this_program(KillPreference::Prefer);
        let other = Some(Pattern::glob("/nowhere").unwrap());
        prefer.0.insert(0, Rule { exe: other, ..Rule::new(KillPreference::Avoid) });
        assert_eq!(preference(Some(prefer), ourselves(), 2), KillPreference::Avoid, "remembered");
        let renamed = Process { comm: Comm::new(b"other"), ..ourselves() };
        assert_eq!(preference(None, renamed, 3), KillPreference::Prefer);
        assert_eq!(preference(None, ourselves(), CACHE_NS), KillPreference::Prefer);
    }
}
