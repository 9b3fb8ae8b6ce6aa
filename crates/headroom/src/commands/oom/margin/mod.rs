//! `headroom oom margin`: measures how much memory must be left free for a kill to take effect in
//! time.

pub mod peer;

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use headroom_linux::folders;
use machine_memory::Meminfo;
use memory_ledger::Margin;
use reclaim::{Options, Victim};
use serde::Serialize;

use crate::arguments::{self, Globals};
use crate::helpers::clock;
use crate::helpers::output;
use crate::helpers::size::Size;
use peer::Peer;

/// Memory that the measured processes must leave available to others, bytes.
const KEEP_FREE: u64 = 512 << 20;
/// Size of a victim that shows the fixed cost of a kill, bytes.
const SMALL: u64 = 1 << 20;
/// Default size of a victim: the machine's memory divided by this.
const VICTIM_PART: u64 = 4;

/// Content of the JSON output.
#[derive(Serialize)]
struct Measured {
    allocation_bytes_per_s: u64,
    reclaim_bytes_per_s: u64,
    reaction_micros: u64,
    victim_bytes: u64,
    margin_bytes: u64,
    soft_percent: u64,
    cpus: usize,
    size_bytes: u64,
    rounds: u32,
    saved: Option<String>,
}

/// Runs the command.
pub fn margin(globals: &Globals, arguments: &arguments::Margin) -> anyhow::Result<()> {
    let size = arguments.size.0.max(SMALL);
    let Memory { total, available } = Memory::read()?;
    ensure!(
        available >= size.saturating_add(KEEP_FREE),
        "{} are to be measured with, and {} left to others, but only {} are available: use a \
         smaller --size",
        Size(size),
        Size(KEEP_FREE),
        Size(available)
    );
    // If it is refused, the measurement competes with ordinary threads.
    let _ = headroom_daemon::privileges::set_realtime(1);
    let cpus = std::thread::available_parallelism().context("how many CPUs?")?.get();
    let mut margin =
        Margin { allocation_bytes_per_s: 0, reclaim_bytes_per_s: u64::MAX, reaction_ns: 0 };
    for _ in 0..arguments.rounds {
        margin.allocation_bytes_per_s =
            margin.allocation_bytes_per_s.max(per_second(size, allocate(size, cpus)?));
        margin.reclaim_bytes_per_s =
            margin.reclaim_bytes_per_s.min(per_second(size, reclaim(size, cpus - 1)?));
        margin.reaction_ns = margin.reaction_ns.max(reclaim(SMALL, cpus - 1)?);
    }
    let victim = arguments.victim.map_or(total / VICTIM_PART, |size| size.0);
    let hundred = 100 << 30;
    let mut measured = Measured {
        allocation_bytes_per_s: margin.allocation_bytes_per_s,
        reclaim_bytes_per_s: margin.reclaim_bytes_per_s,
        reaction_micros: margin.reaction_ns.div_ceil(1000),
        victim_bytes: victim,
        margin_bytes: margin.bytes(victim),
        soft_percent: margin.soft_bytes(hundred) * 100 / hundred,
        cpus,
        size_bytes: size,
        rounds: arguments.rounds,
        saved: None,
    };
    if arguments.save {
        save(&arguments.file, &measured)
            .with_context(|| format!("cannot keep the result in {}", arguments.file.display()))?;
        measured.saved = Some(arguments.file.display().to_string());
    }
    output::print_as(globals.format(), &measured, || text(&measured))
}

fn text(measured: &Measured) -> String {
    let Measured { cpus, rounds, soft_percent, .. } = measured;
    let per_s = |bytes| format!("{}/s", Size(bytes));
    let mut text = format!(
        "allocation  {:<12} the fastest of {rounds}, by {cpus} CPUs together\n\
         reclaim     {:<12} the slowest of {rounds}: {} of a SCHED_IDLE process beside a busy \
         loop\n\
         reaction    {:<12} the longest of {rounds}, from the signal until the first memory was \
         back\n\
         margin      {:<12} must be free for a victim of {} to be gone in time\n\
         soft limit  {:<12} of a hard one\n",
        per_s(measured.allocation_bytes_per_s),
        per_s(measured.reclaim_bytes_per_s),
        Size(measured.size_bytes),
        clock::length(measured.reaction_micros),
        Size(measured.margin_bytes).to_string(),
        Size(measured.victim_bytes),
        format!("{soft_percent} %"),
    );
    if let Some(saved) = &measured.saved {
        text += &format!("kept in {saved}; headroom-oomd reads it when it starts\n");
    }
    text
}

/// The machine's memory, bytes.
struct Memory {
    total: u64,
    available: u64,
}

impl Memory {
    fn read() -> anyhow::Result<Self> {
        let info = Meminfo::read(Path::new("/proc"))?;
        Ok(Self {
            total: info.total.context("/proc/meminfo has no MemTotal")?,
            available: info.available.context("/proc/meminfo has no MemAvailable")?,
        })
    }
}

fn per_second(bytes: u64, ns: u64) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Time in which all CPUs together fill this much new memory, nanoseconds.
fn allocate(bytes: u64, cpus: usize) -> anyhow::Result<u64> {
    let part = (bytes as usize / cpus).max(1 << 20);
    let start = Instant::now();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let fill = || peer::Memory::filled(part, peer::Pages::Huge).map(drop);
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(fill)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })?;
    Ok(start.elapsed().as_nanos() as u64)
}

/// Time until the memory of a process that hardly gets a CPU is free, nanoseconds.
fn reclaim(bytes: u64, cpu: usize) -> anyhow::Result<u64> {
    let holder = Peer::start(cpu, Some(bytes))?;
    let _busy = Peer::start(cpu, None)?;
    let victim = Victim::open(holder.pid())?;
    let mut reap = victim.kill(&Options::default())?;
    let status = reap.wait()?;
    let back = status.memory_back.context("the memory of a process of ours did not come back")?;
    Ok(back.as_nanos() as u64)
}

/// Writes the file atomically.
fn save(file: &Path, measured: &Measured) -> anyhow::Result<()> {
    let folder = file.parent().context("it is no file's name")?;
    folders::create_public(folder)?;
    let text = format!(
        "# Measured by `headroom oom margin --save`: {} rounds of {} on {} CPUs.\n\
         allocation-bytes-per-s = {}\nreclaim-bytes-per-s = {}\nreaction-us = {}\n",
        measured.rounds,
        Size(measured.size_bytes),
        measured.cpus,
        measured.allocation_bytes_per_s,
        measured.reclaim_bytes_per_s,
        measured.reaction_micros,
    );
    let draft = file.with_extension("toml.new");
    let mut options = fs::OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o644).open(&draft)?;
    opened.write_all(text.as_bytes())?;
    Ok(fs::rename(&draft, file)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_do_not_overflow() {
        assert_eq!(per_second(1 << 30, 1_000_000_000), 1 << 30);
        assert_eq!(per_second(u64::MAX, 0), u64::MAX);
    }
}
