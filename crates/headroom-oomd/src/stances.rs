//! What the rules say of each process, remembered while it is the same process.

use std::borrow::Cow;
use std::collections::HashMap;

use memory_ledger::rules::{Facts, Rules};
use memory_ledger::{Comm, Process, ProcessId, Stance, Uid};
use memory_watch::process::Proc;

/// How often what is remembered is asked anew, nanoseconds: a process can move to another cgroup, or run another
/// program under the same name.
const REMEMBER_NS: u64 = 5_000_000_000;

/// The rules, and what they said.
pub struct Stances {
    rules: Rules,
    proc: Proc,
    known: HashMap<ProcessId, Known>,
    forget_ns: u64,
}

struct Known {
    comm: Comm,
    stance: Stance,
}

impl Stances {
    /// Nothing is known yet.
    pub fn new(rules: Rules) -> Self {
        Self { rules, proc: Proc::default(), known: HashMap::new(), forget_ns: 0 }
    }

    /// What it goes by.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// A rule may be about this user's processes.
    pub fn concern(&self, uid: Uid) -> bool {
        self.rules.0.iter().any(|rule| rule.uid.is_none_or(|user| user == uid))
    }

    /// Gives each process its stance.
    pub fn apply(&mut self, processes: &mut [Process], now_ns: u64) {
        if self.rules.0.is_empty() {
            return;
        }
        if now_ns >= self.forget_ns {
            self.known.clear();
            self.forget_ns = now_ns + REMEMBER_NS;
        }
        for process in processes {
            let known = self.known.get(&process.id).filter(|known| known.comm == process.comm);
            process.stance = match known {
                Some(known) => known.stance,
                None => {
                    let mut facts = Files::new(&mut self.proc, process);
                    let stance = self.rules.stance(&mut facts);
                    self.known.insert(process.id, Known { comm: process.comm, stance });
                    stance
                }
            };
        }
    }
}

/// A process's files, each read once at most.
struct Files<'a> {
    proc: &'a mut Proc,
    process: &'a Process,
    cmdline: Option<Option<String>>,
    exe: Option<Option<String>>,
    cgroup: Option<Option<String>>,
}

impl<'a> Files<'a> {
    fn new(proc: &'a mut Proc, process: &'a Process) -> Self {
        Self { proc, process, cmdline: None, exe: None, cgroup: None }
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
        let path = self.proc.root().join(self.process.id.pid.to_string()).join("exe");
        let read = || Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned());
        self.exe.get_or_insert_with(read).as_deref()
    }

    fn cgroup(&mut self) -> Option<&str> {
        let pid = self.process.id.pid;
        let read = || {
            let paths = self.proc.cgroup(pid).ok()?;
            // On a hybrid system the unified hierarchy is systemd's, and knows the units.
            paths.unified.or(paths.v1_memory)
        };
        self.cgroup.get_or_insert_with(read).as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_ledger::rules::{Pattern, Rule};

    fn ourselves() -> Process {
        let id = ProcessId { pid: std::process::id(), start_time: 1 };
        Process { id, comm: Comm::new(b"test"), ..Process::default() }
    }

    fn rule_about_this_program(stance: Stance) -> Rules {
        let program = std::env::current_exe().unwrap();
        let exe = Some(Pattern::glob(program.to_str().unwrap()).unwrap());
        Rules(vec![Rule { exe, ..Rule::new(stance) }])
    }

    #[test]
    fn a_rule_finds_a_running_program_and_no_other() {
        let mut stances = Stances::new(rule_about_this_program(Stance::Never));
        let gone = ProcessId { pid: u32::MAX / 2, start_time: 1 };
        let mut processes = [ourselves(), Process { id: gone, ..ourselves() }];
        stances.apply(&mut processes, 0);
        assert_eq!(processes.map(|process| process.stance), [Stance::Never, Stance::Ordinary]);
    }

    #[test]
    fn what_is_remembered_is_asked_anew_after_a_while_and_under_another_name() {
        let mut stances = Stances::new(rule_about_this_program(Stance::Avoid));
        let mut said = |rules: Option<Rules>, process: Process, now_ns| {
            if let Some(rules) = rules {
                stances.rules = rules;
            }
            let mut processes = [process];
            stances.apply(&mut processes, now_ns);
            processes[0].stance
        };
        assert_eq!(said(None, ourselves(), 1), Stance::Avoid);
        let prefer = Some(rule_about_this_program(Stance::Prefer));
        assert_eq!(said(prefer, ourselves(), 2), Stance::Avoid, "remembered");
        let renamed = Process { comm: Comm::new(b"other"), ..ourselves() };
        assert_eq!(said(None, renamed, 3), Stance::Prefer);
        assert_eq!(said(None, ourselves(), REMEMBER_NS), Stance::Prefer);
    }
}
