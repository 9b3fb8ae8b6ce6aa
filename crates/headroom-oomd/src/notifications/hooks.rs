//! Programs that the administrator configured.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use owners::{FairQueue, Owner};

use super::queue::Slot;

/// Maximum run time of a program; then it is killed.
pub const MOST_RUN: Duration = Duration::from_secs(10);
/// Interval of checking whether a program has exited.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of programs at a time: more would need memory when it is short.
const AT_A_TIME: usize = 4;

/// Name and value of an environment variable.
pub type Fact = (&'static str, String);

/// Starts a program with the facts in its environment. The kernel's OOM killer may select it.
pub fn start(program: &[String], hook: &str, facts: &[Fact]) -> Result<Child, String> {
    let (path, arguments) = program.split_first().ok_or("there is no program")?;
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.env("HEADROOM_HOOK", hook).env_remove("NOTIFY_SOCKET").current_dir("/");
    for (name, value) in facts {
        // Users choose the names of processes.
        let shown = value.chars().map(|c| if c.is_control() { '?' } else { c });
        command.env(name, shown.collect::<String>());
    }
    // SAFETY: three system calls on memory that is there; they are safe after a fork.
    unsafe {
        command.pre_exec(|| {
            // The daemon's value protects it from the kernel's OOM killer; its children get 0.
            let file =
                libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                libc::write(file, c"0".as_ptr().cast(), 1);
                libc::close(file);
            }
            Ok(())
        });
    }
    command.spawn().map_err(|error| format!("hook {hook:?}: {path} cannot be started: {error}"))
}

/// Waits until the program has exited; calls `on_tick` with its run time meanwhile. Kills it after
/// [`MOST_RUN`]: `None`.
pub fn wait(mut child: Child, mut on_tick: impl FnMut(Duration)) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let took = started.elapsed();
        if took >= MOST_RUN {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        on_tick(took);
        std::thread::sleep(TICK);
    }
}

/// A program to be started.
pub struct Start {
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Name of the hook.
    pub hook: &'static str,
    /// Its environment.
    pub facts: Vec<Fact>,
    /// Returned when the program is started.
    pub slot: Slot,
}

/// Programs that run in the background, and those that wait for them to exit. Owners take turns.
pub struct Running {
    children: Vec<(Child, Instant)>,
    waiting: FairQueue<Owner, Start>,
}

impl Default for Running {
    fn default() -> Self {
        Self { children: Vec::new(), waiting: FairQueue::new(1) }
    }
}

impl Running {
    /// Starts another program, once less than `AT_A_TIME` run.
    pub fn start(&mut self, start: Start) {
        let (owner, uid) = (start.slot.owner, start.slot.uid);
        self.waiting.push(owner, uid, 1, start);
        self.reap();
    }

    /// Drops programs that have exited, kills those that exceed [`MOST_RUN`], and starts those that
    /// wait.
    pub fn reap(&mut self) {
        self.children.retain_mut(|(child, started)| match child.try_wait() {
            Ok(Some(_)) | Err(_) => false,
            Ok(None) if started.elapsed() < MOST_RUN => true,
            Ok(None) => {
                tracing::warn!("a hook's program was killed: it ran for {MOST_RUN:?}");
                let _ = child.kill();
                let _ = child.wait();
                false
            }
        });
        while self.children.len() < AT_A_TIME
            && let Some(Start { program, hook, facts, slot: _ }) = self.waiting.pop()
        {
            match start(&program, hook, &facts) {
                Ok(child) => self.children.push((child, Instant::now())),
                Err(error) => tracing::error!("{error}"),
            }
        }
    }

    /// Number of programs that run or wait.
    pub fn count(&self) -> usize {
        self.children.len() + self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use owners::Uid;

    use super::*;

    #[test]
    fn a_program_finds_the_facts_and_may_be_a_victim() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let script = "echo $HEADROOM_HOOK $HEADROOM_NAME $(cat /proc/self/oom_score_adj) > \"$0\"";
        let program = ["/bin/sh", "-c", script, out.to_str().unwrap()].map(str::to_owned);
        let facts = [("HEADROOM_NAME", "a\0b".to_owned())];
        let mut child = start(&program, "after", &facts).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(out).unwrap(), "after a?b 0\n");
        let missing = start(&["/nonexistent/x".to_owned()], "after", &[]).unwrap_err();
        assert!(missing.contains("/nonexistent/x cannot be started"), "{missing}");
    }

    /// Ends all programs that run.
    fn end(running: &mut Running) {
        for (child, _) in &mut running.children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_few_programs_run_at_a_time_and_owners_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let (other, mut running) = (dir.path().join("other"), Running::default());
        let start = |owner, script: &str| Start {
            program: vec!["/bin/sh".into(), "-c".into(), script.into()],
            hook: "after",
            facts: Vec::new(),
            slot: Slot::of_nobody(Owner::User(Uid(owner))),
        };
        for _ in 0..AT_A_TIME + 20 {
            running.start(start(1000, "exec sleep 60"));
        }
        running.start(start(1001, &format!("touch {}; exec sleep 60", other.display())));
        assert_eq!((running.children.len(), running.count()), (AT_A_TIME, AT_A_TIME + 21));
        // In the next two turns each of them has one.
        for _ in 0..2 {
            running.children[0].0.kill().unwrap();
            running.children[0].0.wait().unwrap();
            running.reap();
        }
        let began = Instant::now();
        while !other.exists() {
            assert!(began.elapsed() < Duration::from_secs(60), "another owner's does not run");
            std::thread::sleep(TICK);
        }
        while running.count() > 0 {
            end(&mut running);
            running.reap();
        }
    }
}
