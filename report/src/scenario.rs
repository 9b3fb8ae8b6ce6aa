//! Runs of the lab's out-of-memory scenarios, and summaries of several runs.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bench::results::{Key, Measurement, Value};
use serde::Deserialize;

/// Name of the benchmark.
pub const BENCH: &str = "scenario";

/// One run: a line that `lab/scenario` printed. `None`: it did not happen, or was not measured.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Run {
    bench: String,
    /// The scenario.
    pub case: String,
    /// The OOM daemon.
    pub subject: String,
    kernel: Option<String>,
    mem_mib: Option<u64>,
    cpus: Option<u64>,
    swap_mib: Option<u64>,
    swap_on: Option<String>,
    stall_ms_max: Option<f64>,
    victims_wrong: Option<f64>,
    recover_ms: Option<f64>,
    kernel_oom_kills: Option<f64>,
    observer_late_ms_max: Option<f64>,
    first_death_ms: Option<f64>,
    load_killed: Option<f64>,
    available_mib_min: Option<f64>,
    over_limit_kib_max: Option<f64>,
    #[serde(default)]
    died: Vec<Death>,
    daemon_survived: Option<bool>,
}

/// The end of a process.
#[derive(Clone, Debug, Deserialize)]
struct Death {
    who: String,
    how: String,
}

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

    /// The machine that it ran on.
    fn machine(&self) -> String {
        let mut words = Vec::new();
        if let Some(kernel) = &self.kernel {
            words.push(format!("kernel {kernel}"));
        }
        if let Some(mib) = self.mem_mib {
            words.push(format!("{mib} MiB"));
        }
        if let Some(cpus) = self.cpus {
            words.push(if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") });
        }
        match (self.swap_mib, &self.swap_on) {
            (Some(0), _) => words.push("no swap".to_owned()),
            (Some(mib), Some(on)) => words.push(format!("{mib} MiB of swap on {on}")),
            (Some(mib), None) => words.push(format!("{mib} MiB of swap")),
            (None, _) => {}
        }
        words.join(", ")
    }
}

/// Several runs of the same OOM daemon in the same scenario on the same machine.
#[derive(Clone, Debug)]
pub struct RunSet {
    /// The scenario.
    pub case: String,
    /// The OOM daemon.
    pub subject: String,
    /// Description of the machine.
    pub machine: String,
    runs: Vec<Run>,
}

/// A figure summarized over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median; infinite if it did not happen in most runs.
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum over the runs in which it happened.
    pub max: f64,
    /// Runs in which it did not happen.
    pub never: usize,
    /// Number of runs.
    pub runs: usize,
}

impl Spread {
    fn of(values: &[Option<f64>]) -> Option<Self> {
        let mut happened: Vec<f64> = values.iter().copied().flatten().collect();
        happened.sort_by(f64::total_cmp);
        let (min, max) = (*happened.first()?, *happened.last()?);
        let mut all = happened.clone();
        all.resize(values.len(), f64::INFINITY);
        let median = f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2]);
        Some(Self { median, min, max, never: all.len() - happened.len(), runs: all.len() })
    }
}

/// A summarized figure: key, unit, value in a run.
type Field = (&'static str, &'static str, fn(&Run) -> Option<f64>);

const FIELDS: [Field; 9] = [
    ("stall_ms_max", "ms", |run| run.stall_ms_max),
    ("victims_wrong", "processes", |run| run.victims_wrong),
    ("recover_ms", "ms", |run| run.recover_ms),
    ("kernel_oom_kills", "processes", |run| run.kernel_oom_kills),
    ("observer_late_ms_max", "ms", |run| run.observer_late_ms_max),
    ("first_death_ms", "ms", |run| run.first_death_ms),
    ("load_killed", "processes", |run| run.load_killed),
    ("available_mib_min", "MiB", |run| run.available_mib_min),
    ("over_limit_kib_max", "KiB", |run| run.over_limit_kib_max),
];

impl RunSet {
    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are none: such a set is never created.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// A summarized figure by its key. `None` if it happened in no run.
    pub fn spread(&self, key: &str) -> Option<Spread> {
        let (_, _, field) = FIELDS.iter().find(|(name, _, _)| *name == key)?;
        Spread::of(&self.runs.iter().map(field).collect::<Vec<_>>())
    }

    /// Processes outside of the load that ended, and how, with the number of runs: `interactive
    /// (signal 9)`.
    pub fn bystanders_died(&self) -> BTreeMap<String, usize> {
        self.count_deaths(|death| death.who != "load")
    }

    /// How the load ended, with the number of runs.
    pub fn load_ended(&self) -> BTreeMap<String, usize> {
        self.count_deaths(|death| death.who == "load")
    }

