//! The kill preference of each process: by the administrator's rules, cached per process, and by
//! users for their own processes. Rules take precedence.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use control::oomd::Importance;
use memory_ledger::rules::{Facts, Rule, Rules};
use memory_ledger::{Comm, KillPreference, Process, ProcessId, Uid};
use memory_watch::process::Proc;

use crate::usage::{Answer, BoundedReader, Question};

/// Lifetime of the cache, nanoseconds: a process can move to another cgroup, or execute another
/// program with the same name.
const CACHE_NS: u64 = 5_000_000_000;
/// Maximum number of preferences per user.
const MAX_OF_A_USER: usize = 256;

/// The rules, and their cached results for recent processes.
pub(super) struct RulePreferences {
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
    pub(super) fn new(rules: Rules) -> Self {
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
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The rules, and how many processes each decided about in the last scan.
    pub(super) fn matches(&self) -> impl Iterator<Item = (&Rule, Option<u32>)> {
        self.rules.0.iter().zip(self.processes.iter().copied())
    }

    /// Whether a rule may match this user's processes, so that the kernel program, which has no
    /// rules, must not choose among them. `avoid` rules about units and programs of all users do
    /// not count: they exempt no process, and a limit that is exceeded before a victim is armed
    /// comes first.
    pub(super) fn concern(&self, uid: Uid) -> bool {
        let yields = |rule: &Rule| {
            let chosen_by_process = rule.name.is_some() || rule.cmdline.is_some();
            rule.preference == KillPreference::Avoid && rule.uid.is_none() && !chosen_by_process
        };
        let may_match = |rule: &&Rule| rule.uid.is_none_or(|user| user == uid);
        self.rules.0.iter().filter(may_match).any(|rule| !yields(rule))
    }

    /// Sets the preference of each process by the rules.
    pub(super) fn apply(&mut self, processes: &mut [Process], now_ns: u64) {
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
                    let mut facts = ProcFacts::new(&mut self.proc, &mut self.reader, process);
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
struct ProcFacts<'a> {
    proc: &'a mut Proc,
    reader: &'a mut BoundedReader,
    process: &'a Process,
    cmdline: Option<Option<String>>,
    exe: Option<Option<String>>,
    cgroup: Option<Option<String>>,
}

impl<'a> ProcFacts<'a> {
    fn new(proc: &'a mut Proc, reader: &'a mut BoundedReader, process: &'a Process) -> Self {
        Self { proc, reader, process, cmdline: None, exe: None, cgroup: None }
    }
}

impl Facts for ProcFacts<'_> {
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

/// The users that an account holds memory of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// One user.
    Alone,
    /// Several users.
    Shared,
}

#[derive(Clone, Copy, Debug)]
struct UserPreference {
    uid: Uid,
    preference: KillPreference,
}

/// Users' preferences about their own processes. They apply to kills for the user's own limit,
/// among that user's processes: no user can have another user's process killed before its own.
#[derive(Debug, Default)]
pub(super) struct UserPreferences {
    of: BTreeMap<ProcessId, UserPreference>,
}

impl UserPreferences {
    /// Sets the preference of the user that owns the process.
    pub(super) fn set(&mut self, process: &Process, importance: Importance) -> Result<(), String> {
        let preference = match importance {
            Importance::Ordinary => {
                self.of.remove(&process.id);
                return Ok(());
            }
            Importance::Avoid => KillPreference::Avoid,
            Importance::Prefer => KillPreference::Prefer,
        };
        let of_the_user = self.of.values().filter(|it| it.uid == process.uid).count();
        if of_the_user >= MAX_OF_A_USER && !self.of.contains_key(&process.id) {
            let uid = process.uid;
            return Err(format!(
                "uid {uid} has set the preference of {MAX_OF_A_USER} processes already"
            ));
        }
        self.of.insert(process.id, UserPreference { uid: process.uid, preference });
        Ok(())
    }

    /// Applies a user's preferences to its processes, unless a rule matches them. In a shared
    /// account its processes cannot be spared, since other users' processes would be killed
    /// instead.
    pub(super) fn apply(&self, uid: Uid, processes: &mut [Process], sharing: Sharing) {
        for process in processes.iter_mut().filter(|process| process.uid == uid) {
            if let Some(preference) = self.of.get(&process.id)
                && preference.uid == uid
                && process.preference == KillPreference::Ordinary
                && (sharing == Sharing::Alone || preference.preference != KillPreference::Avoid)
            {
                process.preference = preference.preference;
            }
        }
    }

    /// Drops preferences for processes that are not in this list.
    pub(super) fn forget_gone(&mut self, processes: &[Process]) {
        if self.of.is_empty() || processes.is_empty() {
            return;
        }
        let mut there: Vec<ProcessId> = processes.iter().map(|process| process.id).collect();
        there.sort_unstable();
        self.of.retain(|id, _| there.binary_search(id).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::rules::Pattern;

    use super::*;

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
        let exe = ProcFacts::new(&mut Proc::default(), &mut BoundedReader::default(), &process)
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

    const ALICE: Uid = Uid(7);
    const BOB: Uid = Uid(8);

    fn process(pid: u32, uid: Uid) -> Process {
        Process { id: ProcessId { pid, start_time: 1 }, ..Process::of(uid) }
    }

    #[test]
    fn preferences_apply_to_own_processes_and_rank_below_rules() {
        let mut preferences = UserPreferences::default();
        preferences.set(&process(1, ALICE), Importance::Avoid).unwrap();
        preferences.set(&process(2, ALICE), Importance::Prefer).unwrap();
        let ruled = Process { preference: KillPreference::Never, ..process(2, ALICE) };
        // Another one has the id of the first by now.
        let mut processes = [process(1, BOB), ruled, process(1, ALICE)];
        preferences.apply(ALICE, &mut processes, Sharing::Alone);
        assert_eq!(
            processes.map(|it| it.preference),
            [KillPreference::Ordinary, KillPreference::Never, KillPreference::Avoid]
        );
        preferences.set(&process(1, ALICE), Importance::Ordinary).unwrap();
        let mut processes = [process(1, ALICE)];
        preferences.apply(ALICE, &mut processes, Sharing::Alone);
        assert_eq!(processes[0].preference, KillPreference::Ordinary);
    }

    #[test]
    fn users_of_a_shared_limit_can_prefer_their_own_processes_only() {
        let mut preferences = UserPreferences::default();
        preferences.set(&process(1, ALICE), Importance::Avoid).unwrap();
        preferences.set(&process(2, ALICE), Importance::Prefer).unwrap();
        let mut processes = [process(1, ALICE), process(2, ALICE), process(3, BOB)];
        preferences.apply(ALICE, &mut processes, Sharing::Shared);
        let expected = [KillPreference::Ordinary, KillPreference::Prefer, KillPreference::Ordinary];
        assert_eq!(processes.map(|it| it.preference), expected);
    }

    #[test]
    fn a_user_cannot_fill_our_memory_with_preferences() {
        let mut preferences = UserPreferences::default();
        for pid in 0..MAX_OF_A_USER as u32 {
            preferences.set(&process(pid, ALICE), Importance::Avoid).unwrap();
        }
        assert!(preferences.set(&process(9999, ALICE), Importance::Avoid).is_err());
        preferences.set(&process(9999, BOB), Importance::Avoid).unwrap();
        preferences.set(&process(5, ALICE), Importance::Prefer).unwrap();
        preferences.forget_gone(&[process(5, ALICE), process(9999, BOB)]);
        assert_eq!(preferences.of.len(), 2);
    }
}
