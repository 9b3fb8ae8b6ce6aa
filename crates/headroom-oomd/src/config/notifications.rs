//! The sections `[metrics]`, `[hooks]` and `[warnings]`.
//!
//! ```toml
//! [metrics]
//! textfile = "/var/lib/headroom/headroom.prom"   # written every so often, as a whole
//! interval-s = 15
//!
//! [hooks]
//! before = ["/usr/local/sbin/save-what-can-be-saved", "now"]
//! budget-ms = 20                                 # the kill waits no longer for `before`
//! after = ["/usr/local/sbin/tell-the-team"]
//! warn = ["/usr/local/sbin/warn"]                # a user nears its limit
//!
//! [warnings]
//! interval-s = 60                                # a user is warned no more often
//! ```

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::DeValue;

use super::diagnostic::ConfigDiagnostic;
use super::diagnostic::hint;
use super::system::number;

pub(crate) const METRICS_KEYS: &[&str] = &["textfile", "interval-s"];
pub(crate) const HOOKS_KEYS: &[&str] = &["before", "budget-ms", "after", "warn"];
pub(crate) const WARNINGS_KEYS: &[&str] = &["interval-s"];
/// Keys of earlier versions: accepted without effect, with a hint.
const OBSOLETE: [ObsoleteKey; 2] = [
    ObsoleteKey {
        section: "metrics",
        key: "socket",
        replacement: "\"textfile\" in [metrics] writes a file, and `headroom metrics` prints the \
                      same",
    },
    ObsoleteKey {
        section: "warnings",
        key: "terminals",
        replacement: "\"warn\" in [hooks] runs a program, and `headroom notify` shows warnings",
    },
];
/// Most that a kill may wait for a program, milliseconds: in a second a process takes gigabytes.
const MOST_BUDGET_MS: u64 = 1_000;
/// Longest interval, seconds.
const MOST_INTERVAL_S: u64 = 24 * 3600;

/// A key without effect.
struct ObsoleteKey {
    section: &'static str,
    key: &'static str,
    replacement: &'static str,
}

/// Where counters go besides the control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// A file, for node_exporter's textfile collector.
    pub textfile: Option<PathBuf>,
    /// How often the file is written, seconds.
    pub interval_s: u64,
}

/// Programs that are run; empty: none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    /// Before a kill that the daemon does.
    pub before: Vec<String>,
    /// How long the kill waits for it, milliseconds.
    pub budget_ms: u64,
    /// When the end of a kill is known.
    pub after: Vec<String>,
    /// When a user nears its limit.
    pub warn: Vec<String>,
}

/// How often a user that nears its limit is warned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warnings {
    /// Not more often than this, seconds.
    pub interval_s: u64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationConfig {
    /// `[metrics]`.
    pub metrics: Metrics,
    /// `[hooks]`.
    pub hooks: Hooks,
    /// `[warnings]`.
    pub warnings: Warnings,
    /// A hint for each deprecated key in the files.
    pub obsolete: Vec<String>,
}

impl Default for NotificationConfig {
    fn default() -> Self {
        let none = Vec::new;
        Self {
            // node_exporter is scraped every 15 s where nobody says otherwise.
            metrics: Metrics { textfile: None, interval_s: 15 },
            hooks: Hooks { before: none(), budget_ms: 20, after: none(), warn: none() },
            warnings: Warnings { interval_s: 60 },
            obsolete: none(),
        }
    }
}

