//! The programs of the quick mode, in minutes, with the BPF notifier: programs that were spared
//! still are, and known failures still fail.

use std::process::Command;

#[test]
fn ordinary_programs_have_known_results_under_a_limit() {
    if let Some(why) = harness::missing() {
        test_support::skip(why);
        return;
    }
    let mut innocents = Command::new(env!("CARGO_BIN_EXE_innocents"));
    let status = innocents.args(["--backend", "bpf"]).status().unwrap();
    assert!(status.success(), "see the table above");
}