    fn count_deaths(&self, wanted: impl Fn(&Death) -> bool) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for death in self.runs.iter().flat_map(|run| &run.died).filter(|death| wanted(death)) {
            let name = match death.who.as_str() {
                "load" => death.how.clone(),
                who => format!("{who} ({})", death.how),
            };
            *counts.entry(name).or_insert(0) += 1;
        }
        counts
    }

    /// Number of runs in which the OOM daemon itself ended.
    pub fn daemon_lost(&self) -> usize {
        self.runs.iter().filter(|run| run.daemon_survived == Some(false)).count()
    }
}

/// All runs, by scenario, machine and OOM daemon.
pub struct Runs {
    /// Sets, in the order in which their scenarios first occurred.
    pub sets: Vec<RunSet>,
}

impl Runs {
    /// Groups runs into sets.
    pub fn group(runs: &[Run]) -> Self {
        let mut sets: Vec<RunSet> = Vec::new();
        for run in runs {
            let machine = run.machine();
            let same = |set: &&mut RunSet| {
                set.case == run.case && set.subject == run.subject && set.machine == machine
            };
            if let Some(set) = sets.iter_mut().find(same) {
                set.runs.push(run.clone());
                continue;
            }
            let (case, subject) = (run.case.clone(), run.subject.clone());
            sets.push(RunSet { case, subject, machine, runs: vec![run.clone()] });
        }
        Self { sets }
    }

    /// The medians as measurements, and the minimum and maximum of the runs, if they differ, as
    /// `_low` and `_high`. A case names the machine if there were several.
    pub fn measurements(&self) -> Vec<Measurement> {
        let several = self.sets.iter().any(|set| set.machine != self.sets[0].machine);
        let mut all = Vec::new();
        for set in &self.sets {
            let case = if several && !set.machine.is_empty() {
                format!("{} ({})", set.case, set.machine)
            } else {
                set.case.clone()
            };
            for (key, unit, _) in FIELDS {
                let Some(spread) = set.spread(key).filter(|s| s.median.is_finite()) else {
                    continue;
                };
                let mut line = |metric: &str, value| {
                    let (subject, runs) = (&set.subject, spread.runs);
                    all.push(Measurement::new(
                        Key { bench: BENCH, case: &case, subject, metric },
                        Value { value, unit, runs },
                    ));
                };
                line(key, spread.median);
                // Minimum and maximum, unless there is no maximum: in some run it did not happen at
                // all.
                if spread.min < spread.max && spread.never == 0 {
                    line(&format!("{key}_low"), spread.min);
                    line(&format!("{key}_high"), spread.max);
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(subject: &str, stall: u32, recover: &str, swap: u32) -> String {
        format!(
            concat!(
                r#"{{"bench":"scenario","case":"leak","subject":"{subject}","kernel":"6.12","#,
                r#""mem_mib":768,"cpus":2,"swap_mib":{swap},"swap_on":null,"#,
                r#""stall_ms_max":{stall},"recover_ms":{recover},"#,
                r#""died":[{{"who":"load","how":"signal 9","after_ms":1}}],"new":1}}"#
            ),
            subject = subject,
            swap = swap,
            stall = stall,
            recover = recover
        )
    }

    fn runs(lines: &[String]) -> Runs {
        Runs::group(&Run::parse_all(&lines.join("\n")).unwrap())
    }

    #[test]
    fn several_runs_become_a_median_with_its_ends() {
        let lines = [run("none", 30, "5", 0), run("none", 10, "null", 0), run("none", 20, "7", 0)];
        let runs = runs(&lines);
        let set = &runs.sets[0];
        let stall = Spread { median: 20.0, min: 10.0, max: 30.0, never: 0, runs: 3 };
        assert_eq!((runs.sets.len(), set.spread("stall_ms_max")), (1, Some(stall)));
        let recover = Spread { median: 7.0, min: 5.0, max: 7.0, never: 1, runs: 3 };
        assert_eq!(set.spread("recover_ms"), Some(recover));
        assert_eq!(set.load_ended()["signal 9"], 3);
        assert_eq!(set.machine, "kernel 6.12, 768 MiB, 2 CPUs, no swap");
    }

    #[test]
    fn a_mostly_missing_value_has_no_median() {
        let runs = runs(&[run("none", 30, "5", 0), run("none", 10, "null", 0)]);
        assert_eq!(runs.sets[0].spread("recover_ms").unwrap().median, f64::INFINITY);
        let metrics: Vec<String> = runs.measurements().into_iter().map(|m| m.metric).collect();
        assert_eq!(metrics, ["stall_ms_max", "stall_ms_max_low", "stall_ms_max_high"]);
    }

    #[test]
    fn other_machines_are_other_cases() {
        let runs = runs(&[run("none", 1, "1", 0), run("none", 1, "1", 512)]);
        let mut cases: Vec<String> = runs.measurements().into_iter().map(|m| m.case).collect();
        cases.dedup();
        assert_eq!(
            cases,
            [
                "leak (kernel 6.12, 768 MiB, 2 CPUs, no swap)",
                "leak (kernel 6.12, 768 MiB, 2 CPUs, 512 MiB of swap)"
            ]
        );
    }
}
