//! The files of raw results: measurements, and runs of scenarios.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bench::results::{self, Measurement, put};

use crate::scenario::{self, Run};

/// Measurements of all files, and the medians of the scenarios: each figure once. The last one read
/// counts, at the position of the first. An error names the file, and the line if there is one.
pub fn read(results: &[PathBuf], scenarios: &[PathBuf]) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for path in results {
        let new = results::parse(&text(path)?).with_context(|| path.display().to_string())?;
        new.into_iter().for_each(|measurement| put(&mut all, measurement));
    }
    let mut runs = Vec::new();
    for path in scenarios {
        runs.extend(Run::parse_all(&text(path)?).with_context(|| path.display().to_string())?);
    }
    scenario::medians(&runs).into_iter().for_each(|measurement| put(&mut all, measurement));
    Ok(all)
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use bench::results::Key;

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
        let all = read(&[first, second], &[]).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].value, 2.0);
    }

    #[test]
    fn a_malformed_line_names_its_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("{}\n\n{{\"bench\":1}}\n", line(1.0));
        let path = file(folder.path(), "bad.jsonl", &text);
        for (results, scenarios) in [(vec![path.clone()], vec![]), (vec![], vec![path.clone()])] {
            let error = read(&results, &scenarios).expect_err("an error");
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
        let error = read(&["/nonexistent/x.jsonl".into()], &[]).expect_err("an error");
        assert!(format!("{error:#}").contains("/nonexistent/x.jsonl"));
    }

    #[test]
    fn the_published_figures_are_those_that_were_printed() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/reference/published.jsonl");
        let all = read(&[path], &[]).unwrap();
        let value = |bench, case, subject, metric| {
            let key = Key { bench, case, subject, metric };
            let found = all.iter().find(|it| it.key() == key);
            found.unwrap_or_else(|| panic!("no {key:?}")).value
        };
        let walk = "published tree walk";
        assert_eq!(value("handles", "0-10000", walk, "rtt_us_mean"), 176.88);
        assert_eq!(value("handles", "0-100000", walk, "last_over_first"), 13.173);
        assert_eq!(value("sendvec", "64 KiB idle", "published kcalloc", "echo_us_mean"), 326.499);
        assert_eq!(
            value("sendvec", "64 KiB idle", "published second series", "echo_us_mean"),
            330.324
        );
        assert_eq!(value("contention", "fifo-1", "published mutex", "max_us"), 248_817.0);
        assert_eq!(value("contention", "nice -20", "published spinlock", "max_over_min"), 389.632);
        let default = "big core, schedutil default";
        assert_eq!(value("reclaim", default, "published expedited", "mb_per_s_high"), 16_386.0);
        assert_eq!(value("reclaim", default, "published own exit", "mb_per_s"), 7282.0);
        let worst = |subject| value("reclaim", "worst of all", subject, "mb_per_s");
        assert_eq!([worst("published own exit"), worst("published expedited")], [856.0, 3236.0]);
    }
}
