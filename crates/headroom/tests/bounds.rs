//! Every bound on what owners share is a value of `owners::bounds`, and in the table of
//! `docs/design/owners.md`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use owners::bounds::{ALL, Bound};
use regex::Regex;

const BEGIN: &str = "<!-- bounds -->\n";
const END: &str = "<!-- end of bounds -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn table() -> String {
    let mut text =
        "| Name | Daemon | Resource | All | Reserved for root | One owner | Beyond it | Test |\n\
         |---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for bound in ALL {
        let [all, root, owner] = bound.cells();
        let Bound { name, daemon, resource, share: _, beyond, test } = *bound;
        let daemon = daemon.name();
        let test =
            if test.contains('_') { format!("`{test}`") } else { format!("attack `{test}`") };
        let row = format!(
            "| {name} | {daemon} | {resource} | {all} | {root} | {owner} | {beyond} | {test} |"
        );
        let _ = writeln!(text, "{}", row.replace("|  |", "| |").replace("|  |", "| |"));
    }
    text
}

/// `HEADROOM_UPDATE_BOUNDS=1` writes the table instead.
#[test]
fn the_table_of_bounds_is_the_registry() {
    let page = root().join("docs/design/owners.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("no mark in owners.md");
    let (written, after) = rest.split_once(END).expect("no end mark in owners.md");
    if std::env::var_os("HEADROOM_UPDATE_BOUNDS").is_some() {
        fs::write(&page, format!("{before}{BEGIN}{}{END}{after}", table())).unwrap();
        return;
    }
    assert_eq!(written, table(), "update it: HEADROOM_UPDATE_BOUNDS=1 cargo test --test bounds");
}

#[test]
fn every_bound_is_in_the_registry() {
    let source = fs::read_to_string(root().join("crates/owners/src/bounds.rs")).unwrap();
    let constants = Regex::new(r"pub const ([A-Z_]+): Bound =").unwrap();
    let (_, list) = source.split_once("pub const ALL").unwrap();
    let count = constants.captures_iter(&source).count();
    for constant in constants.captures_iter(&source) {
        assert!(
            list.contains(&format!("    {},\n", &constant[1])),
            "{} is not in ALL",
            &constant[1]
        );
    }
    assert_eq!(count, ALL.len());
}

/// Sizes that are computed at the start, which the registry has in words.
const COMPUTED: &[&str] = &["client-files/src/lib.rs"];

#[test]
fn no_crate_has_a_bound_of_its_own() {
    let literal = Regex::new(r"\b(QuotaSize|Rate) \{\s*(slots|per_second)\b").unwrap();
    let mut own = Vec::new();
    let mut folders: Vec<PathBuf> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("owners"))
        .map(|path| path.join("src"))
        .collect();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let production = text.split("#[cfg(test)]").next().unwrap_or_default();
            files += 1;
            if literal.is_match(production) && !COMPUTED.iter().any(|name| path.ends_with(name)) {
                own.push(path);
            }
        }
    }
    assert!(files > 300, "where are the sources?");
    assert!(own.is_empty(), "move these bounds to owners::bounds: {own:?}");
}
