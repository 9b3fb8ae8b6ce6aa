//! The files of raw results: measurements, and runs of scenarios.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::results::{self, Measurement};

use crate::figures::{Figure, Figures};
use crate::scenario::{Run, RunSet, Runs};

/// The content of all files.
#[derive(Default)]
pub struct Inputs {
    /// Measurements, each figure once: the last one read counts, at the position of the first.
    pub measurements: Vec<Measurement>,
    /// Runs of scenarios.
    pub runs: Vec<Run>,
    /// The original lines of all files.
    pub raw: String,
}

impl Inputs {
    /// Reads all files. An error names the file, and the line if there is one.
    pub fn read(results: &[PathBuf], scenarios: &[PathBuf]) -> Result<Self> {
        let mut inputs = Self::default();
        for path in results {
            let text = inputs.take(path)?;
            let new = results::parse(&text).with_context(|| path.display().to_string())?;
            for measurement in new {
                put(&mut inputs.measurements, measurement);
            }
        }
        for path in scenarios {
            let text = inputs.take(path)?;
            let new = Run::parse_all(&text).with_context(|| path.display().to_string())?;
            inputs.runs.extend(new);
        }
        Ok(inputs)
    }

    fn take(&mut self, path: &Path) -> Result<String> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.raw += &text;
        if !self.raw.is_empty() && !self.raw.ends_with('\n') {
            self.raw.push('\n');
        }
        Ok(text)
    }

    /// All measurements, including the medians of the scenarios.
    pub fn all(&self) -> Vec<Measurement> {
        let mut all = self.measurements.clone();
        for measurement in Runs::group(&self.runs).measurements() {
            put(&mut all, measurement);
        }
        all
    }

    /// All figures, including those of the scenarios and the published ones; and the runs of the
    /// scenarios, by set.
    pub fn figures(&self, published: Vec<Measurement>) -> (Figures, Vec<RunSet>) {
        let runs = Runs::group(&self.runs);
        let ours = self.all().into_iter().map(Figure::measured);
        let figures = ours.chain(published.into_iter().map(Figure::published)).collect();
        (Figures::new(figures), runs.sets)
    }
}

/// If a figure is measured several times, the last one counts.
fn put(all: &mut Vec<Measurement>, new: Measurement) {
    let same = |old: &Measurement| {
        (&old.bench, &old.case, &old.subject, &old.metric)
            == (&new.bench, &new.case, &new.subject, &new.metric)
    };
    match all.iter_mut().find(|old| same(old)) {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn line(value: f64) -> String {
        format!(
            concat!(
                r#"{{"bench":"roundtrip","case":"4 B","subject":"pipe","metric":"rtt_us_p50","#,
                r#""value":{},"unit":"us","runs":3,"cpu":"an extra key"}}"#
            ),
            value
        )
    }

    #[test]
    fn the_last_file_takes_precedence_and_extra_keys_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let first = file(folder.path(), "a.jsonl", &line(1.0));
        let second = file(folder.path(), "b.jsonl", &line(2.0));
        let inputs = Inputs::read(&[first, second], &[]).unwrap();
        assert_eq!(inputs.measurements.len(), 1);
        assert_eq!(inputs.measurements[0].value, 2.0);
        assert_eq!(inputs.raw, format!("{}\n{}\n", line(1.0), line(2.0)));
    }

    #[test]
    fn a_malformed_line_names_its_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("{}\n\n{{\"bench\":1}}\n", line(1.0));
        let path = file(folder.path(), "bad.jsonl", &text);
        for (results, scenarios) in [(vec![path.clone()], vec![]), (vec![], vec![path.clone()])] {
            let error = Inputs::read(&results, &scenarios).err().expect("an error");
            let error = format!("{error:#}");
            assert!(error.contains("bad.jsonl"), "{error}");
            // As a scenario already the first line is invalid: it has no run.
            assert!(
                error.contains(if scenarios.is_empty() { "line 3" } else { "line 1" }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Inputs::read(&["/nonexistent/x.jsonl".into()], &[]).err().expect("an error");
        assert!(format!("{error:#}").contains("/nonexistent/x.jsonl"));
    }
}
