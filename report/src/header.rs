//! Environment of the measurements: date, commit, machine, versions.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

/// What the page says of the environment unless the file has it: a key, and a command.
const FOUND: [(&str, &[&str]); 3] = [
    ("date", &["date", "-u", "+%F %H:%M UTC"]),
    ("commit", &["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]),
    ("machine", &["uname", "-srm"]),
];

/// Names and values: those of this machine first, then all values of the file by their paths in the
/// JSON, as `kernels.6.1.release`.
pub fn find(info: Option<&Path>) -> Result<Vec<(String, String)>> {
    let given = info.map(read).transpose()?.unwrap_or_default();
    let mut facts = Vec::new();
    for (key, command) in FOUND {
        if !given.contains_key(key) {
            facts.extend(output(command).map(|value| (key.to_owned(), value)));
        }
    }
    given.iter().for_each(|(key, value)| flatten(key, value, &mut facts));
    Ok(facts)
}

fn read(path: &Path) -> Result<serde_json::Map<String, Value>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON object", path.display()))
}

/// `None` if the program is missing or fails, as `git` does outside of a checkout.
fn output(command: &[&str]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn flatten(path: &str, value: &Value, out: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, out));
        }
        Value::String(text) => out.push((path.to_owned(), text.clone())),
        other => out.push((path.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_values_replace_those_of_this_machine() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"date":"today","machine":{"cpu":"Z80","cores":1},"qemu":"7.2"}"#;
        fs::write(&file, text).unwrap();
        let facts = find(Some(file.path())).unwrap();
        let value = |key: &str| facts.iter().find(|fact| fact.0 == key).map(|fact| fact.1.as_str());
        assert_eq!([value("date"), value("machine.cpu")], [Some("today"), Some("Z80")]);
        assert_eq!([value("machine.cores"), value("qemu")], [Some("1"), Some("7.2")]);
        assert_eq!(value("machine"), None);
        let facts = find(None).unwrap();
        for (key, found) in [("date", " UTC"), ("machine", "Linux ")] {
            assert!(facts.iter().any(|(name, value)| name == key && value.contains(found)));
        }
    }
}
