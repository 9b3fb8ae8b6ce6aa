//! The conformance suite: records the behaviour of a binder driver as a transcript.
//!
//! `conformance --device PATH` plays every case on a device and prints the data sent, the data
//! returned, and the result of each call. The transcript of a kernel's own driver is the reference;
//! `conformance compare` compares another one with it.
//!
//! * `cases`: the scripts, by subject, and their table;
//! * `stage`, `peer`, `transaction`: the vocabulary of scripts;
//! * `process`, `actor`, `arena`: processes that make one system call at a time, as ordered;
//! * `describe`, `names`, `transcript`: text that is the same in every run;
//! * `suite`: a fresh context for every case; `compare`: two transcripts and the known differences.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::compare::{Known, compare};
use crate::shared::{Patience, Threads};
use crate::suite::{Contexts, Setting};

mod actor;
mod arena;
mod cases;
mod compare;
mod describe;
mod names;
mod peer;
mod process;
mod shared;
mod stage;
mod suite;
mod transaction;
mod transcript;

/// Plays the conformance cases on a binder device and prints the transcript.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Job>,
    /// The device. Beside a binder-control every case gets a device of its own.
    #[arg(long, value_name = "PATH")]
    device: Option<PathBuf>,
    /// Play only cases whose name contains this (may be given more than once).
    #[arg(long, value_name = "NAME")]
    filter: Vec<String>,
    /// List the cases instead of playing them.
    #[arg(long)]
    list: bool,
    /// One JSON object a case instead of text.
    #[arg(long)]
    json: bool,
    /// A call that should block, and has not returned for so long, blocks.
    #[arg(long, value_name = "MS", default_value_t = 300)]
    blocks_after: u64,
    /// A call that should return, and has not for so long, hangs, which ends its case.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    hangs_after: u64,
    /// What threads are before their first command.
    #[arg(long, value_enum, default_value_t = Threads::Plain)]
    threads: Threads,
}

#[derive(Subcommand)]
enum Job {
    /// Compares two transcripts case by case. Exit code 1 when a difference is not known.
    Compare {
        /// The transcript that is right.
        reference: PathBuf,
        /// The one that is held against it.
        subject: PathBuf,
        /// Differences that have a reason (TOML). Of several files with the same case, the last
        /// counts.
        #[arg(long, value_name = "FILE")]
        known: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse() {
        Arguments { command: Some(Job::Compare { reference, subject, known }), .. } => {
            run_compare(&reference, &subject, &known)
        }
        arguments => run_suite(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("conformance: {error:#}");
        ExitCode::from(2)
    })
}

fn run_suite(arguments: &Arguments) -> Result<ExitCode> {
    let wanted = |name: &str| {
        arguments.filter.is_empty() || arguments.filter.iter().any(|part| name.contains(part))
    };
    let cases: Vec<_> = cases::all().into_iter().filter(|case| wanted(case.name)).collect();
    if arguments.list {
        for case in &cases {
            println!("{:40} {}", case.name, case.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if cases.is_empty() {
        bail!("no case is called like that; --list shows them");
    }
    let Some(device) = &arguments.device else {
        bail!("--device is missing: the device to play on, such as /dev/binderfs/binder");
    };
    let contexts = Contexts::of(device)?;
    suite::check(&contexts).with_context(|| device.display().to_string())?;
    let patience = Patience {
        blocks: Duration::from_millis(arguments.blocks_after),
        hangs: Duration::from_millis(arguments.hangs_after),
    };
    let setting = Setting { patience, threads: arguments.threads };
    for (at, case) in cases.iter().enumerate() {
        let played = suite::play(case, &contexts, at + 1, setting)
            .with_context(|| format!("case {}", case.name))?;
        let text =
            if arguments.json { serde_json::to_string(&played)? + "\n" } else { played.text() };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_compare(reference: &Path, subject: &Path, lists: &[PathBuf]) -> Result<ExitCode> {
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let transcript = |path: &Path| {
        transcript::parse(&read(path)?)
            .map_err(|why| anyhow::anyhow!("{} is no transcript: {why}", path.display()))
    };
    let mut known = Known::default();
    for path in lists {
        let more = toml::from_str(&read(path)?);
        known.overrule(more.with_context(|| format!("{} does not parse", path.display()))?);
    }
    let reference = transcript(reference)?;
    let findings = compare(&reference, &transcript(subject)?, &known);
    for finding in &findings {
        println!("{}", finding.text());
    }
    let failures = findings.iter().filter(|finding| finding.fails()).count();
    let listed = findings.len() - failures;
    println!("{} cases, {listed} known differences, {failures} failures", reference.len());
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
