//! The documents: links lead to files and headings, options exist, and the main ones are short.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use regex::Regex;

mod support;

use support::{root, sources};

/// Maximum size of README.md and ARCHITECTURE.md, bytes: each is meant to be read in a minute.
const SHORT: u64 = 6 * 1024;

/// Every Markdown file of the top folder and below `docs`, with its text.
fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for folder in [root(), root().join("docs"), root().join("docs/design")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 10, "where are the documents? {found:?}");
    found
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let heading = Regex::new(r"(?m)^#+ (.+)$").unwrap();
    let anchor = |found: regex::Captures<'_>| {
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        found[1].to_lowercase().chars().filter(kept).collect::<String>()
    };
    heading.captures_iter(text).map(anchor).map(|anchor| anchor.replace(' ', "-")).collect()
}

#[test]
fn every_link_leads_to_a_file_and_to_a_heading_in_it() {
    let link = Regex::new(r"\]\(([^)#]*)(?:#([^)]+))?\)").unwrap();
    let mut broken = Vec::new();
    for (path, text) in documents() {
        for found in link.captures_iter(&text) {
            let target = &found[1];
            if target.starts_with("https://") {
                continue;
            }
            let file = match target {
                "" => path.clone(),
                target => path.parent().unwrap().join(target),
            };
            let leads_to_a_heading = || {
                let Some(anchor) = found.get(2) else { return true };
                anchors(&fs::read_to_string(&file).unwrap_or_default()).contains(anchor.as_str())
            };
            if !file.exists() || !leads_to_a_heading() {
                broken.push(format!("{}: {}", path.display(), &found[0]));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn readme_and_architecture_are_short() {
    for name in ["README.md", "ARCHITECTURE.md"] {
        let bytes = fs::metadata(root().join(name)).unwrap().len();
        assert!(bytes <= SHORT, "{name} has {bytes} bytes, {SHORT} are allowed");
    }
}

#[test]
fn make_alone_only_builds() {
    let mut make = Command::new("make");
    make.args(["--dry-run", "--no-print-directory"]).current_dir(root());
    // `make test` may run this.
    ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"].iter().for_each(|name| {
        make.env_remove(name);
    });
    let planned = make.output().unwrap();
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    let commands = String::from_utf8(planned.stdout).unwrap();
    assert_eq!(commands.lines().collect::<Vec<_>>(), ["scripts/build --run --release"]);
}

#[test]
fn every_crate_is_in_the_architecture() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let crates = fs::read_dir(root().join("crates")).unwrap();
    let names = crates.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let missing: Vec<String> = names.filter(|name| !text.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?}");
}

#[test]
fn every_option_in_the_documents_is_in_a_manual() {
    // Of docker, of the lab and the benchmarks, and those that the changelog reports as removed.
    const OTHERS: [&str; 9] = [
        "--cap-add",
        "--security-opt",
        "--icount",
        "--ring",
        "--descriptors",
        "--pins",
        "--low-latency",
        "--margin",
        "--workspace",
    ];
    let manuals = ["headroom.1", "headroom-oomd.8", "headroom-binderd.8"]
        .map(|name| fs::read_to_string(root().join("dist/man").join(name)).unwrap())
        .map(|text| text.replace("\\-", "-"))
        .concat();
    let span = Regex::new("`(-[^`]*)`").unwrap();
    let option = Regex::new(r"--[a-z][a-z-]+").unwrap();
    let known: BTreeSet<&str> = option.find_iter(&manuals).map(|found| found.as_str()).collect();
    let mut unknown = Vec::new();
    for (path, text) in documents() {
        for span in span.captures_iter(&text) {
            let all = option.find_iter(span.get(1).unwrap().as_str()).map(|found| found.as_str());
            let all = all.filter(|option| !known.contains(option) && !OTHERS.contains(option));
            unknown.extend(all.map(|option| format!("{}: {option}", path.display())));
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Text without markup and line breaks.
fn plain(text: &str) -> String {
    text.replace("\\-", "-").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_lifetime_of_a_runtime_limit_is_the_same_everywhere() {
    let sentence = "A runtime limit lasts until it is cleared or headroom-oomd is stopped. A \
                    reload keeps it, and so does a crash.";
    for path in [
        "dist/man/headroom.1",
        "dist/man/headroom-oomd.8",
        "dist/man/oomd.toml.5",
        "docs/command-line.md",
        "docs/design/limit-precedence.md",
    ] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        assert_eq!(plain(&text).matches(sentence).count(), 1, "{path}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_headroom"))
        .args(["limit", "set", "--help"])
        .output()
        .expect("cannot run headroom");
    assert!(plain(&String::from_utf8_lossy(&help.stdout)).contains(sentence), "{help:?}");
}

#[test]
fn manual_pages_have_the_standard_sections() {
    for name in ["headroom.1", "headroom-oomd.8", "headroom-binderd.8", "oomd.toml.5"] {
        let text = fs::read_to_string(root().join("dist/man").join(name)).unwrap();
        let sections = ["EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"];
        let mut rest = &text[text.find(".SH SYNOPSIS").unwrap_or_else(|| panic!("{name}"))..];
        for section in sections {
            let at = rest.find(&format!(".SH {section}\n"));
            rest = &rest[at.unwrap_or_else(|| panic!("{name}: {section} in this order"))..];
        }
    }
}

#[test]
fn every_function_of_the_hot_paths_is_in_its_file() {
    let text = fs::read_to_string(root().join("docs/hot-paths.md")).unwrap();
    let row = Regex::new(r"(?m)^\| \d+ \| `([^`]+)` \| `([^`]+)` \|").unwrap();
    let mut missing = Vec::new();
    let mut rows = 0;
    for found in row.captures_iter(&text) {
        rows += 1;
        let (file, function) = (&found[1], &found[2]);
        let source = fs::read_to_string(root().join(file)).unwrap_or_default();
        // Rust, C (also with a pointer as the result), and the macro of libbpf that defines a
        // program.
        let definitions = [
            format!("fn {function}"),
            format!(" {function}("),
            format!("*{function}("),
            format!("({function},"),
        ];
        if !definitions.iter().any(|definition| source.contains(definition)) {
            missing.push(format!("{file}: {function}"));
        }
    }
    assert!(rows > 20 && missing.is_empty(), "{rows} rows; {missing:#?}");
}

#[test]
fn the_tests_of_the_promises_exist() {
    let sources = sources();
    let test = Regex::new("`([a-z0-9_]{20,})`").unwrap();
    let attack = Regex::new("attacks? ((?:`[a-z-]+`(?:, )?)+)").unwrap();
    let mut missing = Vec::new();
    let mut found = 0;
    let files =
        ["SECURITY.md", "docs/design/trust.md", "docs/design/owners.md", "docs/limitations.md"];
    for file in files {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for name in test.captures_iter(&text) {
            found += 1;
            if !sources.contains(&format!("fn {}(", &name[1])) {
                missing.push(name[1].to_owned());
            }
        }
        for names in attack.captures_iter(&text) {
            for name in names[1].split('`').filter(|name| !name.trim_matches([',', ' ']).is_empty())
            {
                found += 1;
                if !sources.contains(&format!("name: \"{name}\",")) {
                    missing.push(name.to_owned());
                }
            }
        }
    }
    assert!(found > 20 && missing.is_empty(), "{found} names; {missing:#?}");
}
