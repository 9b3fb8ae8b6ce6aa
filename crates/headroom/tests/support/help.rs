//! The commands, as `--help` lists them.

use std::process::Command;

/// The path and help text of each command and group of commands.
pub fn all_commands() -> Vec<(Vec<String>, String)> {
    let mut found = Vec::new();
    all(&[], &mut found);
    found
}

/// Standard output of a command that succeeds.
pub fn stdout_of(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_headroom")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names of the commands that a help text lists.
pub fn commands(help: &str) -> Vec<String> {
    let listed = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
    let lines = listed.lines().take_while(|line| line.starts_with("  "));
    // Further lines of a description are indented deeper.
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| {
        line.split_whitespace().next().filter(|name| *name != "help").map(str::to_owned)
    });
    names.collect()
}

fn all(path: &[String], found: &mut Vec<(Vec<String>, String)>) {
    let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = stdout_of(&arguments);
    for name in commands(&help) {
        all(&[path, &[name]].concat(), found);
    }
    found.push((path.to_vec(), help));
}
