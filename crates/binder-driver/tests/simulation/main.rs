//! A random simulation of clients of the driver: processes start and exit, call, reply, nest calls,
//! free, count references, watch for deaths, are interrupted, fault and send invalid commands.
//! After each step the driver's invariants are checked, no thread with work may be asleep, and the
//! returns of honest clients must agree with their commands. A run depends on its seed only: a
//! failure replays exactly.
//!
//! `HEADROOM_SEED` (default 4), `HEADROOM_SEEDS` (number of seeds from there, default 1) and
//! `HEADROOM_STEPS` of each (default 10,000) select the run.

#[path = "../common/mod.rs"]
mod common;

mod actions;
mod client;
mod random;

use std::collections::BTreeMap;
use std::path::Path;

use actions::{Disturbance, Simulation};
use binder_driver::state::{self, SavedDriver};
use binder_driver::{Driver, PageSize};
use binder_uapi::returns::*;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")),
        Err(_) => default,
    }
}

/// Prints the seed and the last steps when a run fails.
struct Report<'a>(&'a mut Simulation, u64);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("HEADROOM_SEED={} failed at step {}; the last ones:", self.1, self.0.step);
            self.0.log.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// Runs a seed; returns a digest of everything that its clients received, and of the logs.
fn run(seed: u64, steps: u64, disturbance: Disturbance) -> u64 {
    let mut simulation = Simulation::new(seed, disturbance);
    let report = Report(&mut simulation, seed);
    for _ in 0..steps {
        report.0.step();
        if report.0.step % 100 == 0 {
            let text = print_all(&report.0.world.driver);
            report.0.fold_text(&text);
        }
        if report.0.step % 5_000 == 0 {
            report.0.end();
        }
    }
    report.0.end();
    assert_lively(&report.0.returns, steps);
    report.0.digest
}

/// The logs can be printed in any state of the driver.
fn print_all(driver: &Driver) -> String {
    let text =
        driver.state() + &driver.transactions() + &driver.stats() + &driver.transaction_log();
    let processes: usize = driver.pids().iter().map(|&pid| driver.process_state(pid).len()).sum();
    assert!(processes <= text.len());
    text
}

/// Returns that occur dozens of times in 10,000 steps. Numbers are counters of the simulation.
const COMMON: [u32; 18] = [
    BR_TRANSACTION,
    BR_REPLY,
    BR_TRANSACTION_COMPLETE,
    BR_DEAD_REPLY,
    BR_FAILED_REPLY,
    BR_SPAWN_LOOPER,
    BR_INCREFS,
    BR_ACQUIRE,
    BR_RELEASE,
    BR_DECREFS,
    BR_FROZEN_REPLY,
    BR_TRANSACTION_PENDING_FROZEN,
    // Freezes that failed and succeeded at once.
    0,
    1,
    // Files: installed, and refused.
    4,
    5,
    // Reclaimed idle pages.
    6,
    // Deferred files.
    7,
];

/// Returns that occur once to twenty times in 10,000 steps.
const RARE: [u32; 8] = [
    BR_DEAD_BINDER,
    BR_CLEAR_DEATH_NOTIFICATION_DONE,
    BR_FROZEN_BINDER,
    BR_CLEAR_FREEZE_NOTIFICATION_DONE,
    // Freezes that failed and succeeded after a wait.
    2,
    3,
    // Held confirmations: signals for their readers, and intervals that found some.
    8,
    9,
];

/// Checks that every kind of return occurred in a long run, which would test little otherwise.
fn assert_lively(returns: &BTreeMap<u32, u64>, steps: u64) {
    let count = |word: &u32| (*word, returns.get(word).copied().unwrap_or(0));
    let common: Vec<_> = COMMON.iter().map(count).collect();
    let rare: Vec<_> = RARE.iter().map(count).collect();
    if steps >= 10_000 {
        println!("returns: {common:?}; {rare:?}");
        assert!(common.iter().all(|&(_, count)| count > 0), "a dull run: {common:?}");
    }
    if steps >= 100_000 {
        assert!(rare.iter().all(|&(_, count)| count > 0), "a dull run: {rare:?}");
    }
}

#[test]
fn random_worlds_keep_every_invariant_and_end_empty() {
    let (seed, steps) = (setting("HEADROOM_SEED", 4), setting("HEADROOM_STEPS", 10_000));
    // Many short histories explore more than one long one.
    let (runs, steps) = if steps > 100_000 { (steps / 100_000, 100_000) } else { (1, steps) };
    let runs = runs * setting("HEADROOM_SEEDS", 1);
    for done in 0..runs {
        let digest = run(seed + done, steps, Disturbance::None);
        if runs < 100 || done % 10_000 == 9_999 {
            println!(
                "seed {}: {steps} steps, digest {digest:016x}; {} done",
                seed + done,
                done + 1
            );
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    let run = |seed| run(seed, 1_500, Disturbance::None);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// `HEADROOM_WRITE_STATE=1` writes the state that is stored: only before the release of its format.
#[test]
fn a_stored_state_is_read_and_written_as_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/states");
    let current = folder.join(state::VERSION.to_string());
    if std::env::var_os("HEADROOM_WRITE_STATE").is_some() {
        let mut simulation = Simulation::new(4, Disturbance::None);
        (0..400).for_each(|_| simulation.step());
        let written = state::write(&SavedDriver::new(&simulation.world.driver)).unwrap();
        std::fs::write(&current, written).unwrap();
    }
    let bytes = std::fs::read(current).unwrap();
    let driver =
        state::read::<SavedDriver<Driver>>(&bytes).unwrap().verify(PageSize::default()).unwrap();
    assert!(driver.snapshot().transactions > 3, "an empty state");
    let written = state::write(&SavedDriver::new(&driver)).unwrap();
    assert!(written == bytes, "the format has changed");
}

#[test]
fn a_restart_at_every_step_changes_no_transcript() {
    let (seed, steps) = (setting("HEADROOM_SEED", 4), setting("HEADROOM_STEPS", 500));
    for seed in seed..seed + setting("HEADROOM_SEEDS", 3) {
        let expected = run(seed, steps, Disturbance::None);
        assert_eq!(run(seed, steps, Disturbance::Restarts), expected, "seed {seed}");
    }
}

#[test]
fn late_memory_at_every_access_changes_no_transcript() {
    let (seed, steps) = (setting("HEADROOM_SEED", 4), setting("HEADROOM_STEPS", 2_000));
    for seed in seed..seed + setting("HEADROOM_SEEDS", 3) {
        let expected = run(seed, steps, Disturbance::None);
        assert_eq!(run(seed, steps, Disturbance::LateMemory), expected, "seed {seed}");
    }
}
