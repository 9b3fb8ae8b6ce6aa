//! The signal, and the wait for the memory.

use std::time::{Duration, Instant};

use memory_ledger::earlyoom::Act;
use reclaim::{Options, Reap, Scope, Victim};
use rustix::process::{Pid, Signal, getpgid, kill_process_group};

use super::arguments::Arguments;
use super::processes::Known;
use super::say::Say;
use super::{RETRY, hooks, look};
use crate::helpers::output::printable;
use crate::helpers::size::Size;
use crate::kill::complaint;

/// How often is looked whether a process that was asked has ended, or time has run out for it.
const TICK: Duration = Duration::from_millis(100);
/// How often the hooks may be told while nobody is really signalled.
const DRY_TICK: Duration = Duration::from_secs(1);

/// Signals the victim and waits for it.
pub fn strike(arguments: &Arguments, act: Act, victim: &Known, say: &Say) {
    let Known { process, name, cmdline } = victim;
    let signal = match act {
        Act::Term => "SIGTERM",
        Act::Kill => "SIGKILL",
    };
    let rss = Size((process.rss_kib.max(0) as u64) << 10);
    let (pid, uid, score) = (process.pid, process.uid, process.oom_score);
    let (name, cmdline) = (printable(name), printable(cmdline));
    say.warn(&format!(
        "{signal} to process {pid} uid {uid} \"{name}\": oom_score {score}, {rss}, cmdline \"{cmdline}\""
    ));
    if arguments.dry_run {
        say.warn("dry run: no signal is sent");
        hooks::after(arguments, victim, say);
        if arguments.has_hooks() {
            std::thread::sleep(DRY_TICK);
        }
        return;
    }
    let pinned = match Victim::open(pid) {
        Ok(pinned) => pinned,
        Err(error) => return say.warn(&error.to_string()),
    };
    hooks::before(arguments, victim, say);
    let begun = Instant::now();
    let done = match act {
        Act::Term => ask(arguments, &pinned, begun, say),
        Act::Kill => kill(arguments, &pinned, say),
    };
    hooks::after(arguments, victim, say);
    match done {
        Ok(()) => {
            say.warn(&format!("process {pid} is gone after {:.3} s", begun.elapsed().as_secs_f64()))
        }
        Err(error) => {
            say.warn(&format!("process {pid} is still there: {error}"));
            hooks::notice(arguments, &format!("process {pid} is still there: {error}"), say);
            std::thread::sleep(RETRY);
        }
    }
}

/// SIGTERM; if memory falls to the level of SIGKILL before it has ended, SIGKILL.
fn ask(arguments: &Arguments, victim: &Victim, begun: Instant, say: &Say) -> Result<(), String> {
    if arguments.group {
        let errno = |errno: rustix::io::Errno| errno.to_string();
        let pid = i32::try_from(victim.pid()).ok().and_then(Pid::from_raw);
        let group = getpgid(pid).map_err(errno)?;
        say.warn(&format!("-g: all of process group {} get it", group.as_raw_nonzero()));
        kill_process_group(group, Signal::TERM).map_err(errno)?;
    } else {
        victim.ask_to_end().map_err(|error| error.to_string())?;
    }
    while !victim.has_exited() {
        if begun.elapsed() >= arguments.patience {
            return Err("it was asked, and has not ended".to_owned());
        }
        let act = look().ok().and_then(|machine| arguments.levels.act(&machine.reading));
        if act == Some(Act::Kill) {
            say.warn(&format!(
                "SIGKILL after {:.1} s: memory got shorter",
                begun.elapsed().as_secs_f64()
            ));
            return kill(arguments, victim, say);
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn kill(arguments: &Arguments, victim: &Victim, say: &Say) -> Result<(), String> {
    let scope = if arguments.group { Scope::Group } else { Scope::Process };
    let options = Options { scope, deadline: arguments.patience, ..Options::default() };
    let mut reap =
        Reap::begin(vec![victim.clone()], &options).map_err(|error| error.to_string())?;
    // Who remains is in the reports.
    let _ = reap.wait();
    let status = reap.status();
    say.warn(&format!(
        "{} of {} processes are gone, {} back",
        status.gone,
        status.victims,
        Size(status.bytes_back)
    ));
    match reap.reports().iter().find_map(|report| complaint(&report.end)) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}
