//! The configuration file.
//!
//! ```toml
//! [[limit]]
//! user = "alice"      # or a uid: 1000
//! hard = "2G"         # bytes, K, M, G, T, or % of the machine's memory
//! soft = "1.8G"       # the same, or % of the hard limit; when left out, see `margin`, or 90 %
//!
//! [machine]           # see `machine_config`
//! soft = "10%"
//!
//! [[rule]]            # see `rules_config`
//! kill = "never"
//! unit = "postgresql*"
//! ```

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memory_ledger::{Asker, Ledger, Limit, Margin, Rules, Source, Thresholds};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{machine_config, rules_config, size, users};

/// What is read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Each user once.
    pub limits: Vec<(u32, Limit)>,
    /// When the machine itself counts as short of memory; `None`: never.
    pub machine: Option<Thresholds>,
    /// What is said of processes.
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self { limits: Vec::new(), machine: Some(Thresholds::default()), rules: Rules::default() }
    }
}

/// Why a file is no configuration: where, and what.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    /// From 1; `None` when the file cannot be read at all.
    line: Option<usize>,
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path.display(), self.message),
            None => write!(f, "{}: {}", self.path.display(), self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A complaint about a place in the text.
pub(crate) type Complaint = (Range<usize>, String);

impl Config {
    /// Reads a file; percentages are of `ram_bytes`. With `may_be_missing` a file that does not
    /// exist is an empty configuration.
    /// Soft limits that it does not set follow from `margin`, where that was measured.
    pub fn load(
        path: &Path,
        may_be_missing: bool,
        ram_bytes: u64,
        margin: Option<Margin>,
    ) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, ram_bytes, margin).map_err(|(at, message)| {
                let before = text.get(..at.start).unwrap_or_default();
                let line = Some(before.matches('\n').count() + 1);
                ConfigError { path: path.to_owned(), line, message }
            }),
            Err(e) if may_be_missing && e.kind() == std::io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(e) => {
                let message = format!("cannot read the configuration: {e}");
                Err(ConfigError { path: path.to_owned(), line: None, message })
            }
        }
    }

    fn parse(text: &str, ram_bytes: u64, margin: Option<Margin>) -> Result<Self, Complaint> {
        let document = DeTable::parse(text)
            .map_err(|e| (e.span().unwrap_or_default(), e.message().replace('\n', "; ")))?;
        let table = document.get_ref();
        only_keys(table, &["limit", "machine", "rule"], "the configuration")?;
        let mut config = Self::default();
        if let Some(section) = table.get("machine") {
            config.machine = machine_config::parse(section)?;
        }
        if let Some(entry) = table.get("rule") {
            config.rules = rules_config::parse(entry)?;
        }
        let mut seen: Vec<(u32, usize)> = Vec::new();
        let Some(entry) = table.get("limit") else { return Ok(config) };
        let wrong = |at: &Spanned<DeValue>| {
            (at.span(), "limits are written as [[limit]] sections".to_owned())
        };
        for entry in entry.get_ref().as_array().ok_or_else(|| wrong(entry))?.iter() {
            let limit = entry.get_ref().as_table().ok_or_else(|| wrong(entry))?;
            let (uid, limit, at) = parse_limit(limit, entry.span(), ram_bytes, margin)?;
            let line = text[..at.start].matches('\n').count() + 1;
            if let Some((_, first)) = seen.iter().find(|(known, _)| *known == uid) {
                return Err((at, format!("uid {uid} has a limit already, on line {first}")));
            }
            seen.push((uid, line));
            config.limits.push((uid, limit));
        }
        Ok(config)
    }
}

/// A user's uid and limit, and where the user is named.
fn parse_limit(
    table: &DeTable,
    section: Range<usize>,
    ram_bytes: u64,
    margin: Option<Margin>,
) -> Result<(u32, Limit, Range<usize>), Complaint> {
    only_keys(table, &["user", "hard", "soft"], "a limit")?;
    let required = |key: &str| {
        let missing = || (section.clone(), format!("this limit has no \"{key}\""));
        table.get(key).ok_or_else(missing)
    };
    let user = required("user")?;
    let uid = parse_user(user)?;
    let hard = required("hard")?;
    let hard_bytes = parse_size(hard, ram_bytes)?;
    let soft = table.get("soft");
    let soft_bytes = soft.map(|soft| parse_size(soft, hard_bytes)).transpose()?;
    let soft_bytes = soft_bytes.or(margin.map(|margin| margin.soft_bytes(hard_bytes)));
    let to_blame = match soft {
        // Whatever is wrong with the hard limit alone is wrong without the soft one, too.
        Some(soft) if Limit::new(hard_bytes, None).is_ok() => soft.span(),
        _ => hard.span(),
    };
    let limit = Limit::new(hard_bytes, soft_bytes).map_err(|e| (to_blame, e.to_string()))?;
    let allowed = Ledger::default().plan_set(uid, limit, Source::Config, Asker::Root);
    if let Err(refusal) = allowed {
        return Err((user.span(), refusal.to_string()));
    }
    Ok((uid, limit, user.span()))
}

