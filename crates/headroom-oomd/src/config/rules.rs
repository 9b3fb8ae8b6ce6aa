//! The `[[rule]]` entries of the configuration, which set the kill preference of processes.
//!
//! ```toml
//! [[rule]]
//! kill = "never"              # never, avoid (the last of its user), prefer, ordinary
//! unit = "postgresql*"        # all conditions must match; * and ? are wildcards
//!
//! [[rule]]
//! kill = "prefer"
//! user = "alice"
//! name-regex = "^(chrom|firefox)"
//! ```
//! The first rule that matches a process applies. A `never` rule needs a `user`, `exe`, `cgroup` or
//! `unit`, since a process can choose its own `name` and `cmdline`.

use std::borrow::Cow;

use memory_ledger::KillPreference;
use memory_ledger::rules::{Pattern, Rule, Rules};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::limits::{ParsedUser, parse_user};
use super::values::{ConfigDiagnostic, only_keys};
use crate::names::Names;

pub(crate) const KEYS: &[&str] = &[
    "kill",
    "user",
    "name",
    "name-regex",
    "cmdline",
    "cmdline-regex",
    "exe",
    "exe-regex",
    "cgroup",
    "cgroup-regex",
    "unit",
    "unit-regex",
];
const REGEX: &str = "-regex";

/// The longest name of a process, bytes.
const LONGEST_NAME: usize = 15;
/// Suffixes of the systemd units that have processes, or contain units that have.
const UNIT_SUFFIXES: [&str; 6] = [".service", ".scope", ".slice", ".socket", ".mount", ".swap"];

/// Reads the `rule` entry of the document. A rule about a user that is not known is left out, and
/// is a sentence in `idle`, as is one that can match nothing.
pub(crate) fn parse(
    entry: &Spanned<DeValue>,
    names: &mut Names,
    idle: &mut Vec<ConfigDiagnostic>,
) -> Result<Rules, ConfigDiagnostic> {
    let wrong = |at: &Spanned<DeValue>| {
        ConfigDiagnostic::new(at.span(), "rules are written as [[rule]] sections".to_owned())
    };
    let mut rules = Rules::default();
    for entry in entry.get_ref().as_array().ok_or_else(|| wrong(entry))?.iter() {
        let table = entry.get_ref().as_table().ok_or_else(|| wrong(entry))?;
        match parse_rule(entry, table, names)? {
            (rule, None) => {
                rules.0.push(rule);
                idle.extend(table.iter().filter_map(|(key, value)| unmatchable(key, value)));
            }
            (_, Some(why)) => {
                let why = format!("the rule does not apply: {why}");
                idle.push(ConfigDiagnostic::new(entry.span(), why));
            }
        }
    }
    Ok(rules)
}

/// Why no process can match this glob, with the remedy; `None`: one can.
fn unmatchable(key: &Spanned<Cow<'_, str>>, value: &Spanned<DeValue>) -> Option<ConfigDiagnostic> {
    let (key, glob) = (key.get_ref().as_ref(), value.get_ref().as_str()?);
    let why = match key {
        "name" => {
            let bytes = |c: char| if c == '*' { 0 } else { c.len_utf8() };
            let shortest: usize = glob.chars().map(bytes).sum();
            if shortest <= LONGEST_NAME {
                return None;
            }
            let mut kept = glob.to_owned();
            while kept.len() > LONGEST_NAME {
                kept.pop();
            }
            let remedy = if glob.contains('*') {
                "write fewer".to_owned()
            } else {
                format!("write \"{kept}\"")
            };
            format!("a process: the kernel keeps {LONGEST_NAME} bytes of a name; {remedy}")
        }
        "exe" | "cgroup" if !glob.starts_with(['/', '*', '?']) => {
            format!("a process: it is a path from the root; write it whole, or \"*/{glob}\"")
        }
        "unit"
            if !glob.contains(['*', '?']) && !UNIT_SUFFIXES.iter().any(|s| glob.ends_with(s)) =>
        {
            format!("a unit of systemd: their names have a suffix; write \"{glob}.service\"")
        }
        _ => return None,
    };
    let why = format!("the rule's {key} \"{glob}\" never matches {why}");
    Some(ConfigDiagnostic::new(value.span(), why))
}

/// The rule, and why its user is not known.
fn parse_rule(
    entry: &Spanned<DeValue>,
    table: &DeTable,
    names: &mut Names,
) -> Result<(Rule, Option<String>), ConfigDiagnostic> {
    only_keys(table, KEYS, "a rule")?;
    let kill = table.get("kill").ok_or_else(|| {
        ConfigDiagnostic::new(
            entry.span(),
            "this rule has no \"kill\"; add kill = \"avoid\", \"never\", \"ordinary\" or \"prefer\""
                .to_owned(),
        )
    })?;
    let (mut rule, mut unknown) = (Rule::new(preference(kill)?), None);
    for (key, value) in table {
        let key = key.get_ref().as_ref();
        let place = match key.strip_suffix(REGEX).unwrap_or(key) {
            "kill" => continue,
            "user" => {
                match parse_user(value, names)? {
                    ParsedUser::Uid(uid) => rule.uid = Some(uid),
                    ParsedUser::Unknown(why) => unknown = Some(why),
                }
                continue;
            }
            "name" => &mut rule.name,
            "cmdline" => &mut rule.cmdline,
            "exe" => &mut rule.exe,
            "cgroup" => &mut rule.cgroup,
            _ => &mut rule.unit,
        };
        if place.is_some() {
            let what = key.strip_suffix(REGEX).unwrap_or(key);
            return Err(ConfigDiagnostic::new(
                value.span(),
                format!("this rule has another pattern for \"{what}\"; one regex can be both"),
            ));
        }
        *place = Some(pattern(key, value)?);
    }
    if rule.preference == KillPreference::Never && !rule.is_about_facts() && unknown.is_none() {
        let why = "a \"never\" rule needs a \"user\", \"exe\", \"cgroup\" or \"unit\", since a \
                   process can choose its name; \"avoid\" does not";
        return Err(ConfigDiagnostic::new(kill.span(), why.to_owned()));
    }
    Ok((rule, unknown))
}

fn preference(value: &Spanned<DeValue>) -> Result<KillPreference, ConfigDiagnostic> {
    match value.get_ref().as_str() {
        Some("never") => Ok(KillPreference::Never),
        Some("avoid") => Ok(KillPreference::Avoid),
        Some("ordinary") => Ok(KillPreference::Ordinary),
        Some("prefer") => Ok(KillPreference::Prefer),
        _ => Err(ConfigDiagnostic::new(
            value.span(),
            "\"kill\" is \"never\", \"avoid\", \"ordinary\" or \"prefer\"".to_owned(),
        )),
    }
}

fn pattern(key: &str, value: &Spanned<DeValue>) -> Result<Pattern, ConfigDiagnostic> {
    let complain = |message: String| ConfigDiagnostic::new(value.span(), message);
    let text = value.get_ref().as_str().ok_or_else(|| {
        complain(format!("\"{key}\" is a text, not a {}", value.get_ref().type_str()))
    })?;
    let compiled = if key.ends_with(REGEX) { Pattern::regex(text) } else { Pattern::glob(text) };
    compiled.map_err(|error| {
        // The library's message is an annotated excerpt of the pattern; its last line is the error
        // itself.
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        complain(format!("\"{key}\": {}", last.strip_prefix("error: ").unwrap_or(last)))
    })
}
