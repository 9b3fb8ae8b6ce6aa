//! `headroom earlyoom`: takes earlyoom's command line and does what earlyoom does, with our way of killing.
//!
//! What is decided is in `memory_ledger::earlyoom`; here are
//!
//! * [`arguments`]: earlyoom's command line;
//! * [`pattern`]: its regular expressions, which are those of the C library;
//! * [`processes`]: what is read of each process;
//! * [`hooks`]: programs that are told;
//! * [`strike`]: the signal, and the wait for the memory;
//! * [`say`]: where its words go.

mod arguments;
mod hooks;
mod pattern;
mod processes;
mod say;
mod strike;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use machine_memory::meminfo::Meminfo;
use memory_ledger::earlyoom::{Act, Levels, Reading};

use arguments::{Arguments, Parsed};
use processes::Processes;
use say::Say;

/// Without a victim, or without permission, nothing will have changed in a moment.
const RETRY: Duration = Duration::from_secs(1);
/// `/proc/meminfo` cannot be read.
const NO_MEMINFO: u8 = 103;
/// An entry is missing in it.
const NO_ENTRY: u8 = 104;

/// The machine at one moment, and its memory in all, KiB.
struct Machine {
    reading: Reading,
    total: u64,
}

/// Runs until it is ended.
pub fn earlyoom(arguments: &[OsString]) -> ExitCode {
    let machine = match look() {
        Ok(machine) => machine,
        Err((message, code)) => return fail(&message, code),
    };
    let parsed = arguments::parse(arguments, machine.total, machine.reading.swap_total);
    let arguments = match parsed {
        Ok(Parsed::Run(arguments)) => arguments,
        Ok(Parsed::Say(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&error.message, error.code),
    };
    let say = Say::new(arguments.syslog, arguments.debug);
    prepare(&arguments, &say);
    announce(&arguments, &machine, &say);
    watch(&arguments, &say)
}

fn fail(message: &str, code: u8) -> ExitCode {
    eprintln!("headroom earlyoom: {message}");
    ExitCode::from(code)
}

fn look() -> Result<Machine, (String, u8)> {
    let info = Meminfo::read(Path::new("/proc")).map_err(|e| (e.to_string(), NO_MEMINFO))?;
    let kib = |bytes: Option<u64>, name: &str| {
        let missing = || (format!("/proc/meminfo has no {name}"), NO_ENTRY);
        bytes.map(|bytes| bytes >> 10).ok_or_else(missing)
    };
    let reading = Reading {
        available: kib(info.available, "MemAvailable")?,
        anon: kib(info.anon, "AnonPages")?,
        swap_free: kib(info.swap_free, "SwapFree")?,
        swap_total: kib(info.swap_total, "SwapTotal")?,
    };
    Ok(Machine { reading, total: kib(info.total, "MemTotal")? })
}

/// What keeps us able to act; each of it is said where it is refused, and done without.
fn prepare(arguments: &Arguments, say: &Say) {
    if let Err(errno) = ::daemon::lock_memory_in_use() {
        say.warn(&format!(
            "our memory cannot be locked ({errno}): we may be slow when it is short"
        ));
    }
    if !arguments.priority {
        return;
    }
    if let Err(errno) = rustix::process::setpriority_process(None, -20) {
        say.warn(&format!("-p: we cannot be made nice -20: {errno}"));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-100") {
        say.warn(&format!("-p: our oom_score_adj cannot be made -100: {error}"));
    }
}

fn announce(arguments: &Arguments, machine: &Machine, say: &Say) {
    let Levels { memory, swap } = arguments.levels;
    let (total, swap_total) = (machine.total >> 10, machine.reading.swap_total >> 10);
    for warning in &arguments.warnings {
        say.warn(warning);
    }
    say.warn(&format!("memory: {total} MiB, swap: {swap_total} MiB"));
    let line = |signal: &str, memory: f64, swap: f64| {
        say.warn(&format!(
            "{signal} when at most {memory:.2} % of memory and {swap:.2} % of swap are left"
        ));
    };
    line("SIGTERM", memory.term, swap.term);
    line("SIGKILL", memory.kill, swap.kill);
    if arguments.dry_run {
        say.warn("dry run: nobody is signalled");
    }
}

fn watch(arguments: &Arguments, say: &Say) -> ExitCode {
    let mut processes = Processes::new();
    let mut reported: Option<Instant> = None;
    loop {
        let reading = match look() {
            Ok(machine) => machine.reading,
            Err((message, code)) => return fail(&message, code),
        };
        let due = |at: Instant| arguments.report.is_some_and(|every| at.elapsed() >= every);
        if let Some(act) = arguments.levels.act(&reading) {
            say.info(&state(&reading));
            act_on(arguments, act, &mut processes, say);
        } else if arguments.report.is_some() && reported.is_none_or(due) {
            say.info(&state(&reading));
            reported = Some(Instant::now());
        }
        let pause = Duration::from_millis(arguments.levels.pause_ms(&reading));
        say.debug(&format!("next look in {pause:?}"));
        std::thread::sleep(pause);
    }
}

fn state(reading: &Reading) -> String {
    let Reading { available, swap_free, swap_total, .. } = *reading;
    format!(
        "mem avail: {} of {} MiB ({:.2}%), swap free: {} of {} MiB ({:.2}%)",
        available >> 10,
        reading.total() >> 10,
        reading.memory_percent(),
        swap_free >> 10,
        swap_total >> 10,
        reading.swap_percent(),
    )
}

fn act_on(arguments: &Arguments, act: Act, processes: &mut Processes, say: &Say) {
    say.warn(match act {
        Act::Term => "memory is short: below the level of SIGTERM",
        Act::Kill => "memory is short: below the level of SIGKILL",
    });
    let begun = Instant::now();
    let victim = processes.choose(arguments, say);
    say.debug(&format!("the choice took {:?}", begun.elapsed()));
    // The look at all processes took its time.
    let Some(act) = look().ok().and_then(|machine| arguments.levels.act(&machine.reading)) else {
        return say.warn("memory is back; nobody has to go");
    };
    let Some(victim) = victim else {
        say.warn("nobody can be killed; trying again in a second");
        hooks::notice(arguments, "nobody can be killed; trying again in a second", say);
        return std::thread::sleep(RETRY);
    };
    strike::strike(arguments, act, &victim, say);
}
