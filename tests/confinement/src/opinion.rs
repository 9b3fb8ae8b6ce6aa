//! Analysis of a unit by systemd itself.

use std::io;
use std::path::Path;
use std::process::Command;

/// Whether systemd accepts a unit, and how exposed its service is: at most `most_exposed` of 100,
/// where 100 is a service without any confinement. Returns systemd's objections, if any.
///
/// The program need not be installed: `program` in the unit is replaced by one that is. The error:
/// systemd is missing, or its tool cannot be run.
pub fn opinion_of_systemd(
    name: &str,
    unit: &str,
    program: &str,
    most_exposed: u32,
) -> io::Result<Option<String>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(name);
    std::fs::write(&path, unit.replace(program, "/bin/true"))?;
    let threshold = format!("--threshold={most_exposed}");
    let understood = findings_of(&["verify", "--man=no"], &path)?;
    match understood {
        Some(findings) => Ok(Some(findings)),
        None => findings_of(&["security", "--offline=yes", &threshold], &path),
    }
}

fn findings_of(arguments: &[&str], unit: &Path) -> io::Result<Option<String>> {
    let done = Command::new("systemd-analyze").args(arguments).arg(unit).output()?;
    Ok((!done.status.success()).then(|| format!("{done:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_or_too_permissive_unit_is_reported() {
        let of = |unit: &str, most| opinion_of_systemd("a.service", unit, "/opt/a", most);
        let service = "[Service]\nExecStart=/opt/a\n";
        let opinion = match of(service, 100) {
            Err(error) => return test_support::skip(format_args!("systemd-analyze: {error}")),
            Ok(opinion) => opinion,
        };
        assert_eq!(opinion, None);
        assert!(of(service, 50).unwrap().is_some(), "it is not confined at all");
        assert!(of("[Service]\nExecStart=nowhere\n", 100).unwrap().is_some());
    }
}
