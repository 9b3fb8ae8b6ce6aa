//! Every attack once, in minutes, with the BPF notifier: checks that passed still pass, and known
//! failures still fail.

use std::process::Command;

#[test]
fn what_holds_against_attacks_today_still_holds() {
    if let Some(why) = harness::missing() {
        test_support::skip(why);
        return;
    }
    let mut adversary = Command::new(env!("CARGO_BIN_EXE_adversary"));
    let status = adversary.args(["--backend", "bpf"]).status().unwrap();
    assert!(status.success(), "see the table above");
}
