//! The sections `[hooks]` and `[warnings]`.
//!
//! ```toml
//! [hooks]
//! before = ["/usr/local/sbin/save-what-can-be-saved", "now"]
//! budget-ms = 20                                 # longest time that a kill waits for `before`
//! after = ["/usr/local/sbin/notify-the-team"]
//! warn = ["/usr/local/sbin/warn"]                # an account crosses its soft limit
//!
//! [warnings]
//! interval-s = 60                                # at most one warning per account in this time
//! ```

use std::fmt;
use std::path::Path;

use headroom_daemon::trusted_path::{TrustError, Trusted};
use rustix::fs::FileType;
use toml::Spanned;
use toml::de::DeValue;

use super::values::{ConfigDiagnostic, not_in_range, number, only_keys};

pub(crate) const HOOKS_KEYS: &[&str] = &["before", "budget-ms", "after", "warn"];
pub(crate) const WARNINGS_KEYS: &[&str] = &["interval-s"];
/// Longest time that a kill may wait for a program, milliseconds: in one second a process can
/// allocate gigabytes.
const MOST_BUDGET_MS: u64 = 1_000;
/// Longest interval, seconds.
const MOST_INTERVAL_S: u64 = 24 * 3600;

/// Commands of the hooks; an empty one is not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    /// Runs before a kill by the daemon.
    pub before: Vec<String>,
    /// Longest time that the kill waits for `before`, milliseconds.
    pub budget_ms: u64,
    /// Runs when the outcome of a kill is known.
    pub after: Vec<String>,
    /// Runs when an account crosses its soft limit.
    pub warn: Vec<String>,
}

/// Rate limit of soft limit warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warnings {
    /// Minimum interval between two warnings of the same account, seconds.
    pub interval_s: u64,
}

/// The sections `[hooks]` and `[warnings]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationConfig {
    /// `[hooks]`.
    pub hooks: Hooks,
    /// `[warnings]`.
    pub warnings: Warnings,
}

impl Default for NotificationConfig {
    fn default() -> Self {
        let none = Vec::new;
        Self {
            hooks: Hooks { before: none(), budget_ms: 20, after: none(), warn: none() },
            warnings: Warnings { interval_s: 60 },
        }
    }
}

/// One line per setting, such as `hooks.after: /usr/local/sbin/notify-the-team`.
impl fmt::Display for NotificationConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks = &self.hooks;
        if !hooks.before.is_empty() {
            let (program, budget) = (hooks.before.join(" "), hooks.budget_ms);
            writeln!(f, "before a kill {program}, for {budget} ms at the most")?;
        }
        for (when, program) in [("after a kill", &hooks.after), ("near a limit", &hooks.warn)] {
            if !program.is_empty() {
                writeln!(f, "{when} {}", program.join(" "))?;
            }
        }
        Ok(())
    }
}

impl NotificationConfig {
    /// Merges the `[hooks]` section of a file: its keys replace those of earlier files.
    pub(crate) fn add_hooks(&mut self, section: &Spanned<DeValue>) -> Result<(), ConfigDiagnostic> {
        for (key, value) in keys(section, HOOKS_KEYS, "hooks")? {
            match key {
                "before" => self.hooks.before = program(value)?,
                "after" => self.hooks.after = program(value)?,
                "warn" => self.hooks.warn = program(value)?,
                _ => self.hooks.budget_ms = number(value, MOST_BUDGET_MS)?,
            }
        }
        Ok(())
    }

    /// Merges the `[warnings]` section of a file.
    pub(crate) fn add_warnings(
        &mut self,
        section: &Spanned<DeValue>,
    ) -> Result<(), ConfigDiagnostic> {
        for (_, value) in keys(section, WARNINGS_KEYS, "warnings")? {
            self.warnings.interval_s = at_least_one(value, MOST_INTERVAL_S)?;
        }
        Ok(())
    }
}

/// The keys of a section. An unknown key is an error.
fn keys<'a>(
    section: &'a Spanned<DeValue<'a>>,
    known: &[&str],
    name: &str,
) -> Result<impl Iterator<Item = (&'a str, &'a Spanned<DeValue<'a>>)>, ConfigDiagnostic> {
    let table = section.get_ref().as_table().ok_or_else(|| {
        let message = format!("this is written as one [{name}] section");
        ConfigDiagnostic::new(section.span(), message)
    })?;
    only_keys(table, known, &format!("a [{name}] section"))?;
    Ok(table.iter().map(|(key, value)| (key.get_ref().as_ref(), value)))
}

fn at_least_one(value: &Spanned<DeValue>, most: u64) -> Result<u64, ConfigDiagnostic> {
    match number(value, most)? {
        0 => Err(not_in_range(value, 1, most)),
        number => Ok(number),
    }
}

