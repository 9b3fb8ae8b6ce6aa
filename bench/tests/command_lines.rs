//! The command lines of `scripts/bench` are valid.

use std::path::Path;
use std::process::Command;

#[test]
fn the_programs_accept_their_options_in_the_plan_of_make_bench() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/bench");
    let script = std::fs::read_to_string(script).expect("scripts/bench");
    let plan = script.split("<<'PLAN'\n").nth(1).and_then(|rest| rest.split("\nPLAN").next());
    let lines: Vec<&str> = plan.expect("the plan").lines().collect();
    assert!(lines.len() > 10, "{lines:?}");
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let program = Path::new(env!("CARGO_BIN_EXE_roundtrip")).with_file_name(words[0]);
        // Parses the words before it, and then measures nothing.
        let output = Command::new(program).args(&words[1..]).arg("--help").output();
        let output = output.unwrap_or_else(|error| panic!("{line}: {error}"));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
