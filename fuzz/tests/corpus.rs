//! Daily fuzzing: the corpus, and mutations of it. `HEADROOM_FUZZ_RUNS` (per target, default
//! 20,000) and `HEADROOM_SEED` (default 1) set the number and the choice of mutations,
//! `HEADROOM_FUZZ_TARGET` the only target that is mutated;
//! `HEADROOM_WRITE_CORPUS=1` writes the seeds again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fuzz::mutate::{Random, mutate};
use fuzz::{TARGETS, seeds};

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")),
        Err(_) => default,
    }
}

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn corpus(target: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder(target)).unwrap_or_else(|e| panic!("{target}: {e}"));
    let read = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    };
    entries.map(|entry| read(entry.unwrap().path())).collect()
}

/// Prints the input when a target panics.
struct Report<'a>(&'a str, &'a [u8]);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let bytes: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("target {} fails on {bytes}", self.0);
        }
    }
}

#[test]
fn the_seeds_are_in_the_corpus() {
    for (target, _) in TARGETS {
        for (name, seed) in seeds::of(target) {
            let path = folder(target).join(name);
            if std::env::var_os("HEADROOM_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(folder(target)).unwrap();
                std::fs::write(&path, &seed).unwrap();
            }
            let found = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert!(found == seed, "{}: run with HEADROOM_WRITE_CORPUS=1", path.display());
        }
    }
}

#[test]
fn no_target_fails_on_the_corpus_or_what_it_mutates_to() {
    let (runs, seed) = (setting("HEADROOM_FUZZ_RUNS", 20_000), setting("HEADROOM_SEED", 1));
    let only = std::env::var("HEADROOM_FUZZ_TARGET").ok();
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    for (name, target) in TARGETS.into_iter().filter(|(name, _)| wanted(name)) {
        let corpus: Vec<_> = corpus(name).into_values().collect();
        for input in &corpus {
            let _report = Report(name, input);
            target(input);
        }
        let mut random = Random(seed);
        for _ in 0..runs {
            let mut input = corpus[random.below(corpus.len())].clone();
            let other = &corpus[random.below(corpus.len())];
            for _ in 0..1 + random.below(4) {
                mutate(&mut random, &mut input, other);
            }
            let _report = Report(name, &input);
            target(&input);
        }
    }
}