/// Like `hooks.after: /usr/local/sbin/tell-the-team`, a line each.
impl fmt::Display for NotificationConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metrics, hooks, .. } = self;
        if let Some(file) = &metrics.textfile {
            writeln!(f, "metrics in {}, every {} s", file.display(), metrics.interval_s)?;
        }
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
    /// Takes over what a file says in `[metrics]`: its keys replace those of the files before.
    pub(crate) fn add_metrics(
        &mut self,
        section: &Spanned<DeValue>,
    ) -> Result<(), ConfigDiagnostic> {
        for (key, value) in self.keys(section, METRICS_KEYS, "metrics")? {
            match key {
                "textfile" => self.metrics.textfile = Some(absolute(value)?),
                _ => self.metrics.interval_s = at_least_one(value, MOST_INTERVAL_S)?,
            }
        }
        Ok(())
    }

    /// The same of `[hooks]`.
    pub(crate) fn add_hooks(&mut self, section: &Spanned<DeValue>) -> Result<(), ConfigDiagnostic> {
        for (key, value) in self.keys(section, HOOKS_KEYS, "hooks")? {
            match key {
                "before" => self.hooks.before = program(value)?,
                "after" => self.hooks.after = program(value)?,
                "warn" => self.hooks.warn = program(value)?,
                _ => self.hooks.budget_ms = number(value, MOST_BUDGET_MS)?,
            }
        }
        Ok(())
    }

    /// The same of `[warnings]`.
    pub(crate) fn add_warnings(
        &mut self,
        section: &Spanned<DeValue>,
    ) -> Result<(), ConfigDiagnostic> {
        for (_, value) in self.keys(section, WARNINGS_KEYS, "warnings")? {
            self.warnings.interval_s = at_least_one(value, MOST_INTERVAL_S)?;
        }
        Ok(())
    }

    /// Adds hints about deprecated keys, each once.
    pub(crate) fn add_hints(&mut self, hints: Vec<String>) {
        for hint in hints {
            if !self.obsolete.contains(&hint) {
                self.obsolete.push(hint);
            }
        }
    }

    /// The keys of a section that have an effect; an unknown one is an error.
    fn keys<'a>(
        &mut self,
        section: &'a Spanned<DeValue<'a>>,
        known: &[&str],
        name: &str,
    ) -> Result<Vec<(&'a str, &'a Spanned<DeValue<'a>>)>, ConfigDiagnostic> {
        let table = section.get_ref().as_table().ok_or_else(|| {
            ConfigDiagnostic::new(
                section.span(),
                format!("this is written as one [{name}] section"),
            )
        })?;
        let mut found = Vec::new();
        for (at, value) in table {
            let key = at.get_ref().as_ref();
            if known.contains(&key) {
                found.push((key, value));
                continue;
            }
            let is_this = |it: &&ObsoleteKey| it.section == name && it.key == key;
            let Some(obsolete) = OBSOLETE.iter().find(is_this) else {
                let hint = hint(key, known, &format!("a [{name}] section"));
                return Err(ConfigDiagnostic::new(
                    at.span(),
                    format!("unknown key \"{key}\"; {hint}"),
                ));
            };
            let text = format!("\"{key}\" in [{name}] has no effect: {}", obsolete.replacement);
            self.add_hints(vec![text]);
        }
        Ok(found)
    }
}

fn at_least_one(value: &Spanned<DeValue>, most: u64) -> Result<u64, ConfigDiagnostic> {
    match number(value, most)? {
        0 => Err(ConfigDiagnostic::new(
            value.span(),
            format!("expected a whole number from 1 to {most}"),
        )),
        number => Ok(number),
    }
}

fn text<'a>(value: &'a Spanned<DeValue>) -> Result<&'a str, ConfigDiagnostic> {
    let wrong = || {
        ConfigDiagnostic::new(
            value.span(),
            format!("expected a string, not a {}", value.get_ref().type_str()),
        )
    };
    value.get_ref().as_str().ok_or_else(wrong)
}

fn absolute(value: &Spanned<DeValue>) -> Result<PathBuf, ConfigDiagnostic> {
    let path = Path::new(text(value)?);
    if path.is_absolute() && path.file_name().is_some() {
        Ok(path.to_owned())
    } else {
        Err(ConfigDiagnostic::new(value.span(), "expected an absolute path".to_owned()))
    }
}

/// A program and its arguments. It will run as we do: nobody else may be able to exchange it.
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

