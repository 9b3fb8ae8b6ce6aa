//! The configuration: a file, and the drop-ins beside it.
//!
//! ```toml
//! observe = true      # decisions are recorded, and no process is killed
//! backstop = true     # users' slices have a limit of the memory controller, too
//! grace-s = 60        # a limit that is lowered below the usage takes effect after this time
//!
//! [[limit]]           # see `limits`
//! user = "alice"
//! hard = "2G"
//!
//! [machine]           # see `system`
//! soft = "10%"
//!
//! [[rule]]            # see `rules`
//! kill = "never"
//! unit = "postgresql*"
//! ```
//!
//! `[hooks]` and `[warnings]` are in `notifications`.
//!
//! After `oomd.toml` the files `oomd.d/*.toml` beside it are read in the order of their names and
//! merged: limits and rules are appended, and for each key of the other sections the last file
//! takes precedence. A limit replaces one for the same target in an *earlier file*, so that a
//! drop-in can override the main file. A duplicate within one file is an error.
//!
//! A user that is named by several limits has that of the most specific kind (`user`, `users`,
//! `group` and `each`, `*`), and of several of one kind the first.
//!
//! What refers to a name without a number, or without one so far, is left out. The daemon builds
//! the configuration again from the same texts once the name is known.

mod limits;
pub mod notifications;
pub mod ordinary_users;
mod rules;
mod system;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use control::configuration::{Configuration, ConfiguredLimit, MachineLevels};
use headroom_daemon::trusted_path::{TrustError, Trusted};
use memory_ledger::{AccountId, CgroupLimit, CgroupPattern, Groups, Limit, Rules, Thresholds, Uid};
use toml::de::DeTable;

use limits::{LimitTarget, ParsedLimit};
use notifications::NotificationConfig;
use values::{ConfigDiagnostic, number, only_keys, truth};

use crate::names::Names;

/// The keys outside of all sections.
const OBSERVE: &str = "observe";
const BACKSTOP: &str = "backstop";
const GRACE: &str = "grace-s";
/// Default of [`GRACE`], seconds: enough to save one's work.
const DEFAULT_GRACE_S: u32 = 60;
/// Longest grace, seconds: a day.
pub const MAX_GRACE_S: u32 = 86_400;
/// All sections, and the keys that are known in each.
pub const SECTIONS: [(&str, &[&str]); 5] = [
    ("limit", limits::KEYS),
    ("machine", system::KEYS),
    ("rule", rules::KEYS),
    ("hooks", notifications::HOOKS_KEYS),
    ("warnings", notifications::WARNINGS_KEYS),
];

/// A limit of each member of a group by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EachLimit {
    /// Name of the system's group.
    pub group: String,
    /// The known members that have this limit, ascending.
    pub uids: Vec<Uid>,
    /// The limit.
    pub limit: Limit,
}

/// The merged configuration of all files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The files that were read, in this order.
    pub files: Vec<PathBuf>,
    /// At most one limit per user and per group.
    pub limits: Vec<(AccountId, Limit)>,
    /// The limits of each member of a group, which `limits` contain as well.
    pub each: Vec<EachLimit>,
    /// Users that share a limit.
    pub groups: Groups,
    /// Default limit of each ordinary user.
    pub default_limit: Option<Limit>,
    /// Limits of cgroups and login sessions, in the order of the files.
    pub cgroups: Vec<CgroupLimit>,
    /// Thresholds of system memory pressure; `None`: not monitored.
    pub machine: Option<Thresholds>,
    /// Preferences for processes.
    pub rules: Rules,
    /// Metrics, hooks and warnings.
    pub notifications: NotificationConfig,
    /// Whether kills are carried out.
    pub enforcement: Enforcement,
    /// Users' slices have limits of the memory controller behind the users' limits.
    pub backstop: bool,
    /// How long a limit that is lowered below the usage does not act, seconds.
    pub grace_s: u32,
    /// Limits and rules that do not act at all, a sentence each.
    pub idle: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        let (files, limits) = (Vec::new(), Vec::new());
        let machine = Some(Thresholds::default());
        Self {
            files,
            limits,
            each: Vec::new(),
            groups: Groups::default(),
            default_limit: None,
            cgroups: Vec::new(),
            machine,
            rules: Rules::default(),
            notifications: NotificationConfig::default(),
            enforcement: Enforcement::default(),
            backstop: false,
            grace_s: DEFAULT_GRACE_S,
            idle: Vec::new(),
        }
    }
}

/// An error in a configuration file: the place and the message.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: PathBuf,
    /// Counted from 1; `None` if the file cannot be read.
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

/// Paths of the configuration.
#[derive(Clone, Debug)]
pub struct Files {
    /// The first file; its drop-ins are in the folder of the same name with `.d` in place of
    /// `.toml`.
    pub main: PathBuf,
    /// Whether a missing file is an empty configuration.
    pub may_be_missing: bool,
}

/// The files as they were read.
#[derive(Default)]
pub struct Texts(Vec<Text>);

/// A file that was read.
struct Text {
    path: PathBuf,
    text: String,
}

impl Text {
    fn line(&self, at: &Range<usize>) -> usize {
        let before = self.text.get(..at.start).unwrap_or_default();
        before.matches('\n').count() + 1
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }

    fn error(&self, diagnostic: ConfigDiagnostic) -> ConfigError {
        let ConfigDiagnostic { at, message } = diagnostic;
        ConfigError { path: self.path.clone(), line: Some(self.line(&at)), message }
    }
}

fn unreadable(path: &Path, what: &str, error: &TrustError) -> ConfigError {
    let message = match error {
        TrustError::Io(error) => format!("cannot read {what}: {error}"),
        TrustError::Untrusted(message) => format!("{what} is not read: {message}"),
    };
    ConfigError { path: path.to_owned(), line: None, message }
}

