//! `report`: reads raw results and writes one static page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice;

use anyhow::{Context, Result};
use bench::results::Measurement;
use clap::Parser;
use report::figures::{Figure, Figures};
use report::{claims, header, inputs, page};

/// Writes a static page of results, with the published figures beside ours; prints the claims on
/// stdout. Fails if one of them is missed that is not known to be.
#[derive(Parser)]
struct Arguments {
    /// Raw results, one JSON object a line; may be given several times. Of a figure measured twice
    /// the last one counts.
    #[arg(long, value_name = "FILE.jsonl")]
    results: Vec<PathBuf>,
    /// What `lab/scenario` printed, one JSON object a run; may be given several times.
    #[arg(long, value_name = "FILE.jsonl")]
    scenarios: Vec<PathBuf>,
    /// What was measured with what: a JSON object, as `lab/versions` prints. `date`, `commit` and
    /// `machine` in it replace what is found out here; the rest is shown as it is.
    #[arg(long, value_name = "FILE.json")]
    info: Option<PathBuf>,
    /// The published figures, in the form of results.
    #[arg(long, value_name = "FILE.jsonl")]
    reference: PathBuf,
    /// Where index.html goes, and results.jsonl: all measurements, each once.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    anyhow::ensure!(
        !(arguments.results.is_empty() && arguments.scenarios.is_empty()),
        "nothing to report: give --results or --scenarios"
    );
    let measured = inputs::read(&arguments.results, &arguments.scenarios)?;
    let published = inputs::read(slice::from_ref(&arguments.reference), &[])?;
    let facts = header::find(arguments.info.as_deref())?;
    let all = measured.iter().cloned().chain(published);
    let figures = Figures::new(all.map(Figure::of).collect());
    let page = page::render(&facts, &figures);
    fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot make {}", arguments.out.display()))?;
    let file = arguments.out.join("index.html");
    fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    write_merged(&arguments, &measured)?;
    print!("{}", claims::text(&figures));
    eprintln!("report: {}", file.display());
    let failures = claims::failures(&figures);
    failures.iter().for_each(|failure| eprintln!("report: {failure}"));
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes all measurements as one file, unless that is the input file.
fn write_merged(arguments: &Arguments, all: &[Measurement]) -> Result<()> {
    let file = arguments.out.join("results.jsonl");
    let real = |path: &Path| fs::canonicalize(path).ok();
    let read = arguments.results.iter().chain(&arguments.scenarios);
    let own = real(&file);
    if own.is_some() && read.map(|path| real(path)).any(|path| path == own) {
        return Ok(());
    }
    let lines: Result<Vec<String>, _> = all.iter().map(serde_json::to_string).collect();
    let text = lines.context("results")?.join("\n") + "\n";
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}
