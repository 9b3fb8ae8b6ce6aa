//! Every bound on what owners share is a value of `owners::bounds`, and has a test.

use std::fs;
use std::path::PathBuf;

use owners::bounds::ALL;
use regex::Regex;

mod support;

use support::{root, sources};

#[test]
fn every_bound_has_a_test_in_which_one_owner_wants_all() {
    let sources = sources();
    let exists = |test: &str| {
        let attack = || sources.contains(&format!("name: \"{test}\","));
        sources.contains(&format!("fn {test}(")) || attack()
    };
    let tests = ALL.iter().map(|bound| bound.test);
    let missing: Vec<&str> = tests.filter(|test| !exists(test)).collect();
    assert!(missing.is_empty(), "{missing:?}");
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
            if literal.is_match(production) {
                own.push(path);
            }
        }
    }
    assert!(files > 300, "where are the sources?");
    assert!(own.is_empty(), "move these bounds to owners::bounds: {own:?}");
}
