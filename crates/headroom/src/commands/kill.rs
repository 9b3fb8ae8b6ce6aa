//! `headroom kill`: kills processes and reclaims their memory immediately.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use control::Uid;
use reclaim::{End, Mrelease, Options, Reap, Scope, Status, Victim, VictimReport};
use serde::Serialize;

use crate::arguments::{Globals, Kill};
use crate::helpers::output::{self, Format, count, printable};
use crate::helpers::quantity::{Size, duration};

/// Interval of redrawing the progress line.
const DRAWN_EVERY: Duration = Duration::from_millis(50);

/// Content of the JSON output.
#[derive(Serialize)]
struct Killed {
    victims: usize,
    gone: usize,
    bytes_back: u64,
    memory_back_micros: Option<u64>,
    processes: Vec<KilledProcess>,
}

#[derive(Serialize)]
struct KilledProcess {
    pid: u32,
    comm: String,
    uid: Uid,
    bytes_back: u64,
    gone: bool,
    /// Reason why the process has not exited.
    error: Option<String>,
    /// Result of `process_mrelease`.
    released: Option<String>,
    threads_raised: usize,
    boost_refused: Option<String>,
    thawed: bool,
    /// Memory that is not freed by the kill.
    kept: String,
}

/// Runs the command. Exit code 1 if any of the processes could not be killed or is still there.
pub fn kill(globals: &Globals, arguments: &Kill) -> anyhow::Result<ExitCode> {
    let mut victims = Vec::new();
    let mut failures = Vec::new();
    for pid in &arguments.pids {
        match Victim::open(*pid) {
            Ok(victim) => victims.push(victim),
            Err(error) => failures.push(error.to_string()),
        }
    }
    // Real-time priority makes the reclaim fast. If it is refused, the reclaim competes with
    // ordinary threads.
    let _ = headroom_daemon::privileges::set_realtime(1);
    let options = options(arguments);
    let mut reap = Reap::begin(victims, &options).context("no process was killed")?;
    // Killed processes keep their names until their parents wait for them.
    let comms: Vec<String> = reap.reports().iter().map(|r| comm(r.identity.pid)).collect();
    if std::io::stderr().is_terminal() && globals.format() == Format::Text {
        let _ = reap.wait_with_progress(DRAWN_EVERY, |status| draw_line(&progress(&status)));
        draw_line("");
    } else {
        let _ = reap.wait_with_progress(DRAWN_EVERY, |_| {});
    }
    let (status, reports) = (reap.status(), reap.reports());
    failures.extend(reports.iter().filter_map(|report| failure(&report.end)));
    let killed = Killed {
        victims: status.victims,
        gone: status.gone,
        bytes_back: status.bytes_back,
        memory_back_micros: status.memory_back.map(|time| time.as_micros() as u64),
        processes: reports.iter().zip(comms).map(|(report, comm)| describe(report, comm)).collect(),
    };
    if killed.victims > 0 || globals.format() == Format::Json {
        output::print_as(globals.format(), &killed, || {
            let report = if arguments.report { report(&killed) } else { String::new() };
            report + &summary(&killed)
        })?;
    }
    for failure in &failures {
        output::warn(format_args!("{failure}"));
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn options(arguments: &Kill) -> Options {
    let scope = match (arguments.family, arguments.group) {
        (true, _) => Scope::Family,
        (_, true) => Scope::Group,
        _ => Scope::Process,
    };
    Options {
        scope,
        grace: Duration::from_millis(arguments.grace_ms),
        deadline: Duration::from_millis(arguments.deadline_ms),
        measure: arguments.report,
    }
}

fn draw_line(line: &str) {
    // Clears the rest of the line: the previous text may have been longer.
    let _ = write!(std::io::stderr().lock(), "\r{line}\x1b[K");
}

fn progress(status: &Status) -> String {
    let (back, all) = (Size(status.bytes_back), Size(status.bytes));
    format!("{back} of {all} back, {} of {} gone", status.gone, status.victims)
}

/// A paragraph for each process.
fn report(killed: &Killed) -> String {
    let mut text = String::new();
    for process in &killed.processes {
        paragraph(&mut text, process);
    }
    text
}

/// "3.9 GiB back in 118 ms".
fn summary(killed: &Killed) -> String {
    let many = match killed.victims {
        1 => String::new(),
        n => format!(" of {}", count(n as u64, "process", "processes")),
    };
    let back = Size(killed.bytes_back);
    match killed.memory_back_micros {
        Some(micros) => format!("{back}{many} back in {}\n", duration(micros)),
        None => format!("{back}{many} back so far\n"),
    }
}

fn paragraph(text: &mut String, process: &KilledProcess) {
    let KilledProcess { pid, bytes_back, .. } = process;
    let back = Size(*bytes_back);
    let _ = writeln!(text, "{} (pid {pid}): {back} back", printable(&process.comm));
    let mut line = |title: &str, content: &str| {
        let _ = writeln!(text, "    {title:<9} {content}");
    };
    if let Some(released) = &process.released {
        line("memory", released);
    }
    match (process.threads_raised, &process.boost_refused) {
        (0, None) => {}
        (0, Some(refused)) => line("threads", &format!("not raised: {refused}")),
        (n, _) => line("threads", &format!("{} raised", count(n as u64, "thread", "threads"))),
    }
    if process.thawed {
        line("freezer", "taken out of it");
    }
    if !process.kept.is_empty() {
        line("kept", &process.kept);
    }
}

fn describe(report: &VictimReport, comm: String) -> KilledProcess {
    KilledProcess {
        pid: report.identity.pid,
        comm,
        uid: report.identity.uid,
        bytes_back: report.bytes_back,
        gone: report.end == End::Gone,
        error: failure(&report.end),
        released: report.mrelease.map(released),
        threads_raised: report.threads_raised,
        boost_refused: report.boost_refused.map(|errno| errno.to_string()),
        thawed: report.thawed,
        kept: report.holdings.kept(),
    }
}

/// The reason why a victim has not exited, if it has not.
fn failure(end: &End) -> Option<String> {
    match end {
        End::Gone => None,
        End::Refused(error) => Some(error.to_string()),
        End::Remains(error) => Some(error.to_string()),
    }
}

fn released(result: Mrelease) -> String {
    match result {
        Mrelease::Freed => "released from outside".into(),
        Mrelease::Busy => "was busy, so its own exit freed it".into(),
        Mrelease::LettingGo => "freed by its own exit, which was faster".into(),
        Mrelease::NotDying => "shared with a process that is not dying".into(),
        Mrelease::Unsupported => {
            "freed by its own exit: this kernel has no process_mrelease".into()
        }
        Mrelease::Failed(errno) => {
            format!("freed by its own exit: process_mrelease failed: {errno}")
        }
    }
}

fn comm(pid: u32) -> String {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match comm.trim_end() {
        "" => "a process".into(),
        comm => comm.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed() -> Killed {
        let process = KilledProcess {
            pid: 42,
            comm: "eater\x1b".into(),
            uid: Uid(1000),
            bytes_back: 4 << 30,
            gone: true,
            error: None,
            released: Some(released(Mrelease::Freed)),
            threads_raised: 3,
            boost_refused: None,
            thawed: true,
            kept: "64 MiB of shared memory stay".into(),
        };
        Killed {
            victims: 1,
            gone: 1,
            bytes_back: 4 << 30,
            memory_back_micros: Some(118_000),
            processes: vec![process],
        }
    }

    #[test]
    fn the_last_line_has_the_freed_size_and_the_rate() {
        assert_eq!(summary(&killed()), "4.0 GiB back in 118.0 ms\n");
        let two = Killed { victims: 2, memory_back_micros: None, ..killed() };
        assert_eq!(summary(&two), "4.0 GiB of 2 processes back so far\n");
    }

    #[test]
    fn a_report_lists_the_result_of_each_process_and_unfreed_memory() {
        let text = report(&killed());
        for part in [
            "eater\\u{1b} (pid 42): 4.0 GiB back",
            "released from outside",
            "3 threads raised",
            "taken out of it",
            "64 MiB of shared memory stay",
        ] {
            assert!(text.contains(part), "'{part}' is missing in\n{text}");
        }
    }
}