fn is_missing(error: &TrustError) -> bool {
    matches!(error, TrustError::Io(error) if error.kind() == std::io::ErrorKind::NotFound)
}

/// Reads a file that only root and the daemon's own user can change: it names programs that run
/// with the daemon's privileges.
fn read_trusted(path: &Path) -> Result<String, TrustError> {
    Ok(Trusted::open(path)?.read_to_string()?)
}

/// The same; `Ok(None)`: the file does not exist.
fn read_trusted_if_there(path: &Path) -> Result<Option<String>, TrustError> {
    match read_trusted(path) {
        Err(TrustError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// The entries of a folder that only root and the daemon's own user can change.
fn list_trusted(folder: &Path) -> Result<Vec<PathBuf>, TrustError> {
    Trusted::open(folder)?;
    let entries = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    entries.collect()
}

impl Files {
    /// The folder of the drop-ins.
    pub fn drop_ins(&self) -> PathBuf {
        self.main.with_extension("d")
    }

    /// Reads the file and its drop-ins.
    pub fn read(&self) -> Result<Texts, ConfigError> {
        let mut texts = Vec::new();
        match read_trusted(&self.main) {
            Ok(text) => texts.push(Text { path: self.main.clone(), text }),
            Err(e) if self.may_be_missing && is_missing(&e) => {}
            Err(e) => return Err(unreadable(&self.main, "the configuration", &e)),
        }
        let folder = self.drop_ins();
        let mut paths = match list_trusted(&folder) {
            Ok(paths) => paths,
            Err(e) if is_missing(&e) => Vec::new(),
            Err(e) => return Err(unreadable(&folder, "the folder of drop-ins", &e)),
        };
        // Ignores hidden files, such as an editor's `.oomd.toml.swp`.
        let hidden =
            |path: &Path| path.file_name().is_some_and(|n| n.as_encoded_bytes()[0] == b'.');
        paths.retain(|path| path.extension().is_some_and(|it| it == "toml") && !hidden(path));
        paths.sort();
        for path in paths {
            let text = read_trusted(&path);
            let text = text.map_err(|e| unreadable(&path, "this drop-in", &e))?;
            texts.push(Text { path, text });
        }
        Ok(Texts(texts))
    }
}

/// A limit and the file and line that set it.
struct Entry {
    limit: Limit,
    uids: Vec<Uid>,
    is_list: bool,
    pattern: Option<CgroupPattern>,
    file: usize,
    line: usize,
}

/// Accumulates the files in the order in which they are read.
#[derive(Default)]
struct Merge {
    /// By target. Each entry records the file and line that set it.
    limits: BTreeMap<LimitTarget, Entry>,
    machine: system::MachineMerge,
    rules: Rules,
    notifications: NotificationConfig,
    enforcement: Enforcement,
    backstop: bool,
    grace_s: Option<u32>,
    idle: Vec<String>,
}

impl Merge {
    fn add(
        &mut self,
        file: usize,
        text: &Text,
        ram_bytes: u64,
        names: &mut Names,
    ) -> Result<(), ConfigDiagnostic> {
        let document = DeTable::parse(&text.text).map_err(|e| {
            ConfigDiagnostic::new(e.span().unwrap_or_default(), e.message().replace('\n', "; "))
        })?;
        let table = &document.into_inner();
        let mut known = SECTIONS.map(|(name, _)| name).to_vec();
        known.extend([OBSERVE, BACKSTOP, GRACE]);
        only_keys(table, &known, "the configuration")?;
        if let Some(value) = table.get(OBSERVE) {
            self.enforcement = if truth(value)? { Enforcement::Observe } else { Enforcement::Kill };
        }
        if let Some(value) = table.get(BACKSTOP) {
            self.backstop = truth(value)?;
        }
        if let Some(value) = table.get(GRACE) {
            self.grace_s = Some(number(value, MAX_GRACE_S.into())? as u32);
        }
        if let Some(section) = table.get("machine") {
            self.machine.add(file, section)?;
        }
        let sections = [
            ("hooks", NotificationConfig::add_hooks as fn(&mut NotificationConfig, _) -> _),
            ("warnings", NotificationConfig::add_warnings),
        ];
        for (name, add) in sections {
            if let Some(section) = table.get(name) {
                add(&mut self.notifications, section)?;
            }
        }
        if let Some(entry) = table.get("rule") {
            let mut idle = Vec::new();
            self.rules.0.extend(rules::parse(entry, names, &mut idle)?.0);
            let describe = |ConfigDiagnostic { at, message }| {
                format!("{}: {message}", text.place(text.line(&at)))
            };
            self.idle.extend(idle.into_iter().map(describe));
        }
        let Some(entry) = table.get("limit") else { return Ok(()) };
        for parsed in limits::parse(entry, ram_bytes, names)? {
            let line = text.line(&parsed.at);
            let ParsedLimit { target, uids, is_list, unknown, pattern, limit, at } = parsed;
            let place = text.place(line);
            let idle = |why: String| format!("{place}: the limit does not apply: {why}");
            self.idle.extend(unknown.into_iter().map(idle));
            let Some(target) = target else { continue };
            if let Some(Entry { file: of, line, .. }) = self.limits.get(&target)
                && *of == file
            {
                let message = format!("{target} a limit already, on line {line}");
                return Err(ConfigDiagnostic::new(at, message));
            }
            self.limits.insert(target, Entry { limit, uids, is_list, pattern, file, line });
        }
        Ok(())
    }

    /// Leaves each user in one limit: the most specific one, and of several of one kind the first.
    fn assign_users(&mut self, texts: &[Text]) {
        let rank = |target: &LimitTarget, entry: &Entry| match target {
            LimitTarget::User(_) => 0,
            _ if entry.is_list => 1,
            _ => 2,
        };
        let mut order: Vec<(&LimitTarget, &mut Entry)> = self.limits.iter_mut().collect();
        order.sort_by_key(|(target, entry)| (rank(target, entry), entry.file, entry.line));
        let mut assigned: BTreeMap<Uid, (u32, String)> = BTreeMap::new();
        for (target, entry) in order {
            let rank = rank(target, entry);
            let place = texts[entry.file].place(entry.line);
            let (before, mut shadow) = (entry.uids.len(), None);
            entry.uids.retain(|uid| match assigned.get(uid) {
                Some((by, first)) => {
                    if *by == 1 && rank == 1 {
                        self.idle.push(format!("{place}: uid {uid} has the limit of {first}"));
                    }
                    shadow = Some(first.clone());
                    false
                }
                None => {
                    assigned.insert(*uid, (rank, place.clone()));
                    true
                }
            });
            if let Some(shadow) = shadow
                && entry.uids.is_empty()
            {
                let which = if before == 1 { "its user has" } else { "its users have" };
                self.idle.push(format!(
                    "{place}: the limit does not apply: {which} other limits, as in {shadow}"
                ));
            }
        }
    }
}

/// The limits of cgroups, in the order of the files.
fn of_cgroups(limits: BTreeMap<LimitTarget, Entry>) -> Vec<CgroupLimit> {
    let of_cgroup = |entry: Entry| {
        let limit = CgroupLimit { pattern: entry.pattern?, limit: entry.limit };
        Some(((entry.file, entry.line), limit))
    };
    let mut found: Vec<_> = limits.into_values().filter_map(of_cgroup).collect();
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, limit)| limit).collect()
}

impl Config {
    /// Reads the files and builds the configuration.
    pub fn load(files: &Files, ram_bytes: u64, names: &mut Names) -> Result<Self, ConfigError> {
        Self::build(&files.read()?, ram_bytes, names)
    }

    /// Builds the configuration; percentages are of `ram_bytes`. Does not wait for names that are
    /// looked up.
    pub fn build(texts: &Texts, ram_bytes: u64, names: &mut Names) -> Result<Self, ConfigError> {
        let Texts(texts) = texts;
        names.begin_configuration();
        let mut merge = Merge::default();
        for (file, text) in texts.iter().enumerate() {
            let added = merge.add(file, text, ram_bytes, names);
            added.map_err(|error| text.error(error))?;
        }
        merge.assign_users(texts);
        let machine = merge.machine.finish();
        let machine = machine.map_err(|(file, error)| texts[file].error(error))?;
        let mut config = Self {
            machine,
            rules: merge.rules,
            notifications: merge.notifications,
            enforcement: merge.enforcement,
            backstop: merge.backstop,
            grace_s: merge.grace_s.unwrap_or(DEFAULT_GRACE_S),
            idle: merge.idle,
            ..Self::default()
        };
        config.files = texts.iter().map(|text| text.path.clone()).collect();
        let group = |(target, entry): (&LimitTarget, &Entry)| match target {
            LimitTarget::Group(name) => Some((name.clone(), entry.uids.clone())),
            _ => None,
        };
        config.groups = Groups::new(merge.limits.iter().filter_map(group));
        let group = |name: &str| config.groups.iter().find(|group| group.name == name);
        let mut of_users: BTreeMap<AccountId, Limit> = BTreeMap::new();
        for (target, Entry { limit, uids, .. }) in &merge.limits {
            match target {
                LimitTarget::User(uid) => {
                    of_users.insert(AccountId::User(*uid), *limit);
                }
                LimitTarget::Each(group) => {
                    of_users.extend(uids.iter().map(|uid| (AccountId::User(*uid), *limit)));
                    let (group, uids) = (group.clone(), uids.clone());
                    config.each.push(EachLimit { group, uids, limit: *limit });
                }
                LimitTarget::Group(name) => {
                    let account = group(name).map(|group| AccountId::Group(group.id));
                    config.limits.extend(account.map(|account| (account, *limit)));
                }
                LimitTarget::OrdinaryUsers => config.default_limit = Some(*limit),
                LimitTarget::Cgroups(_) => {}
            }
        }
        config.limits = of_users.into_iter().chain(config.limits).collect();
        config.cgroups = of_cgroups(merge.limits);
        Ok(config)
    }

    /// The configuration for display and as JSON. `ordinary` is the range of uids of ordinary
    /// users, or the error in the file that defines it.
    pub fn describe(&self, ordinary: Result<RangeInclusive<Uid>, String>) -> Configuration {
        let (ordinary, problem) = match ordinary {
            Ok(uids) => (uids, None),
            Err(problem) => (ordinary_users::ORDINARY, Some(problem)),
        };
        let limit = describe_limit;
        let is_one_of_each = |id: &AccountId| {
            id.user().is_some_and(|uid| self.each.iter().any(|each| each.uids.contains(&uid)))
        };
        let single = self.limits.iter().filter(|(id, _)| !is_one_of_each(id));
        let users = single.map(|(id, of)| match (id, self.groups.get(*id)) {
            (_, Some(group)) => limit(format!("@{}", group.name), group.uids.clone(), of),
            (AccountId::User(uid), None) => limit(uid.to_string(), Vec::new(), of),
            (id, None) => limit(id.to_string(), Vec::new(), of),
        });
        let cgroups =
            self.cgroups.iter().map(|it| limit(it.pattern.to_string(), Vec::new(), &it.limit));
        Configuration {
            files: self.files.iter().map(|path| path.display().to_string()).collect(),
            observe: self.enforcement == Enforcement::Observe,
            backstop: self.backstop,
            limits: users.chain(self.default_limits()).chain(cgroups).collect(),
            machine: self.machine.map(|levels| MachineLevels {
                soft: levels.soft.to_string(),
                hard: levels.hard.to_string(),
                swap_soft: levels.swap_soft.to_string(),
                swap_hard: levels.swap_hard.to_string(),
                forecast_ms: levels.forecast_ms,
                stall_percent: levels.stall_percent,
                stall_ms: levels.stall_ms,
                max_kills: levels.kills.most,
                max_kills_window_ms: levels.kills.within_ms,
            }),
            rules: self.rules.0.iter().map(ToString::to_string).collect(),
            notifications: self.notifications.to_string().lines().map(str::to_owned).collect(),
            ordinary_uids: [*ordinary.start(), *ordinary.end()],
            grace_s: self.grace_s,
            warnings: problem.iter().chain(&self.idle).cloned().collect(),
        }
    }

    /// The limits that apply to each of several users by itself.
    pub fn default_limits(&self) -> Vec<ConfiguredLimit> {
        let each = self.each.iter().map(|EachLimit { group, uids, limit }| {
            describe_limit(format!("each of @{group}"), uids.clone(), limit)
        });
        let all = self.default_limit.iter();
        each.chain(all.map(|of| describe_limit("*".to_owned(), Vec::new(), of))).collect()
    }
}

fn describe_limit(user: String, members: Vec<Uid>, limit: &Limit) -> ConfiguredLimit {
    ConfiguredLimit {
        user,
        members,
        exempt: limit.is_none(),
        counts: limit.count().unusual_names(),
        hard_bytes: limit.hard_bytes(),
        soft_bytes: limit.soft_bytes(),
        warn_bytes: limit.warn_bytes(),
        soft_signal_ms: limit.terminate_ms(),
    }
}

/// What happens after a decision to kill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// The victim is killed.
    #[default]
    Kill,
    /// No signal is sent; the decision is recorded.
    Observe,
}