/// A program and its arguments. It runs with the daemon's privileges, so only root and the daemon's
/// own user may be able to replace it.
fn program(value: &Spanned<DeValue>) -> Result<Vec<String>, ConfigDiagnostic> {
    let wrong = || {
        ConfigDiagnostic::new(
            value.span(),
            "a hook is a list of strings: [\"/path\", \"argument\", ...]".to_owned(),
        )
    };
    let words = value.get_ref().as_array().ok_or_else(wrong)?;
    let mut program = Vec::new();
    for word in words.iter() {
        program.push(word.get_ref().as_str().ok_or_else(wrong)?.to_owned());
    }
    if let Some(path) = program.first_mut() {
        *path = trusted(Path::new(path))
            .map_err(|reason| ConfigDiagnostic::new(value.span(), reason))?;
    }
    Ok(program)
}

/// The canonical path, if only root and the daemon's own user can replace the file.
fn trusted(path: &Path) -> Result<String, String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("{shown}: the path of a program starts with /"));
    }
    let program = Trusted::open(path).map_err(|error| match error {
        TrustError::Io(error) => format!("cannot find the program {shown}: {error}"),
        TrustError::Untrusted(message) => message,
    })?;
    if program.file_type() != FileType::RegularFile || program.mode() & 0o111 == 0 {
        return Err(format!("{shown} is not executable"));
    }
    let real = program.path().to_owned();
    real.into_os_string().into_string().map_err(|_| format!("{shown} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use toml::de::DeTable;

    use super::*;

    fn parsed(text: &str) -> Result<NotificationConfig, String> {
        let document = DeTable::parse(text).unwrap();
        let mut config = NotificationConfig::default();
        let sections = [
            (
                "hooks",
                NotificationConfig::add_hooks
                    as fn(&mut NotificationConfig, &Spanned<DeValue>) -> _,
            ),
            ("warnings", NotificationConfig::add_warnings),
        ];
        for (name, add) in sections {
            if let Some(section) = document.get_ref().get(name) {
                add(&mut config, section).map_err(|diagnostic| diagnostic.message)?;
            }
        }
        Ok(config)
    }

    #[test]
    fn settings_are_read_and_shown() {
        let config = parsed(
            "[hooks]\nbefore = [\"/bin/true\", \"x\"]\nbudget-ms = 7\nafter = [\"/bin/true\"]\n\
             [warnings]\ninterval-s = 9\n",
        )
        .unwrap();
        assert_eq!((config.hooks.before.len(), config.hooks.budget_ms), (2, 7));
        assert_eq!(config.warnings, Warnings { interval_s: 9 });
        let shown = config.to_string();
        assert!(shown.contains("for 7 ms"), "{shown}");
        assert_eq!(NotificationConfig::default().to_string(), "");
    }

    #[test]
    fn every_mistake_is_named() {
        for (text, part) in [
            ("hooks = 1", "one [hooks] section"),
            ("[hooks]\nafte = [\"/a\"]", "did you mean \"after\"?"),
            ("[warnings]\ninterval-s = 0", "from 1 to"),
            ("[hooks]\nbefore = \"/bin/true\"", "a list of strings"),
            ("[hooks]\nbefore = [1]", "a list of strings"),
            ("[hooks]\nafter = [\"true\"]", "starts with /"),
            ("[hooks]\nafter = [\"/nonexistent/x\"]", "/nonexistent/x: No such file"),
            ("[hooks]\nafter = [\"/etc/passwd\"]", "not executable"),
            ("[hooks]\nbudget-ms = 1001", "from 0 to 1000"),
            ("[warnings]\ninterval = 1", "did you mean \"interval-s\"?"),
            ("[hooks]\nterminals = true", "unknown key \"terminals\""),
        ] {
            let message = parsed(text).expect_err(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_program_that_others_can_exchange_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hook");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(&path, 0o755);
        assert_eq!(trusted(&path), Ok(path.canonicalize().unwrap().to_str().unwrap().to_owned()));
        set(&path, 0o757);
        assert!(trusted(&path).unwrap_err().contains("is writable by every user"));
        set(&path, 0o755);
        set(dir.path(), 0o777);
        assert!(trusted(&path).unwrap_err().contains("is writable by every user"));
        let link = tempfile::tempdir().unwrap();
        let link = link.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(trusted(&link).unwrap_err().contains("is writable by every user"));
        set(dir.path(), 0o700);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(62_999), None).unwrap();
            assert!(trusted(&path).unwrap_err().contains("belongs to uid 62999"));
        }
    }
}
