//! Checks that `docs/binder-uapi.md` describes the parts of the kernel's interface that ours has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const SUITE: &str = env!("CARGO_BIN_EXE_conformance");

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(HERE).parent().expect("a workspace").to_owned()
}

fn page() -> String {
    read(&root().join("docs/binder-uapi.md"))
}

/// All strings in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of all tables: kernel's interface, ours, tests.
fn rows(page: &str) -> Vec<[String; 3]> {
    let cells = |line: &str| {
        let cells: Vec<String> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
        <[String; 3]>::try_from(cells).unwrap_or_else(|_| panic!("not three columns: {line}"))
    };
    let lines = page.lines().filter(|line| line.starts_with('|'));
    lines.map(cells).filter(|row| row[0] != "What" && !row[0].starts_with("---")).collect()
}

fn cases() -> BTreeSet<String> {
    let listed = Command::new(SUITE).arg("--list").output().expect("the suite starts");
    let listed = String::from_utf8(listed.stdout).expect("text");
    listed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Every source file with tests, in one text.
fn tests() -> String {
    let folders = ["crates", "tests/e2e/tests", "conformance/tests"];
    let mut folders = folders.map(|folder| root().join(folder)).to_vec();
    let mut text = String::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&read(&path));
            }
        }
    }
    text
}

#[test]
fn every_row_has_an_answer_and_evidence() {
    let (page, cases, tests) = (page(), cases(), tests());
    let rows = rows(&page);
    assert!(rows.len() > 50, "{} rows", rows.len());
    for [what, ours, shown] in rows {
        assert!(ours.starts_with("yes") || ours.starts_with("no: "), "{what}: {ours}");
        assert!(quoted(&shown).next().is_some(), "{what}: nothing shows it");
        for name in quoted(&shown) {
            let known = if name.contains('.') {
                cases.contains(name)
            } else {
                tests.contains(&format!("fn {name}("))
            };
            assert!(known, "{what}: there is no {name}");
        }
    }
}

#[test]
fn every_ioctl_command_return_and_object_has_a_row() {
    let rows = rows(&page());
    let named: BTreeSet<&str> = rows.iter().flat_map(|row| quoted(&row[0])).collect();
    let mut count = 0;
    for file in ["ioctl", "command", "returns", "lib"] {
        let source = read(&root().join(format!("crates/binder-uapi/src/{file}.rs")));
        let names = source.lines().filter_map(|line| line.strip_prefix("pub const "));
        let names = names.filter_map(|rest| rest.split([':', ' ']).next());
        for name in names.filter(|name| {
            let prefixes = ["BINDER_TYPE_", "BC_", "BR_", "BINDER_"];
            let ioctl_or_type = file != "lib" || name.starts_with("BINDER_TYPE_");
            prefixes.iter().any(|prefix| name.starts_with(prefix)) && ioctl_or_type
        }) {
            assert!(named.contains(name), "{name} has no row");
            count += 1;
        }
    }
    assert!(count > 60, "{count} names");
}

#[test]
fn every_difference_from_the_kernels_driver_is_documented() {
    let page = page();
    let named: BTreeSet<&str> = quoted(&page).collect();
    let differences = read(&Path::new(HERE).join("known-differences.toml"));
    let cases = differences.lines().filter_map(|line| line.strip_prefix("case = "));
    let cases: Vec<&str> = cases.map(|case| case.trim_matches('"')).collect();
    assert!(!cases.is_empty());
    for case in cases {
        assert!(named.contains(case), "{case} differs and is not in docs/binder-uapi.md");
    }
}
