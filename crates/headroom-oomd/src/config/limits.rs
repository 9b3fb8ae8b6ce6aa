//! The `[[limit]]` entries of the configuration.
//!
//! ```toml
//! [[limit]]
//! user = "alice"      # or a uid: 1000
//! hard = "2G"         # bytes, K, M, G, T, or % of the machine's memory
//! soft = "1.8G"       # the same, or % of the hard limit; 90 % when left out
//! warn = "75%"        # the user is warned here, too; the same
//! soft-signal = "TERM" # above the soft limit a process gets SIGTERM, and SIGKILL after a time
//! soft-signal-s = 10  # this time, seconds
//! account = ["anon", "shmem", "swap"] # the default; there is "file" as well
//!
//! [[limit]]
//! user = "*"          # each ordinary user by itself, unless another limit names it
//! hard = "25%"
//!
//! [[limit]]
//! name = "students"   # one limit for all of them together; shown as @students
//! users = ["alice", "bob", 1003]
//! hard = "8G"
//!
//! [[limit]]
//! group = "staff"     # one limit for all members of this system group together
//! hard = "16G"
//!
//! [[limit]]
//! each = "@students"  # each member of this system group by itself
//! hard = "2G"
//!
//! [[limit]]
//! user = "prof"
//! hard = "none"       # exempt from the limits that apply to more users
//!
//! [[limit]]
//! cgroup = "/system.slice/ci-*.service" # each cgroup that matches by itself, with all below it
//! hard = "2G"
//!
//! [[limit]]
//! session = "*"       # each login session of ordinary users by itself; or a user
//! hard = "4G"
//! ```

use std::fmt;
use std::ops::Range;

use headroom_linux::machine_memory::size;
use memory_ledger::{AccountId, CgroupPattern, Count, Ledger, Limit, Requester, Source, Uid};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::values::{ConfigDiagnostic, hint, number, only_keys};
use crate::names::{Names, Resolved};

pub(crate) const KEYS: &[&str] = &[
    "user",
    "users",
    "group",
    "each",
    "cgroup",
    "session",
    "name",
    "hard",
    "soft",
    "warn",
    "account",
    SOFT_SIGNAL,
    SOFT_SIGNAL_TIME,
];
const SOFT_SIGNAL: &str = "soft-signal";
const SOFT_SIGNAL_TIME: &str = "soft-signal-s";
/// Time between SIGTERM and SIGKILL unless one is given, seconds: enough to save a document, short
/// beside the minutes in which memory usually grows from the soft to the hard limit.
const SOFT_SIGNAL_S: u32 = 10;
/// Longest such time, seconds: no other process of the account gets SIGTERM meanwhile.
const MAX_SOFT_SIGNAL_S: u32 = 600;
/// Value of `hard` that exempts from limits for more users.
const NONE: &str = "none";
/// Longest name of a group, bytes: tables print it.
const LONGEST_NAME: usize = 64;

/// What a limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitTarget {
    User(Uid),
    /// Several users together, by their name in the configuration.
    Group(String),
    /// Each member of a group of the system by itself.
    Each(String),
    /// Each ordinary user by itself, unless another limit names it.
    OrdinaryUsers,
    /// Each cgroup by itself that matches this pattern.
    Cgroups(String),
}

/// As the subject of "... a limit already".
impl fmt::Display for LimitTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid} has"),
            Self::Group(name) => write!(f, "@{name} has"),
            Self::Each(name) => write!(f, "each of @{name} has"),
            Self::OrdinaryUsers => write!(f, "ordinary users have"),
            Self::Cgroups(pattern) => write!(f, "{pattern} has"),
        }
    }
}

/// A limit, and the place of its target in the text.
pub(crate) struct ParsedLimit {
    /// `None`: the number of its user is not known.
    pub(crate) target: Option<LimitTarget>,
    /// The users of a `User`, `Group` or `Each` target that are known.
    pub(crate) uids: Vec<Uid>,
    /// The users are listed by name or number.
    pub(crate) is_list: bool,
    /// What is missing of the target.
    pub(crate) unknown: Vec<String>,
    /// The pattern of a `Cgroups` target.
    pub(crate) pattern: Option<CgroupPattern>,
    pub(crate) limit: Limit,
    pub(crate) at: Range<usize>,
}

