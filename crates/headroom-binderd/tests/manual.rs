//! The manual has every option of `--help`.

use std::process::Command;

#[test]
fn the_manual_has_every_option() {
    let manual = include_str!("../../../dist/man/headroom-binderd.8").replace("\\-", "-");
    let help = Command::new(env!("CARGO_BIN_EXE_headroom-binderd")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let options: Vec<_> = words.filter(|word| word.len() > 2 && word.starts_with("--")).collect();
    assert!(options.len() > 10, "{help}");
    for option in options {
        assert!(manual.contains(option), "nothing about {option}");
    }
}
