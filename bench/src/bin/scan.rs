//! Duration of the choice of a victim.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bench::child::unused_uid;
use bench::results::Row;
use bench::statistics::median;
use bench::{sleepers, walk};
use clap::Parser;
use headroom_oomd::oom::{OomManager, control as oom_control};
use memory_ledger::{AccountId, Limit, Requester, Source};
use reclaim::Reaper;

const BENCH: &str = "scan";
/// Numbers of processes, besides those of this machine.
const PROCESSES: [u32; 2] = [1000, 5000];
/// A limit that no user reaches, bytes.
const FAR: u64 = 1 << 40;

/// Measures the time of a victim selection among many processes: by headroom-oomd's own code (all
/// processes, growth, families, herds, score) for the machine and for one limited user, and by the
/// reads of earlyoom. The subjects alternate. Needs root and BPF.
#[derive(Parser)]
struct Arguments {
    /// Selections of each subject
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// The compared scanners.
const SUBJECTS: [&str; 3] = ["headroom, machine", "headroom, user", "earlyoom's reads"];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    PROCESSES.into_iter().try_for_each(|count| measure(count, arguments.rounds))
}

fn measure(count: u32, rounds: u32) -> Result<()> {
    let uid = unused_uid();
    let account = AccountId::User(uid);
    let _sleepers = sleepers::start(count, uid)?;
    let watch = memory_watch::choose_notifier(None).context("cannot watch processes")?.watch;
    let oom = OomManager::builder(watch, Reaper::start(1)?).build();
    let mut oom = oom.context("no OOM manager")?;
    oom.set_limit(account, Limit::new(FAR, None)?, Source::Runtime, Requester::Root)?;
    let mut micros: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        let (mut least, mut found) = (u32::MAX, Vec::new());
        for (who, micros) in micros.iter_mut().enumerate() {
            let begun = Instant::now();
            let considered = match who {
                0 => Some(oom_control::explain_system(&mut oom).considered),
                1 => oom_control::explain(&mut oom, account).map(|it| it.considered),
                _ => Some(walk::walk()?.considered),
            };
            micros.push(begun.elapsed().as_nanos() as f64 / 1e3);
            found.push(considered.unwrap_or(0));
            least = least.min(considered.unwrap_or(0));
        }
        // A scanner that considers fewer processes is faster without merit.
        ensure!(least >= count, "of {count} processes these were looked at: {found:?}");
    }
    let case = format!("{count} processes");
    let theirs = median(&micros[2]).context("no rounds")?;
    for (at, (who, micros)) in SUBJECTS.into_iter().zip(&micros).enumerate() {
        let ours = median(micros).context("no rounds")?;
        let mut row = Row::new(BENCH, &case, who, micros.len());
        row.value("scan_us_p50", ours, "us");
        row.value("scan_us_max", micros.iter().copied().fold(0.0, f64::max), "us");
        if at < 2 {
            row.value("scan_over_reads", ours / theirs, "ratio");
        }
    }
    Ok(())
}
