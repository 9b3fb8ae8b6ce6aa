//! Every attack once, in minutes, with the BPF notifier: checks that passed still pass, and known
//! failures still fail.

use std::process::Command;

#[test]
fn known_defences_hold_against_attacks() {
    if let Some(why) = harness::missing() {
        test_support::skip(why);
        return;
    }
    let mut adversary = Command::new(env!("CARGO_BIN_EXE_adversary"));
    let status = adversary.args(["--backend", "bpf"]).status().unwrap();
    assert!(status.success(), "see the table above");
}