#[cfg(test)]
mod tests {
    use memory_ledger::KillPreference;

    use super::*;
    use crate::names::Keep;

    const RAM: u64 = 16 << 30;

    fn user(number: u32) -> AccountId {
        AccountId::User(Uid(number))
    }

    /// Writes these files to a directory and loads them.
    fn load(files: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("oomd.d")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Config::load(&in_folder(dir.path()), RAM, &mut names())
    }

    fn names() -> Names {
        Names::start(None, Keep::Nothing).unwrap()
    }

    fn in_folder(dir: &Path) -> Files {
        Files { main: dir.join("oomd.toml"), may_be_missing: true }
    }

    fn parse(text: &str) -> Config {
        load(&[("oomd.toml", text)]).unwrap()
    }

    fn line_and_message(text: &str) -> (usize, String) {
        let error = load(&[("oomd.toml", text)]).expect_err(text);
        assert!(error.to_string().contains("/oomd.toml:"), "{error}");
        (error.line.unwrap_or(0), error.message)
    }

    #[test]
    fn the_installed_configuration_avoids_units_and_programs_and_exempts_none() {
        let rules = parse(include_str!("../../../../dist/examples/oomd.toml")).rules.0;
        assert!(!rules.is_empty());
        for rule in rules {
            assert_eq!(rule.preference, KillPreference::Avoid, "{rule}");
            assert!(rule.exe.is_some() != rule.unit.is_some(), "{rule}");
            assert!(rule.name.is_none() && rule.cmdline.is_none(), "{rule}");
            assert!(rule.exe.is_none_or(|exe| exe.as_str().starts_with("^/usr/")));
        }
    }

