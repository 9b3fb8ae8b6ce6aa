//! Runs of the lab's out-of-memory scenarios, and their medians.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bench::results::{Key, Measurement};
use serde::Deserialize;

/// Name of the benchmark.
pub const BENCH: &str = "scenario";

/// One run: a line that `lab/scenario` printed.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Run {
    bench: String,
    /// The scenario.
    case: String,
    /// The OOM daemon.
    subject: String,
    /// The machine, and what was measured; null: it did not happen.
    #[serde(flatten)]
    values: BTreeMap<String, serde_json::Value>,
}

/// The metrics of a run, and their units.
const METRICS: [(&str, &str); 9] = [
    ("stall_ms_max", "ms"),
    ("victims_wrong", "processes"),
    ("recover_ms", "ms"),
    ("kernel_oom_kills", "processes"),
    ("observer_late_ms_max", "ms"),
    ("first_death_ms", "ms"),
    ("load_killed", "processes"),
    ("available_mib_min", "MiB"),
    ("over_limit_kib_max", "KiB"),
];

impl Run {
    /// Parses lines of runs. An invalid line is an error that quotes it.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let parse = |(index, line): (usize, &str)| {
            let run: Self = serde_json::from_str(line)
                .with_context(|| format!("line {} is no run of a scenario: {line}", index + 1))?;
            anyhow::ensure!(run.bench == BENCH, "line {} is no scenario: {line}", index + 1);
            Ok(run)
        };
        lines.map(parse).collect()
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.values.get(key)?.as_f64()
    }

    /// The machine that it ran on, as far as it is known.
    fn machine(&self) -> String {
        let text = |key: &str| Some(format!("{key} {}", self.values.get(key)?.as_str()?));
        let number = |key: &str, unit| Some(format!("{} {unit}", self.number(key)?));
        let swap = self.number("swap_mib").is_some_and(|mib| mib > 0.0);
        let swap = swap.then(|| number("swap_mib", "MiB of swap")).flatten();
        let words = [text("kernel"), number("mem_mib", "MiB"), number("cpus", "CPUs"), swap];
        words.into_iter().chain([text("swap_on")]).flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The medians of the runs by scenario, machine and OOM daemon, with the least and the most as
/// `_low` and `_high` if they differ. What did not happen in most runs has no median; if it did not
/// happen in some, there is no most. A case names the machine if there were several.
pub fn medians(runs: &[Run]) -> Vec<Measurement> {
    let mut sets: Vec<(&Run, String, Vec<&Run>)> = Vec::new();
    for run in runs {
        let machine = run.machine();
        let same = |(first, at, _): &&mut (&Run, String, Vec<&Run>)| {
            first.case == run.case && first.subject == run.subject && *at == machine
        };
        match sets.iter_mut().find(same) {
            Some((_, _, set)) => set.push(run),
            None => sets.push((run, machine, vec![run])),
        }
    }
    let several = sets.iter().any(|(_, machine, _)| *machine != sets[0].1);
    let mut all = Vec::new();
    for (first, machine, set) in &sets {
        let several = several && !machine.is_empty();
        let case = if several { format!("{} ({machine})", first.case) } else { first.case.clone() };
        for (metric, unit) in METRICS {
            let mut values: Vec<f64> = set.iter().filter_map(|run| run.number(metric)).collect();
            values.sort_by(f64::total_cmp);
            let happened = values.len();
            values.resize(set.len(), f64::INFINITY);
            let median = f64::midpoint(values[(set.len() - 1) / 2], values[set.len() / 2]);
            if !median.is_finite() {
                continue;
            }
            let mut line = |metric: &str, value| {
                let key = Key { bench: BENCH, case: &case, subject: &first.subject, metric };
                all.push(Measurement::new(key, value, unit, set.len()));
            };
            line(metric, median);
            let (low, high) = (values[0], values[set.len() - 1]);
            if low < high && happened == set.len() {
                line(&format!("{metric}_low"), low);
                line(&format!("{metric}_high"), high);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(subject: &str, stall: u32, recover: &str, swap: u32) -> String {
        format!(
            concat!(
                r#"{{"bench":"scenario","case":"leak","subject":"{subject}","kernel":"6.12","#,
                r#""mem_mib":768,"cpus":2,"swap_mib":{swap},"swap_on":null,"#,
                r#""stall_ms_max":{stall},"recover_ms":{recover},"new":1}}"#
            ),
            subject = subject,
            swap = swap,
            stall = stall,
            recover = recover
        )
    }

    fn of(lines: &[String]) -> Vec<Measurement> {
        medians(&Run::parse_all(&lines.join("\n")).unwrap())
    }

    #[test]
    fn several_runs_become_a_median_with_its_ends() {
        let lines = [run("none", 30, "5", 0), run("none", 10, "null", 0), run("none", 20, "7", 0)];
        let found = of(&lines);
        let found: Vec<(&str, f64)> = found.iter().map(|m| (m.metric.as_str(), m.value)).collect();
        assert_eq!(
            found,
            [
                ("stall_ms_max", 20.0),
                ("stall_ms_max_low", 10.0),
                ("stall_ms_max_high", 30.0),
                ("recover_ms", 7.0),
            ]
        );
    }

    #[test]
    fn a_mostly_missing_value_has_no_median() {
        let found = of(&[run("none", 30, "5", 0), run("none", 10, "null", 0)]);
        assert!(found.iter().all(|m| m.metric.starts_with("stall_ms_max") && m.runs == 2));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn other_machines_are_other_cases() {
        let mut cases: Vec<String> = of(&[run("none", 1, "1", 0), run("none", 1, "1", 512)])
            .into_iter()
            .map(|measurement| measurement.case)
            .collect();
        cases.dedup();
        let machine = "leak (kernel 6.12, 768 MiB, 2 CPUs";
        assert_eq!(cases, [format!("{machine})"), format!("{machine}, 512 MiB of swap)")]);
    }
}
