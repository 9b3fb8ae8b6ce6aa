//! Environment of the measurements: date, machine, versions, commit.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::number;

/// The header of the report: names and values.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Date, commit and machine.
    pub facts: Vec<(String, String)>,
    /// All other values of the file, by their paths in the JSON: `kernels.6.1.release`.
    pub versions: Vec<(String, String)>,
}

impl Header {
    /// Values of the file, and of this machine if the file does not have them.
    pub fn find(info: Option<&Path>) -> Result<Self> {
        let given = info.map(read).transpose()?.unwrap_or_default();
        Ok(Self::from_info(&given))
    }

    fn from_info(given: &serde_json::Map<String, Value>) -> Self {
        let machine = given.get("machine");
        let text = |value: Option<&Value>| value.map(plain);
        let of_machine = |key: &str| text(machine.and_then(|machine| machine.get(key)));
        let mut facts = Vec::new();
        let mut fact = |name: &str, given: Option<String>, found: &dyn Fn() -> Option<String>| {
            if let Some(value) = given.or_else(found) {
                facts.push((name.to_owned(), value));
            }
        };
        fact("Date", text(given.get("date")), &|| Some(date(now())));
        fact("Commit", text(given.get("commit")), &commit);
        // A machine that is described by a single string is taken as it is.
        match machine {
            Some(Value::String(words)) => fact("Machine", Some(words.clone()), &|| None),
            _ => {
                fact("CPU", of_machine("cpu"), &cpu_model);
                fact("Cores", of_machine("cores"), &cores);
                let given = of_machine("memory_mib").map(|mib| format!("{mib} MiB"));
                fact("Memory", given.or_else(|| of_machine("memory")), &memory);
                fact("Kernel", of_machine("kernel"), &kernel);
            }
        }
        let mut versions = Vec::new();
        for (key, value) in given {
            if !["date", "commit", "machine"].contains(&key.as_str()) {
                flatten(key, value, &mut versions);
            }
        }
        Self { facts, versions }
    }
}

fn read(path: &Path) -> Result<serde_json::Map<String, Value>> {
    let name = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", name()))?;
    let value: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", name()))?;
    match value {
        Value::Object(map) => Ok(map),
        _ => anyhow::bail!("{} is no JSON object", name()),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn flatten(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                flatten(&format!("{path}.{key}"), value, out);
            }
        }
        other => out.push((path.to_owned(), plain(other))),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `2026-11-21 03:25 UTC` of seconds since 1970.
fn date(seconds: u64) -> String {
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    let mut days = seconds / 86_400;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    format!("{year}-{:02}-{:02} {hour:02}:{minute:02} UTC", month + 1, days + 1)
}

/// The commit of the current folder, marked if there are uncommitted changes.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { hash } else { format!("{hash}, with changes") })
}

fn line_of(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn cpu_model() -> Option<String> {
    line_of("/proc/cpuinfo", "model name")
}

fn cores() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    Some(text.lines().filter(|line| line.starts_with("processor")).count().to_string())
}

fn memory() -> Option<String> {
    let total = line_of("/proc/meminfo", "MemTotal")?;
    let kib: u64 = total.split_whitespace().next()?.parse().ok()?;
    Some(format!("{} MiB", number::count(kib / 1024)))
}

fn kernel() -> Option<String> {
    let uname = rustix::system::uname();
    let words = [uname.sysname(), uname.release(), uname.machine()];
    Some(words.map(|word| word.to_string_lossy().into_owned()).join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Header {
        Header::from_info(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap())
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let shown = [0, 951_782_400, 1_709_164_799, 1_795_231_519].map(date);
        let expected =
            ["1970-01-01 00:00", "2000-02-29 00:00", "2024-02-28 23:59", "2026-11-21 03:25"];
        assert_eq!(shown, expected.map(|date| format!("{date} UTC")));
    }

    #[test]
    fn this_machine_has_a_processor_memory_and_a_kernel() {
        let names: Vec<String> = given("{}").facts.into_iter().map(|(name, _)| name).collect();
        for name in ["Date", "Cores", "Memory", "Kernel"] {
            assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
        }
    }

    #[test]
    fn given_fields_replace_detected_ones_and_the_rest_is_shown() {
        let header = given(
            r#"{"date":"today","commit":"abc",
                "machine":{"cpu":"Z80","cores":1,"memory_mib":64,"kernel":"CP/M"},
                "qemu":"7.2","kernels":{"6.1":{"release":"6.1.0-50"}}}"#,
        );
        let facts: Vec<&str> = header.facts.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(facts, ["today", "abc", "Z80", "1", "64 MiB", "CP/M"]);
        let release = ("kernels.6.1.release".to_owned(), "6.1.0-50".to_owned());
        assert!(header.versions.contains(&release), "{:?}", header.versions);
        assert_eq!(header.versions.len(), 2);
    }
}