    #[test]
    fn a_backstop_is_off_unless_the_last_file_with_the_key_sets_it() {
        assert!(!parse("").backstop);
        assert!(parse("backstop = true\n").backstop);
        let files = [("oomd.toml", "backstop = true"), ("oomd.d/1.toml", "backstop = false")];
        assert!(!load(&files).unwrap().backstop);
        assert!(line_and_message("backstop = 1\n").1.contains("true"));
    }

    #[test]
    fn limits_are_read_by_name_and_by_uid() {
        let text = "# all of it\n[[limit]]\nuser = \"daemon\"\nhard = \"25%\"\n\
                    [[limit]]\nuser = 62001\nhard = \"512M\"\nsoft = \"50%\"\n\
                    [[limit]]\nuser = \"62002\"\nhard = 0x1000_0000\nsoft = \"100M\"\n";
        let daemon = headroom_daemon::permissions::uid_of("daemon").unwrap().unwrap();
        let expected = vec![
            (AccountId::User(daemon), Limit::new(4 << 30, None).unwrap()),
            (user(62001), Limit::new(512 << 20, Some(256 << 20)).unwrap()),
            (user(62002), Limit::new(256 << 20, Some(100 << 20)).unwrap()),
        ];
        assert_eq!(parse(text).limits, expected);
    }

    #[test]
    fn rules_are_read_in_their_order() {
        let text = "[[rule]]\nkill = \"never\"\nexe = \"/usr/sbin/*\"\nuser = \"root\"\n\
                    [[rule]]\nkill = \"prefer\"\nname-regex = \"^java\"\n\
                    [[rule]]\nkill = \"ordinary\"\n";
        let rules = parse(text).rules;
        let preferences: Vec<_> = rules.0.iter().map(|rule| rule.preference).collect();
        assert_eq!(
            preferences,
            [KillPreference::Never, KillPreference::Prefer, KillPreference::Ordinary]
        );
        assert_eq!((rules.0[0].uid, rules.0[0].exe.is_some()), (Some(Uid::ROOT), true));
        assert!(rules.0[1].name.as_ref().is_some_and(|name| name.matches("java -jar")));
    }

