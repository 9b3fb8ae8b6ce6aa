//! Programs that the administrator configured.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

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
        command.env(name, value.replace('\0', " "));
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

/// Programs that run in the background.
#[derive(Default)]
pub struct Running {
    children: Vec<(Child, Instant)>,
}

impl Running {
    /// Starts another program, unless `AT_A_TIME` run already.
    pub fn start(&mut self, program: &[String], hook: &str, facts: &[Fact]) {
        self.reap();
        if self.children.len() >= AT_A_TIME {
            tracing::warn!(hook, "{AT_A_TIME} programs run already: not starting another");
            return;
        }
        match start(program, hook, facts) {
            Ok(child) => self.children.push((child, Instant::now())),
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// Drops programs that have exited, and kills those that exceed [`MOST_RUN`].
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
    }

    /// Number of programs that run.
    pub fn count(&self) -> usize {
        self.children.len()
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(std::fs::read_to_string(out).unwrap(), "after a b 0\n");
        let missing = start(&["/nonexistent/x".to_owned()], "after", &[]).unwrap_err();
        assert!(missing.contains("/nonexistent/x cannot be started"), "{missing}");
    }

    #[test]
    fn no_more_than_a_few_run_at_a_time() {
        let mut running = Running::default();
        let program = ["/bin/sleep", "60"].map(str::to_owned);
        for _ in 0..AT_A_TIME + 3 {
            running.start(&program, "after", &[]);
        }
        assert_eq!(running.children.len(), AT_A_TIME);
        for (child, _) in &mut running.children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        running.reap();
        assert_eq!(running.count(), 0);
    }
}
