//! Dependencies: each licence is accepted, and each direct dependency has a documented reason.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

mod support;

use support::root;

/// The workspaces, and the example with dependencies of its own.
const MANIFESTS: [&str; 3] =
    ["Cargo.toml", "tests/clients/Cargo.toml", "examples/rsbinder/Cargo.toml"];

/// Output of `cargo metadata` for a workspace and all of its dependencies.
fn metadata(manifest: &str) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(root().join(manifest))
        .output()
        .expect("cannot run cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().expect("packages").iter()
}

/// The one list of licences: `licenses.allow` of `deny.toml`, which cargo-deny reads as well.
fn accepted() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    let deny: toml::Table = text.parse().expect("deny.toml is TOML");
    let allow = deny["licenses"]["allow"].as_array().expect("licenses.allow");
    allow.iter().map(|name| name.as_str().expect("a string").to_owned()).collect()
}

/// An SPDX expression is accepted if some choice of its licences is.
fn holds(expression: &str, accepted: &BTreeSet<String>) -> bool {
    // "MIT/Apache-2.0" is the notation from before SPDX.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &tokens[..];
    either(&mut rest, accepted) && rest.is_empty()
}

fn either(rest: &mut &[&str], accepted: &BTreeSet<String>) -> bool {
    let mut result = both(rest, accepted);
    while rest.first() == Some(&"OR") {
        *rest = &rest[1..];
        result |= both(rest, accepted);
    }
    result
}

fn both(rest: &mut &[&str], accepted: &BTreeSet<String>) -> bool {
    let mut result = licence(rest, accepted);
    while rest.first() == Some(&"AND") {
        *rest = &rest[1..];
        result &= licence(rest, accepted);
    }
    result
}

fn licence(rest: &mut &[&str], accepted: &BTreeSet<String>) -> bool {
    let Some((&first, after)) = rest.split_first() else { return false };
    *rest = after;
    if first == "(" {
        let result = either(rest, accepted);
        let closed = rest.first() == Some(&")");
        *rest = rest.get(1..).unwrap_or(&[]);
        return result && closed;
    }
    if let [with, exception, after @ ..] = *rest
        && *with == "WITH"
    {
        let name = format!("{first} WITH {exception}");
        *rest = after;
        return accepted.contains(&name);
    }
    accepted.contains(first)
}

#[test]
fn every_dependency_has_an_accepted_licence() {
    let accepted = accepted();
    let mut seen = 0;
    for manifest in MANIFESTS {
        for package in packages(&metadata(manifest)) {
            let expression = package["license"].as_str().unwrap_or("none");
            assert!(
                holds(expression, &accepted),
                "{} {} has the licence '{expression}', which deny.toml does not accept",
                package["name"],
                package["version"]
            );
            seen += 1;
        }
    }
    assert!(seen > 10, "cargo metadata named {seen} packages only");
}

#[test]
fn every_direct_dependency_is_explained() {
    let document = std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let explained: BTreeSet<&str> =
        document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut direct = BTreeSet::new();
    for manifest in MANIFESTS {
        let metadata = metadata(manifest);
        // Packages without a source are our own.
        for ours in packages(&metadata).filter(|package| package["source"].is_null()) {
            let dependencies = ours["dependencies"].as_array().expect("dependencies");
            let foreign = dependencies.iter().filter(|one| !one["source"].is_null());
            direct.extend(foreign.map(|one| one["name"].as_str().expect("a name").to_owned()));
        }
    }
    let direct: BTreeSet<&str> = direct.iter().map(String::as_str).collect();
    let missing: Vec<_> = direct.difference(&explained).collect();
    let stale: Vec<_> = explained.difference(&direct).collect();
    assert!(missing.is_empty(), "docs/dependencies.md does not explain {missing:?}");
    assert!(stale.is_empty(), "docs/dependencies.md explains what is not used: {stale:?}");
}

/// Each package that is compiled for this selection of packages, with its features.
fn features(selection: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p} {f}", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .args(selection)
        .output()
        .expect("cannot run cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    text.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// With other features a dependency, and everything that depends on it, is compiled again.
#[test]
fn make_run_needs_no_other_features_than_make_build() {
    let script = std::fs::read_to_string(root().join("scripts/build")).unwrap();
    let packages = script.lines().find_map(|line| line.trim().strip_prefix("packages=(--package"));
    let packages = packages.expect("the packages of --run").trim_end_matches(')');
    let mut selection = vec!["--package"];
    selection.extend(packages.split_whitespace());
    assert!(selection.contains(&"headroom-oomd"), "{selection:?}");
    let (run, all) = (features(&selection), features(&["--workspace"]));
    let others: Vec<_> = run.difference(&all).collect();
    assert!(others.is_empty(), "name the features in Cargo.toml of the workspace: {others:#?}");
}

#[test]
fn licence_expressions_are_evaluated_by_spdx_rules() {
    let accepted = BTreeSet::from(["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()]);
    for good in [
        "MIT",
        "GPL-2.0 OR MIT",
        "MIT/GPL-2.0",
        "(MIT OR GPL-2.0) AND MIT",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(holds(good, &accepted), "{good}");
    }
    for bad in ["", "GPL-2.0", "MIT AND GPL-2.0", "Apache-2.0", "(MIT", "MIT GPL-2.0", "none"] {
        assert!(!holds(bad, &accepted), "{bad}");
    }
}