    #[test]
    fn an_empty_or_missing_default_file_sets_no_limit() {
        for text in ["", "limit = []"] {
            assert_eq!(Config { files: Vec::new(), ..parse(text) }, Config::default());
        }
        let mut nowhere = in_folder(Path::new("/nonexistent"));
        assert_eq!(Config::load(&nowhere, RAM, &mut names()), Ok(Config::default()));
        nowhere.may_be_missing = false;
        let error = Config::load(&nowhere, RAM, &mut names()).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/oomd.toml: cannot read"), "{error}");
    }

    #[test]
    fn every_mistake_is_named_with_its_line() {
        let cases: &[(&str, usize, &str)] = &[
            ("[[limit]]\nuser = 5000\nhrad = \"1G\"\n", 3, "did you mean \"hard\"?"),
            ("[[limits]]\nuser = 5000\n", 1, "did you mean \"limit\"?"),
            ("\nverbose = true\n", 2, "accepts \"limit\", \"machine\", \"rule\", \"hooks\""),
            ("[[limit]]\nuser = 5000\n\n[[limit]]\nuser = 1\nhard = \"1G\"\n", 1, "no \"hard\""),
            ("[[limit]]\nhard = \"1G\"\n", 1, "no target: add \"user\""),
            ("[[limit]]\nuser = -1\nhard = \"1G\"\n", 2, "-1 is no uid"),
            ("[[limit]]\nuser = 4294967295\nhard = \"1G\"\n", 2, "no user"),
            ("[[limit]]\nuser = 4294967296\nhard = \"1G\"\n", 2, "no uid"),
            ("[[limit]]\nuser = true\nhard = \"1G\"\n", 2, "a name or a uid, not a boolean"),
            ("[[limit]]\nuser = \"root\"\nhard = \"1G\"\n", 2, "uid 0 cannot be limited"),
            ("[[limit]]\nuser = 5000\nhard = \"lots\"\n", 3, "not an amount of memory"),
            ("[[limit]]\nuser = 5000\nhard = 1.5\n", 3, "not a float"),
            ("[[limit]]\nuser = 5000\nhard = \"0\"\n", 3, "clear it"),
            ("[[limit]]\nuser = 5000\nhard = 512\n", 3, "Add a unit"),
            ("[[limit]]\nuser = 5000\nhard = \"1G\"\nsoft = \"2G\"\n", 4, "above the hard limit"),
            ("[[limit]]\nuser = 5000\nhard = \"1G\"\nsoft = \"0\"\n", 4, "soft limit of 0"),
            ("[[limit]]\nuser = 5000\nhard = \"1G\"\nwarn = \"95%\"\n", 4, "the soft limit (92"),
            ("[[limit]]\nuser = 5000\nhard = \"none\"\nwarn = \"95%\"\n", 4, "exempts users"),
            ("[[limit]]\nsession = \"*\"\nhard = \"1G\"\nwarn = \"9%\"\n", 4, "at \"soft\" only"),
            ("[limit]\nuser = 5000\nhard = \"1G\"\n", 1, "[[limit]] sections"),
            ("limit = [1]\n", 1, "[[limit]] sections"),
            ("[rule]\nkill = \"never\"\n", 1, "[[rule]] sections"),
            ("[[rule]]\nname = \"x\"\n", 1, "has no \"kill\"; add kill = \"avoid\""),
            ("[[rule]]\nkill = \"maybe\"\n", 2, "\"never\", \"avoid\""),
            (
                "[[rule]]\nkill = \"never\"\nname = \"x\"\n",
                2,
                "since a process can choose its name",
            ),
            ("[[rule]]\nkill = \"avoid\"\nnam = \"x\"\n", 3, "did you mean \"name\"?"),
            ("[[rule]]\nkill = \"avoid\"\nname = 5\n", 3, "is a text, not a integer"),
            ("[[rule]]\nkill = \"avoid\"\nname-regex = \"(\"\n", 3, "unclosed group"),
            (
                "[[rule]]\nkill = \"avoid\"\nname = \"x\"\nname-regex = \"y\"\n",
                4,
                "another pattern",
            ),
            ("[[limit]]\nuser = 5000\nhard = \"1G\n", 3, ""),
            ("[[limit]]\nuser = 5000\nuser = 5001\n", 3, "duplicate key"),
            ("= 5\n", 1, ""),
            ("[[limit]]\ncgroup = \"a\"\nhard = \"1G\"\n", 2, "a path from the root"),
            ("[[limit]]\nhard = \"1G\"\ncgroup = \"/\"\n", 3, "[machine]"),
            ("[[limit]]\ncgroup = \"/a/../b\"\nhard = \"1G\"\n", 2, "is called \"..\""),
            ("[[limit]]\ncgroup = 5\nhard = \"1G\"\n", 2, "not a integer"),
            ("[[limit]]\nname = \"a\"\nsession = \"*\"\nhard = \"1G\"\n", 2, "is for \"users\""),
            ("[[limit]]\nuser = 5\ncgroup = \"/a\"\nhard = \"1G\"\n", 1, "\"user\" and \"cgroup\""),
            ("[[limit]]\ncgroup = \"/a\"\nhard = \"1\"\n", 3, "Add a unit"),
            ("[[limit]]\nuser = 5\nhard = \"none\"\nsoft = \"1G\"\n", 4, "exempts users"),
            ("[[limit]]\nsession = \"*\"\nhard = \"none\"\n", 2, "is left out instead"),
            ("[[limit]]\nuser = 5\nhard = \"1G\"\nsoft-signal = \"HUP\"\n", 4, "is \"TERM\""),
            ("[[limit]]\nuser = 5\nhard = \"1G\"\nsoft-signal-s = 5\n", 4, "add soft-signal"),
            (
                "[[limit]]\nuser = 5\nhard = \"1G\"\nsoft-signal = \"TERM\"\nsoft-signal-s = 601\n",
                5,
                "from 0 to 600",
            ),
            (
                "[[limit]]\nsession = \"*\"\nhard = \"1G\"\nsoft-signal = \"TERM\"\n",
                4,
                "have no \"soft-signal\"",
            ),
            ("[[limit]]\nuser = 5\nhard = \"none\"\nsoft-signal = \"TERM\"\n", 4, "exempts users"),
            ("grace-s = 86401\n", 1, "from 0 to 86400"),
            ("[[limit]]\nhard = \"1G\"\ngroup = 5\n", 3, "name of a group of the system's"),
            ("[[limit]]\nusers = [5000]\nhard = \"1G\"\n", 2, "need a \"name\""),
            ("[[limit]]\nname = \"a\"\nusers = []\nhard = \"1G\"\n", 3, "list of names and uids"),
            ("[[limit]]\nname = \"a\"\nusers = [5000, 5000]\nhard = \"1G\"\n", 3, "already"),
            ("[[limit]]\nname = \"a\"\nusers = [5000,\n0]\nhard = \"1G\"\n", 4, "uid 0 cannot"),
            ("[[limit]]\nname = \"a b\"\nusers = [5000]\nhard = \"1G\"\n", 2, "without spaces"),
            ("[[limit]]\nname = \"a\"\nuser = 5000\nhard = \"1G\"\n", 2, "is for \"users\""),
            ("[[limit]]\nuser = 1\ngroup = \"bin\"\nhard = \"1G\"\n", 1, "\"user\" and \"group\""),
            ("[[limit]]\nuser = 4294901760\nhard = \"1G\"\n", 2, "cgroups and groups"),
            (
                "[[limit]]\nuser = 5\nhard = \"1G\"\naccount = [\"anon\",\n\"shmen\"]\n",
                5,
                "did you mean \"shmem\"?",
            ),
            (
                "[[limit]]\nuser = 5\nhard = \"1G\"\naccount = [\"cache\"]\n",
                4,
                "\"swap\", \"file\"",
            ),
            ("[[limit]]\nuser = 5\nhard = \"1G\"\naccount = []\n", 4, "is a list of"),
            ("[[limit]]\nuser = 5\nhard = \"1G\"\naccount = \"anon\"\n", 4, "is a list of"),
            ("[[limit]]\nuser = 5\nhard = \"1G\"\naccount = [\"anon\", \"anon\"]\n", 4, "already"),
            ("[machine]\nsoft = \"1%\"\n", 2, "\"hard\" (5%) is above \"soft\" (1%)"),
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
    fn drop_ins_are_read_in_the_order_of_their_names_after_the_file() {
        let main = "[[limit]]\nuser = 5001\nhard = \"1G\"\n[[limit]]\nuser = 5002\nhard = \"1G\"\n\
                    [[rule]]\nkill = \"avoid\"\n[machine]\nsoft = \"12%\"\nstall-ms = 7000\n";
        let ten = "[[limit]]\nuser = 5002\nhard = \"3G\"\n[[limit]]\nuser = \"*\"\nhard = \"25%\"\n\
                   [[rule]]\nkill = \"prefer\"\n";
        let twenty = "[[limit]]\nuser = 5002\nhard = \"2G\"\n[machine]\nsoft = \"8%\"\n";
        let files = [
            ("oomd.d/20-b.toml", twenty),
            ("oomd.d/10-a.toml", ten),
            ("oomd.toml", main),
            ("oomd.d/.30-hidden.toml", "nonsense"),
            ("oomd.d/10-a.toml.bak", "nonsense"),
        ];
        let config = load(&files).unwrap();
        let limit = |gib: u64| Limit::new(gib << 30, None).unwrap();
        assert_eq!(
            config.limits,
            [(user(5001), limit(1)), (user(5002), limit(2))],
            "the later file counts"
        );
        assert_eq!(config.default_limit, Some(limit(4)));
        let preferences: Vec<_> = config.rules.0.iter().map(|rule| rule.preference).collect();
        assert_eq!(preferences, [KillPreference::Avoid, KillPreference::Prefer]);
        let machine = config.machine.unwrap();
        assert_eq!((machine.soft, machine.stall_ms), (memory_ledger::Level::percent(8), 7000));
        let names = config.files.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
        assert!(names.eq(["oomd.toml", "10-a.toml", "20-b.toml"]));
    }

    #[test]
    fn users_share_a_limit_under_a_name_and_a_later_file_replaces_it() {
        let main = "[[limit]]\nname = \"students\"\nusers = [5003, \"5001\"]\nhard = \"1G\"\n\
                    [[limit]]\nuser = 5002\nhard = \"1G\"\n\
                    [[limit]]\ngroup = \"root\"\nhard = \"3G\"\n";
        let config = load(&[("oomd.toml", main)]).unwrap();
        let students = config.groups.of(Uid(5001)).unwrap();
        assert_eq!(students.name, "students");
        assert_eq!(students.uids, [Uid(5001), Uid(5003)]);
        let root = config.groups.iter().find(|group| group.name == "root").unwrap();
        assert!(!root.uids.contains(&Uid::ROOT), "root itself is never limited");
        let limit = |gib: u64| Limit::new(gib << 30, None).unwrap();
        assert!(config.limits.contains(&(AccountId::Group(students.id), limit(1))));
        assert!(config.limits.contains(&(AccountId::Group(root.id), limit(3))));
        let later = "[[limit]]\nname = \"students\"\nusers = [5004]\nhard = \"2G\"\n";
        let config = load(&[("oomd.toml", main), ("oomd.d/a.toml", later)]).unwrap();
        let students = config.groups.of(Uid(5004)).unwrap();
        assert!(config.groups.of(Uid(5001)).is_none());
        assert!(config.limits.contains(&(AccountId::Group(students.id), limit(2))));
        let described = config.describe(Ok(ordinary_users::ORDINARY));
        let shown = described.limits.iter().find(|limit| limit.user == "@students").unwrap();
        assert_eq!(shown.members, [Uid(5004)]);
    }

    #[test]
    fn cgroups_and_sessions_are_limited_by_pattern_and_a_later_file_replaces_it() {
        let main = "[[limit]]\nsession = \"*\"\nhard = \"4G\"\n\
                    [[limit]]\nsession = 5001\nhard = \"8G\"\n\
                    [[limit]]\ncgroup = \"/a/ci-*\"\nhard = \"2G\"\naccount = [\"anon\"]\n";
        let later = "[[limit]]\ncgroup = \"/a/ci-*\"\nhard = \"3G\"\nsoft = \"1G\"\n";
        let config = load(&[("oomd.toml", main), ("oomd.d/a.toml", later)]).unwrap();
        let shown = |config: &Config| {
            let limit = |it: &CgroupLimit| (it.pattern.to_string(), it.limit.hard_bytes() >> 30);
            config.cgroups.iter().map(limit).collect::<Vec<_>>()
        };
        let all = "/user.slice/user-*.slice/session-*.scope (of ordinary users)".to_owned();
        let one = "/user.slice/user-5001.slice/session-*.scope".to_owned();
        let ci = "/a/ci-*".to_owned();
        assert_eq!(shown(&config), [(all, 4), (one, 8), (ci, 3)]);
        assert!(config.limits.is_empty() && config.default_limit.is_none());
        let described = config.describe(Ok(ordinary_users::ORDINARY));
        let users: Vec<_> = described.limits.iter().map(|limit| limit.user.as_str()).collect();
        assert!(users.contains(&"/a/ci-*") && users.len() == 3, "{users:?}");
        assert_eq!(parse(main).describe(Ok(ordinary_users::ORDINARY)).limits[2].counts, ["anon"]);
        let twice = line_and_message(&main.repeat(2));
        assert!(twice.1.ends_with("has a limit already, on line 2"), "{twice:?}");
    }

    #[test]
    fn a_limit_has_the_counted_kinds() {
        let text = "[[limit]]\nuser = 5001\nhard = \"1G\"\naccount = [\"file\", \"anon\"]\n\
                    [[limit]]\nuser = 5002\nhard = \"1G\"\n";
        let config = parse(text);
        let counts: Vec<String> =
            config.limits.iter().map(|(_, limit)| limit.count().to_string()).collect();
        assert_eq!(counts, ["anon, file", "anon, shmem, swap"]);
        let described = config.describe(Ok(ordinary_users::ORDINARY));
        assert_eq!(described.limits[0].counts, ["anon", "file"]);
        assert!(described.limits[1].counts.is_empty(), "as usual");
    }

    #[test]
    fn the_most_specific_limit_of_a_user_applies_and_of_one_kind_the_first() {
        let main = "[[limit]]\neach = \"@root\"\nhard = \"2G\"\n\
                    [[limit]]\nname = \"a\"\nusers = [5001, 5002, 5003]\nhard = \"8G\"\n\
                    [[limit]]\nname = \"b\"\nusers = [5002]\nhard = \"9G\"\n\
                    [[limit]]\nuser = 5001\nhard = \"none\"\n";
        let config = parse(main);
        let members = |name: &str| {
            let group = config.groups.iter().find(|group| group.name == name).unwrap();
            group.uids.clone()
        };
        assert_eq!((members("a"), members("b")), (vec![Uid(5002), Uid(5003)], vec![]));
        assert!(config.limits.contains(&(user(5001), Limit::NONE)));
        let [none, twice, empty] = &config.idle[..] else { panic!("{:?}", config.idle) };
        assert!(
            none.contains("oomd.toml:2: the limit does not apply: group \"root\" has no known")
        );
        assert!(twice.contains("oomd.toml:10: uid 5002 has the limit of "), "{twice}");
        assert!(twice.ends_with("oomd.toml:6"), "{twice}");
        assert!(empty.contains("oomd.toml:10: the limit does not apply: its user has"), "{empty}");
        let described = config.describe(Ok(ordinary_users::ORDINARY));
        let each = described.limits.iter().find(|limit| limit.user == "each of @root").unwrap();
        assert_eq!(each.hard_bytes, 2 << 30);
        assert!(described.limits.iter().any(|limit| limit.user == "5001" && limit.exempt));
        assert!(described.warnings.contains(twice));
    }

    #[test]
    fn names_without_an_answer_are_left_out_and_named() {
        let text = "[[limit]]\nuser = \"unknown-user\"\nhard = \"1G\"\n\
                    [[limit]]\nsession = \"unknown-user\"\nhard = \"1G\"\n\
                    [[limit]]\ngroup = \"no-such-group\"\nhard = \"1G\"\n\
                    [[limit]]\nname = \"a\"\nusers = [\"unknown-user\", 5001]\nhard = \"1G\"\n\
                    [[rule]]\nkill = \"never\"\nuser = \"unknown-user\"\nname = \"x\"\n";
        let config = parse(text);
        assert!(config.rules.0.is_empty() && config.cgroups.is_empty());
        let groups = config.groups.iter().map(|group| (&*group.name, group.uids.len()));
        assert!(
            groups.collect::<BTreeMap<_, _>>() == BTreeMap::from([("a", 1), ("no-such-group", 0)])
        );
        assert_eq!(config.limits.len(), 2);
        assert_eq!(config.idle.len(), 5, "{:?}", config.idle);
        for (line, part) in [
            (14, "the rule does not apply: user \"unknown-user\" is being looked up"),
            (2, "the limit does not apply: user \"unknown-user\""),
            (5, "the limit does not apply: user \"unknown-user\""),
            (8, "the limit does not apply: group \"no-such-group\""),
            (12, "the limit does not apply: user \"unknown-user\""),
        ] {
            let named = |it: &&String| it.contains(&format!("oomd.toml:{line}: {part}"));
            assert!(config.idle.iter().any(|it| named(&it)), "{part}: {:?}", config.idle);
        }
    }

    #[test]
    fn a_limit_warns_below_its_soft_limit() {
        let text = "[[limit]]\neach = \"@root\"\nhard = \"1G\"\nwarn = \"75%\"\n\
                    [[limit]]\nuser = 5001\nhard = \"1G\"\nwarn = \"100M\"\n";
        let described = parse(text).describe(Ok(ordinary_users::ORDINARY));
        let levels: Vec<_> = described.limits.iter().map(|limit| limit.warn_bytes).collect();
        assert_eq!(levels, [Some(100 << 20), Some(768 << 20)]);
    }

    #[test]
    fn a_limit_has_ten_seconds_between_its_signals_unless_it_says_otherwise() {
        let text = "[[limit]]\neach = \"@root\"\nhard = \"1G\"\nsoft-signal = \"TERM\"\n\
                    [[limit]]\nuser = 5001\nhard = \"1G\"\n\
                    [[limit]]\nuser = 5002\nhard = \"1G\"\nsoft-signal = \"TERM\"\n\
                    soft-signal-s = 3\n";
        let described = parse(text).describe(Ok(ordinary_users::ORDINARY));
        let times: Vec<_> = described.limits.iter().map(|limit| limit.soft_signal_ms).collect();
        assert_eq!(times, [None, Some(3_000), Some(10_000)]);
    }

    #[test]
    fn rules_that_can_match_nothing_are_named_with_the_remedy() {
        let rule = |condition: &str| format!("[[rule]]\nkill = \"avoid\"\n{condition}\n");
        let idle = |condition: &str| parse(&rule(condition)).idle;
        for (condition, remedy) in [
            ("name = \"gnome-session-binary\"", "15 bytes of a name; write \"gnome-session-b\""),
            ("name = \"*gnome-session-bina\"", "write fewer"),
            ("name = \"überlang-überlang\"", "write \"überlang-über\""),
            ("exe = \"sshd\"", "write it whole, or \"*/sshd\""),
            ("cgroup = \"system.slice/*\"", "a path from the root"),
            ("unit = \"sshd\"", "write \"sshd.service\""),
        ] {
            let found = idle(condition);
            assert!(found.len() == 1, "{condition}: {found:?}");
            assert!(found[0].contains("oomd.toml:3: the rule's "), "{found:?}");
            assert!(found[0].contains(remedy), "{found:?}");
        }
        for condition in [
            "name = \"gnome-session-b\"",
            "name = \"*gnome-session-*\"",
            "name-regex = \"^gnome-session-binary\"",
            "exe = \"*/sshd\"",
            "exe = \"/usr/sbin/sshd\"",
            "cgroup = \"/system.slice/*\"",
            "unit = \"sshd*\"",
            "unit = \"user-1000.slice\"",
        ] {
            assert_eq!(idle(condition), Vec::<String>::new(), "{condition}");
        }
        assert_eq!(parse(&rule("exe = \"sshd\"")).rules.0.len(), 1);
    }

    #[test]
    fn a_mistake_in_a_drop_in_names_the_drop_in() {
        let error = load(&[("oomd.d/a.toml", "\n[[limit]]\nusr = 5\n")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("oomd.d/a.toml:3: unknown key \"usr\"; did you mean \"user\"?"),
            "{text}"
        );
        let main = ("oomd.toml", "[machine]\nhard = \"7%\"\n");
        let error = load(&[main, ("oomd.d/a.toml", "[machine]\nsoft = \"6%\"\n")]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/a.toml:2: \"hard\" (7%) is above \"soft\" (6%)"), "{text}");
        let twice = "[[limit]]\nuser = \"*\"\nhard = \"1G\"\n";
        let error = load(&[("oomd.d/a.toml", &twice.repeat(2))]).unwrap_err().to_string();
        assert!(
            error.contains("a.toml:5: ordinary users have a limit already, on line 2"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_not_utf8_is_named_without_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let files = in_folder(dir.path());
        std::fs::write(&files.main, [0xff, 0xfe, 0]).unwrap();
        let error = Config::load(&files, RAM, &mut names()).unwrap_err();
        assert!(error.line.is_none() && error.message.contains("UTF-8"), "{error}");
        let folder = Files { main: dir.path().to_owned(), may_be_missing: true };
        let error = Config::load(&folder, RAM, &mut names()).unwrap_err();
        assert!(error.message.contains("directory"), "{error}");
        std::fs::write(&files.main, "").unwrap();
        std::fs::write(files.drop_ins(), "no folder").unwrap();
        let error = Config::load(&files, RAM, &mut names()).unwrap_err();
        assert!(error.message.contains("the folder of drop-ins"), "{error}");
    }
}
