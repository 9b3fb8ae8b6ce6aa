//! `cargo run --package tidy`: compares the size and the shape of the crates with `budget.toml`.
//! With `--write` it writes that file, for a change that lowers it.

mod budget;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::budget::Budget;
use crate::source::Source;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn main() -> Result<ExitCode> {
    let crates = Path::new(HERE).join("../../crates");
    let path = Path::new(HERE).join("budget.toml");
    let found = count(&crates)?.keep_excess();
    if std::env::args().nth(1).as_deref() == Some("--write") {
        std::fs::write(&path, found.text()?).context("cannot write budget.toml")?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(&path).context("cannot read budget.toml")?;
    let budget: Budget = toml::from_str(&text).context("budget.toml does not parse")?;
    let violations = budget.violations(&found);
    for violation in &violations {
        eprintln!("tidy: {violation}");
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Counts the production code of all crates in a folder.
fn count(crates: &Path) -> Result<Budget> {
    let mut found = Budget::default();
    for folder in entries(crates)? {
        let name = name_of(&folder);
        for source in production(&folder.join("src"))? {
            *found.lines.entry(name.clone()).or_default() += source.lines;
            let key = |of: &str| format!("{name}/{of}");
            for (of, fields) in &source.fields {
                let most = found.fields.entry(key(of)).or_default();
                *most = (*most).max(*fields);
            }
            for of in &source.types {
                *found.names.entry(key(of)).or_default() += 1;
            }
            for of in &source.implemented {
                *found.impl_files.entry(key(of)).or_default() += 1;
            }
        }
    }
    Ok(found)
}

/// The files of a crate, without those of modules that exist in tests only.
fn production(folder: &Path) -> Result<Vec<Source>> {
    let mut files = BTreeMap::new();
    add_files(folder, &mut files)?;
    let of_tests: Vec<PathBuf> =
        files.iter().flat_map(|(path, file)| test_paths(path, file)).collect();
    files.retain(|path, _| !of_tests.iter().any(|test| path.starts_with(test)));
    Ok(files.into_values().collect())
}

fn add_files(folder: &Path, files: &mut BTreeMap<PathBuf, Source>) -> Result<()> {
    for path in entries(folder)? {
        if path.is_dir() {
            add_files(&path, files)?;
        } else if path.extension().is_some_and(|end| end == "rs") {
            let read = || anyhow::Ok(Source::parse(&std::fs::read_to_string(&path)?)?);
            let source = read().with_context(|| path.display().to_string())?;
            files.insert(path, source);
        }
    }
    Ok(())
}

/// The files and folders of modules that a file declares for tests.
fn test_paths(path: &Path, file: &Source) -> Vec<PathBuf> {
    let is_root = ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| path.ends_with(name));
    let folder = if is_root { path.with_file_name("") } else { path.with_extension("") };
    let paths = file.test_modules.iter();
    paths.flat_map(|name| [folder.join(name), folder.join(format!("{name}.rs"))]).collect()
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