/// A target with the users or the pattern that it stands for.
struct ResolvedTarget {
    target: Option<LimitTarget>,
    uids: Vec<Uid>,
    pattern: Option<CgroupPattern>,
    unknown: Vec<String>,
}

impl ResolvedTarget {
    fn users(target: LimitTarget, uids: Vec<Uid>) -> Self {
        Self { target: Some(target), uids, pattern: None, unknown: Vec::new() }
    }

    fn cgroups(pattern: CgroupPattern) -> Self {
        let target = LimitTarget::Cgroups(pattern.to_string());
        Self { pattern: Some(pattern), ..Self::users(target, Vec::new()) }
    }

    fn unknown(what: String) -> Self {
        Self { target: None, uids: Vec::new(), pattern: None, unknown: vec![what] }
    }
}

/// A user by name or number.
pub(crate) enum ParsedUser {
    Uid(Uid),
    /// The name has no number, or none yet: a sentence.
    Unknown(String),
}

/// Reads the `limit` entry of a document.
pub(crate) fn parse(
    entry: &Spanned<DeValue>,
    ram_bytes: u64,
    names: &mut Names,
) -> Result<Vec<ParsedLimit>, ConfigDiagnostic> {
    let wrong = |at: &Spanned<DeValue>| {
        ConfigDiagnostic::new(at.span(), "limits are written as [[limit]] sections")
    };
    let entries = entry.get_ref().as_array().ok_or_else(|| wrong(entry))?;
    let read = |entry: &Spanned<DeValue>| {
        let limit = entry.get_ref().as_table().ok_or_else(|| wrong(entry))?;
        parse_limit(limit, entry.span(), ram_bytes, names)
    };
    entries.iter().map(read).collect()
}

fn parse_limit(
    table: &DeTable,
    section: Range<usize>,
    ram_bytes: u64,
    names: &mut Names,
) -> Result<ParsedLimit, ConfigDiagnostic> {
    only_keys(table, KEYS, "a limit")?;
    let required = |key: &str| {
        let missing = || {
            ConfigDiagnostic::new(
                section.clone(),
                format!("this limit has no \"{key}\"; add {key} = \"2G\""),
            )
        };
        table.get(key).ok_or_else(missing)
    };
    let (resolved, at) = parse_target(table, &section, names)?;
    let hard = required("hard")?;
    let ResolvedTarget { target, uids, pattern, unknown } = resolved;
    let is_list = table.contains_key("users");
    if hard.get_ref().as_str() == Some(NONE) {
        if let Some(other) = ["soft", "warn", SOFT_SIGNAL, "cgroup", "session"]
            .iter()
            .find_map(|key| table.get(*key))
        {
            let message = "hard = \"none\" exempts users, and has no \"soft\"; a limit of cgroups \
                           or sessions is left out instead";
            return Err(ConfigDiagnostic::new(other.span(), message));
        }
        return Ok(ParsedLimit { target, uids, is_list, unknown, pattern, limit: Limit::NONE, at });
    }
    let hard_bytes = parse_size(hard, ram_bytes)?;
    let soft = table.get("soft");
    let soft_bytes = soft.map(|soft| parse_size(soft, hard_bytes)).transpose()?;
    let place = match soft {
        // An invalid hard limit is the error, not the soft one that depends on it.
        Some(soft) if Limit::new(hard_bytes, None).is_ok() => soft.span(),
        _ => hard.span(),
    };
    let limit = Limit::new(hard_bytes, soft_bytes)
        .map_err(|e| ConfigDiagnostic::new(place, e.to_string()))?;
    let limit = match table.get("warn") {
        Some(warn) if pattern.is_some() => {
            let message =
                "limits of cgroups and sessions warn at \"soft\" only; leave \"warn\" out";
            return Err(ConfigDiagnostic::new(warn.span(), message));
        }
        Some(warn) => limit
            .warning_at(parse_size(warn, hard_bytes)?)
            .map_err(|e| ConfigDiagnostic::new(warn.span(), e.to_string()))?,
        None => limit,
    };
    let limit = match parse_soft_signal(table)? {
        Some((at, _)) if pattern.is_some() => {
            let message = format!("limits of cgroups and sessions have no \"{SOFT_SIGNAL}\"");
            return Err(ConfigDiagnostic::new(at, message));
        }
        Some((_, seconds)) => limit.terminating_at_soft(seconds * 1000),
        None => limit,
    };
    let count = table.get("account").map(parse_count).transpose()?;
    let limit = limit.counting(count.unwrap_or_default());
    Ok(ParsedLimit { target, uids, is_list, unknown, pattern, limit, at })
}

