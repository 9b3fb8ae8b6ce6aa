//! Published figures of other authors, as measurements that are shown beside ours.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use bench::results::{Key, Measurement, Value};

/// Rows of a table; columns are accessed by name.
struct Table {
    name: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn read(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read the published figures {}", path.display()))?;
        Self::parse(name, &text)
    }

    /// Parses plain cells without quotes, the format of these files.
    fn parse(name: &str, text: &str) -> Result<Self> {
        let mut lines = text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()));
        let columns: Vec<String> =
            lines.next().with_context(|| format!("{name} is empty"))?.collect();
        let rows: Vec<Vec<String>> = lines.map(Iterator::collect).collect();
        for (index, row) in rows.iter().enumerate() {
            anyhow::ensure!(
                row.len() == columns.len(),
                "{name} line {}: {} cells, the head has {}",
                index + 2,
                row.len(),
                columns.len()
            );
        }
        Ok(Self { name: name.to_owned(), columns, rows })
    }

    fn text<'t>(&'t self, row: &'t [String], column: &str) -> Result<&'t str> {
        let at = self.columns.iter().position(|name| name == column);
        let at = at.with_context(|| format!("{} has no column {column}", self.name))?;
        Ok(&row[at])
    }

    fn number(&self, row: &[String], column: &str) -> Result<f64> {
        let text = self.text(row, column)?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.with_context(|| format!("{}: {column} is no number: {text}", self.name))
    }
}

/// Reads all tables of the folder.
pub fn read(folder: &Path) -> Result<Vec<Measurement>> {
    let table = |name| Table::read(folder, name);
    let mut all = handles(&table("handle_allocation_roundtrip.csv")?)?;
    all.extend(sendvec(&table("sendvec_kcalloc_kvcalloc.csv")?)?);
    all.extend(contention(&table("alloc_contention_latency.csv")?)?);
    all.extend(reclaim(&table("expedited_reclaim.csv")?)?);
    Ok(all)
}

fn handles(table: &Table) -> Result<Vec<Measurement>> {
    let series = [
        ("rbtree_walk_us", "published tree walk"),
        ("bitmap_us", "published bitmap"),
        ("c_driver_us", "published C driver"),
    ];
    let mut all = Vec::new();
    for (column, subject) in series {
        let mut means = Vec::new();
        let mut end = String::new();
        for row in &table.rows {
            let (first, last) = (table.text(row, "first")?, table.text(row, "last")?);
            let case = format!("{first}-{last}");
            let mean = table.number(row, column)?;
            all.push(Measurement::new(
                Key { bench: "handles", case: &case, subject, metric: "rtt_us_mean" },
                Value { value: mean, unit: "us", runs: 1 },
            ));
            means.push(mean);
            end = format!("0-{last}");
        }
        if let [first, .., last] = means[..] {
            let (metric, ratio) = ("last_over_first", last / first);
            all.push(Measurement::new(
                Key { bench: "handles", case: &end, subject, metric },
                Value { value: ratio, unit: "ratio", runs: 1 },
            ));
        }
    }
    Ok(all)
}

fn sendvec(table: &Table) -> Result<Vec<Measurement>> {
    let mut all: Vec<Measurement> = Vec::new();
    let mut subject = "published kcalloc";
    let mut ends: Vec<(&str, f64, f64)> = Vec::new();
    let mut previous = 0.0;
    for row in &table.rows {
        let (bytes, time) = (table.number(row, "payload_bytes")?, table.number(row, "time_ns")?);
        // Both series have the same label: the second begins where the sizes start again.
        if bytes < previous {
            subject = "published second series";
        }
        previous = bytes;
        match ends.last_mut() {
            Some((name, _, last)) if *name == subject => *last = time,
            _ => ends.push((subject, time, time)),
        }
        let case = format!("{} idle", bench::report::bytes(bytes as usize));
        let runs = table.number(row, "iterations")? as usize;
        for (metric, ns) in
            [("echo_us_mean", time), ("client_cpu_us", table.number(row, "cpu_ns")?)]
        {
            all.push(Measurement::new(
                Key { bench: "sendvec", case: &case, subject, metric },
                Value { value: ns / 1000.0, unit: "us", runs },
            ));
        }
    }
    for (subject, first, last) in ends {
        let (metric, ratio) = ("largest_over_smallest", last / first);
        all.push(Measurement::new(
            Key { bench: "sendvec", case: "idle", subject, metric },
            Value { value: ratio, unit: "ratio", runs: 1 },
        ));
    }
    Ok(all)
}

