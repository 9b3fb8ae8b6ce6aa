//! Kill preferences that an administrator configures for processes: never, avoid or prefer.
//!
//! Rules are matched in order, and the first match decides. A process chooses its own name and
//! command line, so a rule that is to protect reliably has to match a property that the process
//! cannot choose.

use std::borrow::Cow;
use std::fmt;

use regex::{Regex, RegexBuilder};

use crate::account::Uid;
use crate::process::KillPreference;

/// Size limit of a compiled pattern, bytes: one line of a file must not use up the daemon's memory.
const PATTERN_BYTES: usize = 1 << 18;

/// A pattern that a text is matched against.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Parses a glob: `*` matches any text, `?` one character; the whole text must match.
    pub fn glob(text: &str) -> Result<Self, regex::Error> {
        let mut expression = String::from("^");
        for c in text.chars() {
            match c {
                '*' => expression.push_str(".*"),
                '?' => expression.push('.'),
                c => expression.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
        }
        expression.push('$');
        Self::compile(&expression)
    }

    /// Parses a regular expression, which may match anywhere in the text.
    pub fn regex(text: &str) -> Result<Self, regex::Error> {
        Self::compile(text)
    }

    fn compile(expression: &str) -> Result<Self, regex::Error> {
        let mut builder = RegexBuilder::new(expression);
        builder.dot_matches_new_line(true).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
        builder.build().map(Self)
    }

    /// The pattern as a regular expression.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The pattern matches the text.
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

/// Properties of a process that rules match. Those that require reading a file are read only when a
/// rule needs them; `None`: the file cannot be read, and no pattern matches.
pub trait Facts {
    /// Real uid.
    fn uid(&self) -> Uid;
    /// The kernel's `comm`, 15 bytes at most.
    fn name(&self) -> Cow<'_, str>;
    /// Arguments, joined by blanks.
    fn cmdline(&mut self) -> Option<&str>;
    /// Path of the program.
    fn exe(&mut self) -> Option<&str>;
    /// Path of its cgroup, from the root of the hierarchy.
    fn cgroup(&mut self) -> Option<&str>;
}

/// A rule. It matches if all given conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Preference of the processes that match.
    pub preference: KillPreference,
    /// Real uid.
    pub uid: Option<Uid>,
    /// Matches the process name.
    pub name: Option<Pattern>,
    /// Matches the arguments, joined by blanks.
    pub cmdline: Option<Pattern>,
    /// Matches the path of the program.
    pub exe: Option<Pattern>,
    /// Matches the path of the cgroup.
    pub cgroup: Option<Pattern>,
    /// Matches one component of the cgroup's path, as `sshd.service`.
    pub unit: Option<Pattern>,
}

impl Rule {
    /// A rule without conditions.
    pub fn new(preference: KillPreference) -> Self {
        let (name, cmdline, exe, cgroup, unit) = (None, None, None, None, None);
        Self { preference, uid: None, name, cmdline, exe, cgroup, unit }
    }

    /// The rule has a condition that a process cannot forge.
    pub fn is_about_facts(&self) -> bool {
        self.uid.is_some() || self.exe.is_some() || self.cgroup.is_some() || self.unit.is_some()
    }

    fn is_about(&self, facts: &mut impl Facts) -> bool {
        fn found(pattern: &Option<Pattern>, text: Option<&str>) -> bool {
            match (pattern, text) {
                (Some(pattern), Some(text)) => pattern.matches(text),
                (pattern, _) => pattern.is_none(),
            }
        }
        // Properties that are at hand are matched first, those that have to be read after them.
        let named = |facts: &mut _| found(&self.name, Some(&Facts::name(facts)));
        self.uid.is_none_or(|uid| uid == facts.uid())
            && named(facts)
            && (self.exe.is_none() || found(&self.exe, facts.exe()))
            && (self.cmdline.is_none() || found(&self.cmdline, facts.cmdline()))
            && (self.cgroup.is_none() || found(&self.cgroup, facts.cgroup()))
            && self.unit.as_ref().is_none_or(|unit| {
                let path = facts.cgroup().unwrap_or_default();
                path.split('/').any(|folder| !folder.is_empty() && unit.matches(folder))
            })
    }
}

/// Displayed in one line: `never: uid 0, exe ~ ^/usr/sbin/.*$`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { preference, uid, name, cmdline, exe, cgroup, unit } = self;
        f.write_str(match preference {
            KillPreference::Never => "never",
            KillPreference::Avoid => "avoid",
            KillPreference::Ordinary => "ordinary",
            KillPreference::Prefer => "prefer",
        })?;
        let patterns = [
            ("name", name),
            ("cmdline", cmdline),
            ("exe", exe),
            ("cgroup", cgroup),
            ("unit", unit),
        ];
        let mut conditions = patterns
            .into_iter()
            .filter_map(|(what, pattern)| Some(format!("{what} ~ {}", pattern.as_ref()?.as_str())))
            .collect::<Vec<String>>();
        conditions.splice(0..0, uid.map(|uid| format!("uid {uid}")));
        if conditions.is_empty() {
            write!(f, ": every process")
        } else {
            write!(f, ": {}", conditions.join(", "))
        }
    }
}

/// All rules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(pub Vec<Rule>);

impl Rules {
    /// The index of the first rule that matches.
    pub fn first(&self, facts: &mut impl Facts) -> Option<usize> {
        self.0.iter().position(|rule| rule.is_about(facts))
    }

