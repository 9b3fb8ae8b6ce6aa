//! Published figures of other authors, as measurements that are shown beside ours.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bench::results::{Key, Measurement, Value};

/// The cells of a line by the names of their columns.
struct Row(BTreeMap<String, String>);

impl Row {
    fn text(&self, column: &str) -> Result<&str> {
        let cell = self.0.get(column);
        cell.map(String::as_str).with_context(|| format!("no column {column}"))
    }

    fn number(&self, column: &str) -> Result<f64> {
        let text = self.text(column)?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.with_context(|| format!("{column} is no number: {text}"))
    }
}

/// Parses plain cells without quotes, the format of these files.
fn parse(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines().map(|line| line.split(',').map(|cell| cell.trim().to_owned()));
    let columns: Vec<String> = lines.next().context("an empty table")?.collect();
    let row = |(index, line): (usize, Vec<String>)| {
        let (cells, head) = (line.len(), columns.len());
        ensure!(cells == head, "line {}: {cells} cells, the head has {head}", index + 2);
        Ok(Row(columns.iter().cloned().zip(line).collect()))
    };
    lines.map(Iterator::collect).enumerate().map(row).collect()
}

/// Adds the figures of a table to those of all.
type Add = fn(&[Row], &mut Vec<Measurement>) -> Result<()>;

const TABLES: [(&str, Add); 4] = [
    ("handle_allocation_roundtrip.csv", handles),
    ("sendvec_kcalloc_kvcalloc.csv", sendvec),
    ("alloc_contention_latency.csv", contention),
    ("expedited_reclaim.csv", reclaim),
];

/// Reads all tables of the folder.
pub fn read(folder: &Path) -> Result<Vec<Measurement>> {
    let mut all = Vec::new();
    for (name, add) in TABLES {
        let path = folder.join(name);
        let text = fs::read_to_string(&path);
        let rows = text.map_err(anyhow::Error::from).and_then(|text| parse(&text));
        rows.and_then(|rows| add(&rows, &mut all))
            .with_context(|| format!("the published figures {}", path.display()))?;
    }
    Ok(all)
}

fn figure(key: Key<'_>, value: f64, unit: &str) -> Measurement {
    Measurement::new(key, Value { value, unit, runs: 1 })
}

fn handles(rows: &[Row], all: &mut Vec<Measurement>) -> Result<()> {
    for (column, subject) in [
        ("rbtree_walk_us", "published tree walk"),
        ("bitmap_us", "published bitmap"),
        ("c_driver_us", "published C driver"),
    ] {
        let mut add = |case: &str, metric, value, unit| {
            all.push(figure(Key { bench: "handles", case, subject, metric }, value, unit));
        };
        let mut means = Vec::new();
        for row in rows {
            let (case, mean) =
                (format!("{}-{}", row.text("first")?, row.text("last")?), row.number(column)?);
            add(&case, "rtt_us_mean", mean, "us");
            means.push(mean);
        }
        if let ([first, .., last], Some(row)) = (&means[..], rows.last()) {
            let case = format!("0-{}", row.text("last")?);
            add(&case, "last_over_first", last / first, "ratio");
        }
    }
    Ok(())
}

fn sendvec(rows: &[Row], all: &mut Vec<Measurement>) -> Result<()> {
    let (mut subject, mut previous) = ("published kcalloc", 0.0);
    for row in rows {
        let bytes = row.number("payload_bytes")?;
        // Both series have the same label: the second begins where the sizes start again.
        if bytes < previous {
            subject = "published second series";
        }
        previous = bytes;
        let case = format!("{} idle", bench::report::bytes(bytes as usize));
        let key = Key { bench: "sendvec", case: &case, subject, metric: "echo_us_mean" };
        all.push(figure(key, row.number("time_ns")? / 1000.0, "us"));
    }
    Ok(())
}

fn contention(rows: &[Row], all: &mut Vec<Measurement>) -> Result<()> {
    for row in rows {
        let priority = row.number("prio")?;
        let class = if row.text("sched")? == "fifo" { "fifo-" } else { "nice " };
        let (case, subject) =
            (format!("{class}{priority}"), format!("published {}", row.text("lock")?));
        let mut add = |metric, value, unit| {
            let key = Key { bench: "contention", case: &case, subject: &subject, metric };
            all.push(figure(key, value, unit));
        };
        let (max, min) = (row.number("max_ms")?, row.number("min_ms")?);
        add("avg_us", row.number("average_ms")? * 1000.0, "us");
        add("min_us", min * 1000.0, "us");
        add("max_us", max * 1000.0, "us");
        add("max_over_min", max / min, "ratio");
    }
    Ok(())
}

fn reclaim(rows: &[Row], all: &mut Vec<Measurement>) -> Result<()> {
    for (column, subject) in
        [("normal_mb_s", "published own exit"), ("expedited_mb_s", "published expedited")]
    {
        let mut worst = f64::INFINITY;
        let mut add = |case: &str, metric, value| {
            worst = worst.min(value);
            all.push(figure(Key { bench: "reclaim", case, subject, metric }, value, "MB/s"));
        };
        for row in rows {
            let governor = row.text("governor")?.replace('_', " ");
            let case = format!("{} core, {governor}", row.text("core")?);
            // Of a published range the lower end counts.
            let Some((low, high)) = row.text(column)?.split_once('-') else {
                add(&case, "mb_per_s", row.number(column)?);
                continue;
            };
            let (low, high) = (low.parse()?, high.parse()?);
            add(&case, "mb_per_s", low);
            add(&case, "mb_per_s_low", low);
            add(&case, "mb_per_s_high", high);
        }
        // The name of the row with our own figure.
        let key = Key { bench: "reclaim", case: "worst of all", subject, metric: "mb_per_s" };
        all.push(figure(key, worst, "MB/s"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bench: &str, case: &str, subject: &str, metric: &str) -> f64 {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/reference");
        let all = read(&folder).unwrap();
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
        let error = parse("a,b\n1,2\n3\n").err().expect("an error").to_string();
        assert!(error.contains("line 3"), "{error}");
        let rows = parse("a,b\n1,oops\n").unwrap();
        assert!(rows[0].number("b").unwrap_err().to_string().contains("oops"));
        assert!(rows[0].number("c").unwrap_err().to_string().contains("no column c"));
        let error = read(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("handle_allocation_roundtrip.csv"), "{error}");
    }
}