fn contention(table: &Table) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for row in &table.rows {
        let priority = table.number(row, "prio")?;
        let class = match table.text(row, "sched")? {
            "fifo" => format!("fifo-{priority}"),
            _ => format!("nice {priority}"),
        };
        let subject = format!("published {}", table.text(row, "lock")?);
        let us = |column| table.number(row, column).map(|ms| ms * 1000.0);
        let (avg, max, min) = (us("average_ms")?, us("max_ms")?, us("min_ms")?);
        for (metric, value, unit) in [
            ("avg_us", avg, "us"),
            ("min_us", min, "us"),
            ("max_us", max, "us"),
            ("max_over_min", max / min, "ratio"),
        ] {
            all.push(Measurement::new(
                Key { bench: "contention", case: &class, subject: &subject, metric },
                Value { value, unit, runs: 1 },
            ));
        }
    }
    Ok(all)
}

fn reclaim(table: &Table) -> Result<Vec<Measurement>> {
    let series = [("normal_mb_s", "published own exit"), ("expedited_mb_s", "published expedited")];
    let mut all = Vec::new();
    for (column, subject) in series {
        let mut worst = f64::INFINITY;
        for row in &table.rows {
            let governor = table.text(row, "governor")?.replace('_', " ");
            let case = format!("{} core, {governor}", table.text(row, "core")?);
            let line = |metric: &str, value: f64| {
                Measurement::new(
                    Key { bench: "reclaim", case: &case, subject, metric },
                    Value { value, unit: "MB/s", runs: 1 },
                )
            };
            // Of a published range the lower end counts.
            let ends = table.text(row, column)?.split_once('-');
            let ends = ends.and_then(|(low, high)| {
                Some((low.parse::<f64>().ok()?, high.parse::<f64>().ok()?))
            });
            match ends {
                Some((low, high)) => {
                    worst = worst.min(low);
                    let ends = [("mb_per_s", low), ("mb_per_s_low", low), ("mb_per_s_high", high)];
                    all.extend(ends.map(|(metric, value)| line(metric, value)));
                }
                None => {
                    let value = table.number(row, column)?;
                    worst = worst.min(value);
                    all.push(line("mb_per_s", value));
                }
            }
        }
        // The name of the row with our own figure.
        let case = "worst of all";
        all.push(Measurement::new(
            Key { bench: "reclaim", case, subject, metric: "mb_per_s" },
            Value { value: worst, unit: "MB/s", runs: 1 },
        ));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Measurement> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/reference");
        read(&folder).unwrap()
    }

    fn value(bench: &str, case: &str, subject: &str, metric: &str) -> f64 {
        let all = all();
        let same = |m: &&Measurement| {
            m.bench == bench && m.case == case && m.subject == subject && m.metric == metric
        };
        all.iter()
            .find(same)
            .unwrap_or_else(|| panic!("no {bench} {case} {subject} {metric}"))
            .value
    }

    #[test]
    fn the_published_tables_are_read_as_they_were_printed() {
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

    #[test]
    fn a_broken_table_is_named() {
        let table = Table::parse("x.csv", "a,b\n1,2\n3\n").err().expect("an error");
        assert!(table.to_string().contains("x.csv line 3"), "{table}");
        let table = Table::parse("x.csv", "a,b\n1,oops\n").unwrap();
        let error = table.number(&table.rows[0], "b").unwrap_err().to_string();
        assert!(error.contains("x.csv") && error.contains("oops"), "{error}");
        assert!(table.number(&table.rows[0], "c").unwrap_err().to_string().contains("no column c"));
    }
}