/// The place of `soft-signal`, and the seconds between SIGTERM and SIGKILL.
fn parse_soft_signal(table: &DeTable) -> Result<Option<(Range<usize>, u32)>, ConfigDiagnostic> {
    let Some(signal) = table.get(SOFT_SIGNAL) else {
        return match table.get(SOFT_SIGNAL_TIME) {
            Some(time) => Err(ConfigDiagnostic::new(
                time.span(),
                format!(
                    "\"{SOFT_SIGNAL_TIME}\" is the time of a signal; add {SOFT_SIGNAL} = \"TERM\""
                ),
            )),
            None => Ok(None),
        };
    };
    if signal.get_ref().as_str() != Some("TERM") {
        let message = format!("the only \"{SOFT_SIGNAL}\" is \"TERM\"");
        return Err(ConfigDiagnostic::new(signal.span(), message));
    }
    let seconds = match table.get(SOFT_SIGNAL_TIME) {
        Some(time) => number(time, MAX_SOFT_SIGNAL_S.into())? as u32,
        None => SOFT_SIGNAL_S,
    };
    Ok(Some((signal.span(), seconds)))
}

/// The target of a limit, and its place in the text.
fn parse_target(
    table: &DeTable,
    section: &Range<usize>,
    names: &mut Names,
) -> Result<(ResolvedTarget, Range<usize>), ConfigDiagnostic> {
    let keys: Vec<&str> = ["user", "users", "group", "each", "cgroup", "session"]
        .into_iter()
        .filter(|key| table.contains_key(*key))
        .collect();
    let [key] = keys[..] else {
        let message = match keys[..] {
            [] => "this limit has no target: add \"user\", \"users\", \"group\", \"each\", \
                   \"cgroup\" or \"session\""
                .to_owned(),
            _ => format!("a limit has one of \"{}\", not both", keys.join("\" and \"")),
        };
        return Err(ConfigDiagnostic::new(section.clone(), message));
    };
    let value = &table[key];
    let name = table.get("name").map(parse_name).transpose()?;
    let resolved = match (key, name) {
        ("user" | "each" | "cgroup" | "session", Some(_)) => {
            let message = format!("a limit of a {key} is known by that; \"name\" is for \"users\"");
            return Err(ConfigDiagnostic::new(table["name"].span(), message));
        }
        ("user", None) if value.get_ref().as_str() == Some("*") => {
            ResolvedTarget::users(LimitTarget::OrdinaryUsers, Vec::new())
        }
        ("user", None) => match parse_limited(value, names)? {
            ParsedUser::Uid(uid) => ResolvedTarget::users(LimitTarget::User(uid), vec![uid]),
            ParsedUser::Unknown(why) => ResolvedTarget::unknown(why),
        },
        ("cgroup", None) => ResolvedTarget::cgroups(parse_cgroup(value)?),
        ("session", None) => parse_session(value, names)?,
        ("each", None) => {
            let (group, members) = parse_group(value, names)?;
            let target = LimitTarget::Each(group);
            ResolvedTarget { target: Some(target), ..members }
        }
        ("users", name) => {
            let missing = "several users together need a \"name\" to be known by";
            let name = name.ok_or_else(|| ConfigDiagnostic::new(value.span(), missing))?;
            let users = parse_users(value, names)?;
            ResolvedTarget { target: Some(LimitTarget::Group(name)), ..users }
        }
        (_, name) => {
            let (group, members) = parse_group(value, names)?;
            let target = LimitTarget::Group(name.unwrap_or(group));
            ResolvedTarget { target: Some(target), ..members }
        }
    };
    Ok((resolved, value.span()))
}

