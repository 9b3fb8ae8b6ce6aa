//! The programs of the quick mode, in minutes, with the BPF notifier: those that are spared today
//! still are, and those that are known to be killed still are.

use std::process::Command;

#[test]
fn ordinary_programs_fare_under_a_limit_as_they_do_today() {
    if let Some(why) = harness::missing() {
        test_support::skip(why);
        return;
    }
    let mut innocents = Command::new(env!("CARGO_BIN_EXE_innocents"));
    let status = innocents.args(["--backend", "bpf"]).status().unwrap();
    assert!(status.success(), "see the table above");
}