pub(crate) fn parse_user(user: &Spanned<DeValue>) -> Result<u32, Complaint> {
    let complain = |message: String| (user.span(), message);
    match user.get_ref() {
        DeValue::String(name) => {
            let looked_up = users::uid_of(name)
                .map_err(|errno| complain(format!("cannot look up user \"{name}\": {errno}")))?;
            looked_up
                .or_else(|| name.parse().ok())
                .ok_or_else(|| complain(format!("there is no user \"{name}\"")))
        }
        DeValue::Integer(uid) => u32::from_str_radix(uid.as_str(), uid.radix())
            .map_err(|_| complain(format!("{} is no uid", uid.as_str()))),
        other => Err(complain(format!("a user is a name or a uid, not a {}", other.type_str()))),
    }
}

fn parse_size(size: &Spanned<DeValue>, whole: u64) -> Result<u64, Complaint> {
    let complain = |message: String| (size.span(), message);
    match size.get_ref() {
        DeValue::String(text) => size::parse(text, whole).map_err(|e| complain(e.to_string())),
        DeValue::Integer(bytes) => u64::from_str_radix(bytes.as_str(), bytes.radix())
            .map_err(|_| complain(format!("{} is no number of bytes", bytes.as_str()))),
        other => Err(complain(format!(
            "an amount of memory is a text like \"512M\" or a number of bytes, not a {}",
            other.type_str()
        ))),
    }
}

/// Refuses keys that nobody would read, with the one that was probably meant.
pub(crate) fn only_keys(table: &DeTable, known: &[&str], place: &str) -> Result<(), Complaint> {
    let unknown = table.keys().find(|key| !known.contains(&key.get_ref().as_ref()));
    let Some(key) = unknown else { return Ok(()) };
    let name = key.get_ref();
    let nearest = known.iter().min_by_key(|known| distance(name, known));
    let hint = match nearest.filter(|known| distance(name, known) <= 2) {
        Some(known) => format!("did you mean \"{known}\"?"),
        None => format!("{place} knows \"{}\"", known.join("\", \"")),
    };
    Err((key.span(), format!("unknown key \"{name}\"; {hint}")))
}