fn parse_cgroup(cgroup: &Spanned<DeValue>) -> Result<CgroupPattern, ConfigDiagnostic> {
    let text = cgroup.get_ref().as_str().ok_or_else(|| {
        ConfigDiagnostic::new(
            cgroup.span(),
            format!("a cgroup is a path, not a {}", cgroup.get_ref().type_str()),
        )
    })?;
    CgroupPattern::new(text)
        .map_err(|error| ConfigDiagnostic::new(cgroup.span(), error.to_string()))
}

fn parse_session(
    user: &Spanned<DeValue>,
    names: &mut Names,
) -> Result<ResolvedTarget, ConfigDiagnostic> {
    let uid = match user.get_ref().as_str() {
        Some("*") => None,
        _ => match parse_user(user, names)? {
            ParsedUser::Uid(uid) => Some(uid),
            ParsedUser::Unknown(why) => return Ok(ResolvedTarget::unknown(why)),
        },
    };
    CgroupPattern::sessions_of(uid)
        .map(ResolvedTarget::cgroups)
        .map_err(|error| ConfigDiagnostic::new(user.span(), error.to_string()))
}

fn parse_name(name: &Spanned<DeValue>) -> Result<String, ConfigDiagnostic> {
    let text = name.get_ref().as_str().unwrap_or_default();
    let odd = |c: char| c.is_control() || c.is_whitespace();
    if text.is_empty() || text.starts_with('@') || text.contains(odd) || text.len() > LONGEST_NAME {
        let message = format!(
            "a name is a text of at most {LONGEST_NAME} bytes without spaces, and does not begin \
             with \"@\""
        );
        return Err(ConfigDiagnostic::new(name.span(), message));
    }
    Ok(text.to_owned())
}

/// Which kinds of memory count.
fn parse_count(count: &Spanned<DeValue>) -> Result<Count, ConfigDiagnostic> {
    let list = count.get_ref().as_array().filter(|list| !list.is_empty());
    let wrong = || format!("\"account\" is a list of \"{}\"", Count::NAMES.join("\", \""));
    let list = list.ok_or_else(|| ConfigDiagnostic::new(count.span(), wrong()))?;
    let mut names: Vec<&str> = Vec::new();
    for kind in list.iter() {
        let name =
            kind.get_ref().as_str().ok_or_else(|| ConfigDiagnostic::new(kind.span(), wrong()))?;
        if !Count::NAMES.contains(&name) {
            let hint = hint(name, &Count::NAMES, "\"account\"");
            return Err(ConfigDiagnostic::new(
                kind.span(),
                format!("there is no kind of memory \"{name}\"; {hint}"),
            ));
        }
        if names.contains(&name) {
            return Err(ConfigDiagnostic::new(
                kind.span(),
                format!("\"{name}\" is in this list already"),
            ));
        }
        names.push(name);
    }
    Ok(Count::of(names))
}

/// A user that a limit may apply to.
fn parse_limited(
    user: &Spanned<DeValue>,
    names: &mut Names,
) -> Result<ParsedUser, ConfigDiagnostic> {
    let uid = match parse_user(user, names)? {
        ParsedUser::Uid(uid) => uid,
        unknown => return Ok(unknown),
    };
    let (account, root) = (AccountId::User(uid), Requester::Root);
    match Ledger::default().plan_set(account, Limit::NONE, Source::Config, root) {
        Ok(_) => Ok(ParsedUser::Uid(uid)),
        Err(refusal) => Err(ConfigDiagnostic::new(user.span(), refusal.to_string())),
    }
}

