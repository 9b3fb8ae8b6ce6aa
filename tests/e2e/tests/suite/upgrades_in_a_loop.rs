//! Suites that run while the daemon is upgraded in a loop.

use std::path::Path;
use std::process::{Command, Output};

use e2e::upgrades::Upgrades;
use e2e::{Bus, Mapping};
use test_support::programs::built;

use crate::upgrade::available;

/// A call that has not returned for so long blocks, milliseconds. A pause must not count as that.
const BLOCKS_AFTER_MS: &str = "1000";
/// Number of upgrades during the suite, which takes much longer.
const MIN_UPGRADES: usize = 24;

#[test]
fn the_conformance_suite_passes_over_upgrades() {
    // The known differences are those with passthrough.
    crate::on_bus(Mapping::Passthrough, play_the_conformance_suite);
}

fn play_the_conformance_suite(bus: &Bus) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance");
    let suite = built("conformance", "conformance");
    let upgrades = Upgrades::start(bus.socket());
    let mut play = Command::new(&suite);
    play.arg("--device").arg(bus.device("binder")).args(["--blocks-after", BLOCKS_AFTER_MS]);
    let transcript = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(transcript.path(), succeed(&mut play).stdout).unwrap();
    let count = upgrades.count().unwrap();
    println!("{}", upgrades.stop().unwrap());
    let mut compare = Command::new(&suite);
    compare.arg("compare").arg(here.join("reference/6.12.txt")).arg(transcript.path());
    succeed(compare.arg("--known").arg(here.join("known-differences.toml")));
    assert!(count >= MIN_UPGRADES, "only {count} upgrades");
}

#[test]
fn a_mixed_load_with_kills_passes_over_upgrades() {
    // Skipped where no bus can be started.
    let Some(bus) = available(Bus::start(Mapping::Passthrough)) else { return };
    bus.stop().unwrap();
    let mut soak = Command::new(env!("CARGO_BIN_EXE_soak"));
    soak.args(["--clients", "40", "--minutes", "0.1"]);
    let output = succeed(soak.args(["--upgrades", &MIN_UPGRADES.to_string()]));
    println!("{}", String::from_utf8_lossy(&output.stdout));
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    output
}
