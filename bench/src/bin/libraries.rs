//! Round trips through client libraries of other projects, beside a Unix socket on one core in the
//! same run. `scripts/bench-libraries` starts the daemon, the services and this program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bench::callers::Callers;
use bench::measure::{Summary, alternate, block, message};
use bench::peer::{self, Worker};
use bench::pingpong::{self, SeqPacket};
use bench::{affinity, report};
use clap::Parser;

/// Characters of the text that is echoed; as many bytes over the socket.
const LENGTH: usize = 4;

/// Times round trips of clients that other libraries make.
#[derive(Parser)]
struct Arguments {
    /// A client: its name in the results, and a program that times its calls (see
    /// bench/src/callers.rs) once it has printed "ready". Repeatable.
    #[arg(
        long = "client",
        value_name = "NAME=PROGRAM",
        value_parser = named_program,
        required = true
    )]
    clients: Vec<(String, PathBuf)>,
    /// The core of the socket's processes.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Turns of each subject.
    #[arg(long, default_value_t = 20)]
    blocks: usize,
    /// Round trips in a turn.
    #[arg(long, default_value_t = 500)]
    block: usize,
}

fn named_program(text: &str) -> Result<(String, PathBuf)> {
    let (name, program) = text.split_once('=').context("not of the form NAME=PROGRAM")?;
    Ok((name.to_owned(), program.into()))
}

fn main() -> Result<()> {
    peer::serve(pingpong::serve).unwrap_or_else(|| run(&Arguments::parse()))
}

/// Starts a client process.
fn start(name: &str, program: &Path) -> Result<Callers> {
    let mut command = Command::new(program);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let child = child.with_context(|| format!("cannot start {}", program.display()))?;
    let mut worker = Worker::of(child)?;
    let first = worker.answer().with_context(|| name.to_owned())?;
    ensure!(first == "ready", "{name}: {} is not ready: {first}", program.display());
    Ok(Callers::new(name, vec![worker]))
}

fn run(arguments: &Arguments) -> Result<()> {
    affinity::be_eager();
    let mut socket = SeqPacket::start(arguments.cpu).context(SeqPacket::NAME)?;
    let message = message(LENGTH);
    let mut reply = vec![0; message.len()];
    let started = arguments.clients.iter().map(|(name, program)| start(name, program));
    let mut clients = started.collect::<Result<Vec<Callers>>>()?;
    type Turn<'a> = Box<dyn FnMut() -> Result<Vec<u64>> + 'a>;
    let mut subjects: Vec<Turn<'_>> =
        vec![Box::new(|| block(&mut socket, arguments.block, &message, &mut reply))];
    for client in &mut clients {
        subjects.push(Box::new(|| client.calls(arguments.block, LENGTH)));
    }
    let blocks = alternate(&mut subjects, arguments.blocks, |turn| turn())?;
    drop(subjects);
    let names = clients.iter().map(|client| client.name.as_str());
    let names = std::iter::once(SeqPacket::NAME).chain(names);
    let results: Vec<_> = names.zip(blocks.iter().map(|b| Summary::of_blocks(b))).collect();
    report::round_trips("libraries", &format!("{LENGTH} characters"), &results);
    Ok(())
}