fn parse_users(
    users: &Spanned<DeValue>,
    names: &mut Names,
) -> Result<ResolvedTarget, ConfigDiagnostic> {
    let list = users.get_ref().as_array().filter(|list| !list.is_empty());
    let wrong = || "\"users\" is a list of names and uids, like [\"alice\", 1003]";
    let list = list.ok_or_else(|| ConfigDiagnostic::new(users.span(), wrong()))?;
    let (mut uids, mut unknown) = (Vec::new(), Vec::new());
    for user in list.iter() {
        match parse_limited(user, names)? {
            ParsedUser::Uid(uid) if uids.contains(&uid) => {
                return Err(ConfigDiagnostic::new(
                    user.span(),
                    format!("uid {uid} is in this list already"),
                ));
            }
            ParsedUser::Uid(uid) => uids.push(uid),
            ParsedUser::Unknown(why) => unknown.push(why),
        }
    }
    Ok(ResolvedTarget { target: None, uids, pattern: None, unknown })
}

/// A system group: its name, and its members that can be limited, which excludes root.
fn parse_group(
    group: &Spanned<DeValue>,
    names: &mut Names,
) -> Result<(String, ResolvedTarget), ConfigDiagnostic> {
    let name = group.get_ref().as_str().ok_or_else(|| {
        let kind = group.get_ref().type_str();
        let message = format!("a group is the name of a group of the system's, not a {kind}");
        ConfigDiagnostic::new(group.span(), message)
    })?;
    let name = name.strip_prefix('@').unwrap_or(name).to_owned();
    let (uids, unknown) = match names.members_of(&name) {
        Ok(members) => {
            let uids: Vec<Uid> = members.into_iter().filter(|uid| uid.is_limitable()).collect();
            let unknown = uids.is_empty().then(|| {
                format!(
                    "group \"{name}\" has no known member; the groups of a user are looked up \
                     once it has a process"
                )
            });
            (uids, Vec::from_iter(unknown))
        }
        Err(why) => (Vec::new(), vec![unresolved("group", &name, &why)]),
    };
    Ok((name, ResolvedTarget { target: None, uids, pattern: None, unknown }))
}

fn unresolved(kind: &str, name: &str, why: &Resolved) -> String {
    match why {
        Resolved::Unanswered(error) if error.is_empty() => {
            format!("{kind} \"{name}\" is being looked up")
        }
        Resolved::Unanswered(error) => {
            format!("the user database does not answer for {kind} \"{name}\": {error}")
        }
        Resolved::Missing | Resolved::Number(_) => format!("there is no {kind} \"{name}\""),
    }
}

pub(crate) fn parse_user(
    user: &Spanned<DeValue>,
    names: &mut Names,
) -> Result<ParsedUser, ConfigDiagnostic> {
    let error = |message: String| ConfigDiagnostic::new(user.span(), message);
    match user.get_ref() {
        // A number in quotation marks is a uid, whether it has a name or not.
        DeValue::String(name) => Ok(match name.parse() {
            Ok(uid) => ParsedUser::Uid(Uid(uid)),
            Err(_) => match names.uid_of(name) {
                Resolved::Number(uid) => ParsedUser::Uid(Uid(uid)),
                why => ParsedUser::Unknown(unresolved("user", name, &why)),
            },
        }),
        DeValue::Integer(uid) => u32::from_str_radix(uid.as_str(), uid.radix())
            .map(|uid| ParsedUser::Uid(Uid(uid)))
            .map_err(|_| error(format!("{} is no uid", uid.as_str()))),
        other => Err(error(format!("a user is a name or a uid, not a {}", other.type_str()))),
    }
}

fn parse_size(size: &Spanned<DeValue>, whole: u64) -> Result<u64, ConfigDiagnostic> {
    let error = |message: String| ConfigDiagnostic::new(size.span(), message);
    match size.get_ref() {
        DeValue::String(text) => size::parse(text, Some(whole)).map_err(|e| error(e.to_string())),
        DeValue::Integer(bytes) => u64::from_str_radix(bytes.as_str(), bytes.radix())
            .map_err(|_| error(format!("{} is no number of bytes", bytes.as_str()))),
        other => Err(error(format!(
            "an amount of memory is a string like \"512M\" or a number of bytes, not a {}",
            other.type_str()
        ))),
    }
}