/// Edits (insert, delete, replace) from one word to another.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use memory_ledger::Stance;

    use super::*;

    const RAM: u64 = 16 << 30;

    fn line_and_message(text: &str) -> (usize, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("oomd.toml");
        std::fs::write(&path, text).unwrap();
        let error = Config::load(&path, true, RAM, None).expect_err(text);
        assert!(error.to_string().starts_with(&format!("{}:", path.display())), "{error}");
        (error.line.unwrap_or(0), error.message)
    }

    #[test]
    fn limits_are_read_by_name_and_by_uid() {
        let text = "# all of it\n[[limit]]\nuser = \"daemon\"\nhard = \"25%\"\n\
                    [[limit]]\nuser = 62001\nhard = \"512M\"\nsoft = \"50%\"\n\
                    [[limit]]\nuser = \"62002\"\nhard = 0x1000_0000\nsoft = \"100M\"\n";
        let daemon = users::uid_of("daemon").unwrap().unwrap();
        let expected = vec![
            (daemon, Limit::new(4 << 30, None).unwrap()),
            (62001, Limit::new(512 << 20, Some(256 << 20)).unwrap()),
            (62002, Limit::new(256 << 20, Some(100 << 20)).unwrap()),
        ];
        assert_eq!(Config::parse(text, RAM, None).unwrap().limits, expected);
    }

    #[test]
    fn a_soft_limit_that_is_left_out_leaves_the_measured_margin() {
        let margin = Margin { allocation_bytes_per_s: 5, reclaim_bytes_per_s: 4, reaction_ns: 0 };
        let text = "[[limit]]\nuser = 62001\nhard = \"512M\"\n\
                    [[limit]]\nuser = 62002\nhard = \"512M\"\nsoft = \"80%\"\n";
        let limits = Config::parse(text, RAM, Some(margin)).unwrap().limits;
        let softs: Vec<u64> = limits.iter().map(|(_, limit)| limit.soft_bytes()).collect();
        assert_eq!(softs, [384 << 20, (512 << 20) / 100 * 80 + 9]);
    }

    #[test]
    fn rules_are_read_in_their_order() {
        let text = "[[rule]]\nkill = \"never\"\nexe = \"/usr/sbin/*\"\nuser = \"root\"\n\
                    [[rule]]\nkill = \"prefer\"\nname-regex = \"^java\"\n[[rule]]\nkill = \"ordinary\"\n";
        let rules = Config::parse(text, RAM, None).unwrap().rules;
        let stances: Vec<_> = rules.0.iter().map(|rule| rule.stance).collect();
        assert_eq!(stances, [Stance::Never, Stance::Prefer, Stance::Ordinary]);
        assert_eq!((rules.0[0].uid, rules.0[0].exe.is_some()), (Some(0), true));
        assert!(rules.0[1].name.as_ref().is_some_and(|name| name.matches("java -jar")));
    }

    #[test]
    fn an_empty_or_missing_default_file_limits_nobody() {
        assert_eq!(Config::parse("", RAM, None), Ok(Config::default()));
        assert_eq!(Config::parse("limit = []", RAM, None), Ok(Config::default()));
        let nowhere = Path::new("/nonexistent/oomd.toml");
        assert_eq!(Config::load(nowhere, true, RAM, None), Ok(Config::default()));
        let error = Config::load(nowhere, false, RAM, None).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/oomd.toml: cannot read"), "{error}");
    }

    #[test]
    fn every_mistake_is_named_with_its_line() {
        let cases: &[(&str, usize, &str)] = &[
            ("[[limit]]\nuser = 5000\nhrad = \"1G\"\n", 3, "did you mean \"hard\"?"),
            ("[[limits]]\nuser = 5000\n", 1, "did you mean \"limit\"?"),
            ("\nverbose = true\n", 2, "knows \"limit\", \"machine\", \"rule\""),
            (
                "[[limit]]\nuser = \"nobody-i-know\"\nhard = \"1G\"\n",
                2,
                "no user \"nobody-i-know\"",
            ),
            ("[[limit]]\nuser = 5000\n\n[[limit]]\nuser = 1\nhard = \"1G\"\n", 1, "no \"hard\""),
            ("[[limit]]\nhard = \"1G\"\n", 1, "no \"user\""),
            ("[[limit]]\nuser = -1\nhard = \"1G\"\n", 2, "-1 is no uid"),
            ("[[limit]]\nuser = 4294967295\nhard = \"1G\"\n", 2, "no user"),
            ("[[limit]]\nuser = 4294967296\nhard = \"1G\"\n", 2, "no uid"),
            ("[[limit]]\nuser = true\nhard = \"1G\"\n", 2, "a name or a uid, not a boolean"),
            ("[[limit]]\nuser = \"root\"\nhard = \"1G\"\n", 2, "uid 0 cannot be limited"),
            ("[[limit]]\nuser = 5000\nhard = \"lots\"\n", 3, "no amount of memory"),
            ("[[limit]]\nuser = 5000\nhard = 1.5\n", 3, "not a float"),
            ("[[limit]]\nuser = 5000\nhard = \"0\"\n", 3, "clear it"),
            ("[[limit]]\nuser = 5000\nhard = 512\n", 3, "Is a unit missing?"),
            ("[[limit]]\nuser = 5000\nhard = \"1G\"\nsoft = \"2G\"\n", 4, "above the hard limit"),
            ("[[limit]]\nuser = 5000\nhard = \"1G\"\nsoft = \"0\"\n", 4, "soft limit of 0"),
            ("[limit]\nuser = 5000\nhard = \"1G\"\n", 1, "[[limit]] sections"),
            ("limit = [1]\n", 1, "[[limit]] sections"),
            ("[rule]\nkill = \"never\"\n", 1, "[[rule]] sections"),
            ("[[rule]]\nname = \"x\"\n", 1, "does not say whom to \"kill\""),
            ("[[rule]]\nkill = \"maybe\"\n", 2, "\"never\", \"avoid\""),
            ("[[rule]]\nkill = \"never\"\nname = \"x\"\n", 2, "anybody can call itself that"),
            ("[[rule]]\nkill = \"avoid\"\nnam = \"x\"\n", 3, "did you mean \"name\"?"),
            ("[[rule]]\nkill = \"avoid\"\nname = 5\n", 3, "is a text, not a integer"),
            ("[[rule]]\nkill = \"avoid\"\nname-regex = \"(\"\n", 3, "unclosed group"),
            ("[[rule]]\nkill = \"avoid\"\nuser = \"nobody-i-know\"\n", 3, "no user"),
            (
                "[[rule]]\nkill = \"avoid\"\nname = \"x\"\nname-regex = \"y\"\n",
                4,
                "another pattern",
            ),
            ("[[limit]]\nuser = 5000\nhard = \"1G\n", 3, ""),
            ("[[limit]]\nuser = 5000\nuser = 5001\n", 3, "duplicate key"),
            ("= 5\n", 1, ""),
        ];
        for (text, line, part) in cases {
            let (found, message) = line_and_message(text);
            assert!(found == *line && message.contains(part), "{text:?}: line {found}: {message}");
        }
        let twice = "[[limit]]\nuser = 5\nhard = \"1G\"\n[[limit]]\nuser = \"5\"\nhard = \"2G\"\n";
        let expected = (5, "uid 5 has a limit already, on line 2".to_owned());
        assert_eq!(line_and_message(twice), expected);
    }

    #[test]
    fn what_is_no_text_is_named_without_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("oomd.toml");
        std::fs::write(&path, [0xff, 0xfe, 0]).unwrap();
        let error = Config::load(&path, true, RAM, None).unwrap_err();
        assert!(error.line.is_none() && error.message.contains("UTF-8"), "{error}");
        let error = Config::load(dir.path(), true, RAM, None).unwrap_err();
        assert!(error.message.contains("directory"), "{error}");
    }
}