    /// The preference of the processes that this rule is the first to match.
    pub fn preference(&self, first: Option<usize>) -> KillPreference {
        let rule = first.and_then(|index| self.0.get(index));
        rule.map_or(KillPreference::Ordinary, |rule| rule.preference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Known {
        uid: Uid,
        name: &'static str,
        cmdline: Option<&'static str>,
        exe: Option<&'static str>,
        cgroup: Option<&'static str>,
        /// Number of files that were read.
        reads: u32,
    }

    impl Facts for Known {
        fn uid(&self) -> Uid {
            self.uid
        }
        fn name(&self) -> Cow<'_, str> {
            self.name.into()
        }
        fn cmdline(&mut self) -> Option<&str> {
            self.reads += 1;
            self.cmdline
        }
        fn exe(&mut self) -> Option<&str> {
            self.reads += 1;
            self.exe
        }
        fn cgroup(&mut self) -> Option<&str> {
            self.reads += 1;
            self.cgroup
        }
    }

    fn decide(rules: &Rules, facts: &mut Known) -> KillPreference {
        rules.preference(rules.first(facts))
    }

    fn sshd() -> Known {
        Known {
            name: "sshd",
            cmdline: Some("sshd: alice [priv]"),
            exe: Some("/usr/sbin/sshd"),
            cgroup: Some("/system.slice/ssh.service"),
            ..Known::default()
        }
    }

    fn glob(text: &str) -> Option<Pattern> {
        Some(Pattern::glob(text).unwrap())
    }

    #[test]
    fn a_glob_is_the_whole_text_and_a_regex_any_part_of_it() {
        let glob = |pattern: &str, text: &str| Pattern::glob(pattern).unwrap().matches(text);
        assert!(glob("chrom*", "chromium") && glob("?at", "cat") && glob("a.b", "a.b"));
        assert!(!glob("chrom", "chromium") && !glob("a.b", "axb") && !glob("?at", "at"));
        assert!(glob("*", "") && glob("a*c", "a\nb c") && glob("[x]", "[x]"));
        let regex = Pattern::regex("(chrome|firefox)$").unwrap();
        assert!(regex.matches("/opt/firefox") && !regex.matches("firefox-bin"));
        assert!(Pattern::regex("(").is_err());
        assert!(Pattern::regex(&"(a{1000}){1000}".repeat(4)).is_err(), "too large");
    }

    #[test]
    fn all_conditions_of_a_rule_must_hold() {
        let rule = |exe: &str, unit: &str| Rule {
            name: glob("ssh*"),
            exe: glob(exe),
            unit: glob(unit),
            ..Rule::new(KillPreference::Never)
        };
        let preference = |rule: Rule| decide(&Rules(vec![rule]), &mut sshd());
        assert_eq!(preference(rule("/usr/sbin/*", "ssh.service")), KillPreference::Never);
        assert_eq!(preference(rule("/usr/bin/*", "ssh.service")), KillPreference::Ordinary);
        assert_eq!(preference(rule("/usr/sbin/*", "cron.service")), KillPreference::Ordinary);
        assert_eq!(
            preference(Rule { uid: Some(Uid(7)), ..Rule::new(KillPreference::Never) }),
            KillPreference::Ordinary
        );
        let cgroup = Rule { cgroup: glob("/system.slice/*"), ..Rule::new(KillPreference::Avoid) };
        assert_eq!(preference(cgroup), KillPreference::Avoid);
        let cmdline = Rule {
            cmdline: Some(Pattern::regex("alice").unwrap()),
            ..Rule::new(KillPreference::Prefer)
        };
        assert_eq!(preference(cmdline), KillPreference::Prefer);
    }

    #[test]
    fn the_first_rule_that_is_about_it_decides() {
        let spared = Rule { unit: glob("*.service"), ..Rule::new(KillPreference::Avoid) };
        let preferred = Rule { name: glob("sshd"), ..Rule::new(KillPreference::Prefer) };
        let preference = |rules: &[&Rule]| {
            decide(&Rules(rules.iter().map(|&rule| rule.clone()).collect()), &mut sshd())
        };
        assert_eq!(preference(&[&spared, &preferred]), KillPreference::Avoid);
        assert_eq!(preference(&[&preferred, &spared]), KillPreference::Prefer);
        assert_eq!(preference(&[]), KillPreference::Ordinary);
    }

    #[test]
    fn unreadable_properties_match_no_rule_and_are_read_on_demand() {
        let mut unknown = Known { name: "x", ..Known::default() };
        let anything = Rule { exe: glob("*"), ..Rule::new(KillPreference::Never) };
        assert_eq!(decide(&Rules(vec![anything]), &mut unknown), KillPreference::Ordinary);
        let other = Rule { name: glob("y"), exe: glob("*"), ..Rule::new(KillPreference::Never) };
        let mut unread = Known { name: "x", ..Known::default() };
        assert_eq!(decide(&Rules(vec![other]), &mut unread), KillPreference::Ordinary);
        assert_eq!((unknown.reads, unread.reads), (1, 0));
    }

    #[test]
    fn a_rule_is_one_line() {
        assert_eq!(Rule::new(KillPreference::Avoid).to_string(), "avoid: every process");
        let rule =
            Rule { uid: Some(Uid(7)), exe: glob("/usr/*"), ..Rule::new(KillPreference::Never) };
        assert_eq!(rule.to_string(), "never: uid 7, exe ~ ^/usr/.*$");
    }

    #[test]
    fn a_bare_name_matches_the_process_name() {
        let named =
            Rule { name: glob("x"), cmdline: glob("y"), ..Rule::new(KillPreference::Never) };
        assert!(!named.is_about_facts());
        for fact in [
            Rule { uid: Some(Uid(1)), ..named.clone() },
            Rule { exe: glob("x"), ..named.clone() },
            Rule { cgroup: glob("x"), ..named.clone() },
            Rule { unit: glob("x"), ..named },
        ] {
            assert!(fact.is_about_facts());
        }
    }
}