/// The path itself, without links, if nobody but root and ourselves can change what is there.
fn trusted(path: &Path) -> Result<String, String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("the path of the program {shown} does not start with /"));
    }
    let real = path.canonicalize().map_err(|e| format!("the program {shown}: {e}"))?;
    let us = rustix::process::geteuid().as_raw();
    for part in real.ancestors() {
        let about = part.metadata().map_err(|e| format!("{}: {e}", part.display()))?;
        let (mode, part) = (about.mode(), part.display());
        let owned = about.uid() == 0 || about.uid() == us;
        if !owned {
            return Err(format!(
                "{part} belongs to uid {}, who could exchange the program {shown}",
                about.uid()
            ));
        }
        // In a folder with the sticky bit nobody touches what is another's.
        let sticky = about.is_dir() && mode & 0o1000 != 0;
        if mode & 0o002 != 0 && !sticky {
            return Err(format!(
                "{part} can be written to by everybody: the program {shown} would run as root"
            ));
        }
        if mode & 0o020 != 0 && about.gid() != 0 && !sticky {
            let gid = about.gid();
            return Err(format!(
                "{part} can be written to by group {gid}: the program {shown} would run as root"
            ));
        }
    }
    let about = real.metadata().map_err(|e| format!("{}: {e}", real.display()))?;
    if !about.is_file() || about.mode() & 0o111 == 0 {
        return Err(format!("{shown} is not executable"));
    }
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
                "metrics",
                NotificationConfig::add_metrics
                    as fn(&mut NotificationConfig, &Spanned<DeValue>) -> _,
            ),
            ("hooks", NotificationConfig::add_hooks),
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
    fn what_is_said_is_read_and_shown() {
        let config = parsed(
            "[metrics]\ntextfile = \"/a/b.prom\"\ninterval-s = 5\n\
             [hooks]\nbefore = [\"/bin/true\", \"x\"]\nbudget-ms = 7\nafter = [\"/bin/true\"]\n\
             [warnings]\ninterval-s = 9\n",
        )
        .unwrap();
        assert_eq!(config.metrics.interval_s, 5);
        assert_eq!((config.hooks.before.len(), config.hooks.budget_ms), (2, 7));
        assert_eq!(config.warnings, Warnings { interval_s: 9 });
        assert_eq!(config.obsolete, [] as [String; 0]);
        let shown = config.to_string();
        for part in ["/a/b.prom, every 5 s", "for 7 ms"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(NotificationConfig::default().to_string(), "");
    }

    #[test]
    fn every_mistake_is_named() {
        for (text, part) in [
            ("metrics = 1", "one [metrics] section"),
            ("[metrics]\ntextfil = \"/a\"", "did you mean \"textfile\"?"),
            ("[metrics]\ntextfile = \"a\"", "absolute path"),
            ("[metrics]\ninterval-s = 0", "from 1 to"),
            ("[hooks]\nbefore = \"/bin/true\"", "a list of strings"),
            ("[hooks]\nbefore = [1]", "a list of strings"),
            ("[hooks]\nafter = [\"true\"]", "does not start with /"),
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
    fn keys_without_effect_are_accepted_with_a_hint() {
        let config =
            parsed("[metrics]\nsocket = \"/a/s\"\n[warnings]\nterminals = true\ninterval-s = 9\n")
                .unwrap();
        assert_eq!(config.warnings, Warnings { interval_s: 9 });
        let [socket, terminals] = &config.obsolete[..] else { panic!("{config:?}") };
        assert!(socket.starts_with("\"socket\" in [metrics] has no effect: \"textfile\""));
        assert!(terminals.starts_with("\"terminals\" in [warnings] has no effect: \"warn\""));
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
        assert!(trusted(&path).unwrap_err().contains("written to by everybody"));
        set(&path, 0o755);
        set(dir.path(), 0o777);
        assert!(trusted(&path).unwrap_err().contains("written to by everybody"));
        let link = tempfile::tempdir().unwrap();
        let link = link.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(trusted(&link).unwrap_err().contains("written to by everybody"));
        set(dir.path(), 0o700);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(62_999), None).unwrap();
            assert!(trusted(&path).unwrap_err().contains("belongs to uid 62999"));
        }
    }
}
