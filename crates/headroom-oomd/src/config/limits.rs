//! The `[[limit]]` entries of the configuration.
//!
//! ```toml
//! [[limit]]
//! user = "alice"      # or a uid: 1000
//! hard = "2G"         # bytes, K, M, G, T, or % of the machine's memory
//! soft = "1.8G"       # the same, or % of the hard limit; when left out, see `margin`, or 90 %
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
//! group = "staff"     # one limit for all members of this system group, as of reading the file
//! hard = "16G"
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

use headroom_daemon::user_database;
use machine_memory::size;
use memory_ledger::{
    AccountId, CgroupPattern, Count, Ledger, Limit, Margin, Requester, Source, Uid,
};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostic::{ConfigDiagnostic, hint, only_keys};

pub(crate) const KEYS: &[&str] =
    &["user", "users", "group", "cgroup", "session", "name", "hard", "soft", "account"];
/// Longest name of a group, bytes: tables print it.
const LONGEST_NAME: usize = 64;

/// What a limit applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitTarget {
    User(Uid),
    /// Several users together, by their name in the configuration.
    Group(String),
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
            Self::OrdinaryUsers => write!(f, "ordinary users have"),
            Self::Cgroups(pattern) => write!(f, "{pattern} has"),
        }
    }
}

/// A limit, and the place of its target in the text.
pub(crate) struct ParsedLimit {
    pub(crate) target: LimitTarget,
    /// The users of a `User` or `Group` target.
    pub(crate) uids: Vec<Uid>,
    /// The pattern of a `Cgroups` target.
    pub(crate) pattern: Option<CgroupPattern>,
    pub(crate) limit: Limit,
    pub(crate) at: Range<usize>,
}

/// A target with the users or the pattern that it stands for.
struct ResolvedTarget {
    target: LimitTarget,
    uids: Vec<Uid>,
    pattern: Option<CgroupPattern>,
}

impl ResolvedTarget {
    fn users(target: LimitTarget, uids: Vec<Uid>) -> Self {
        Self { target, uids, pattern: None }
    }

    fn cgroups(pattern: CgroupPattern) -> Self {
        let target = LimitTarget::Cgroups(pattern.to_string());
        Self { target, uids: Vec::new(), pattern: Some(pattern) }
    }
}

/// Reads the `limit` entry of a document.
pub(crate) fn parse(
    entry: &Spanned<DeValue>,
    ram_bytes: u64,
    margin: Option<Margin>,
) -> Result<Vec<ParsedLimit>, ConfigDiagnostic> {
    let wrong = |at: &Spanned<DeValue>| {
        ConfigDiagnostic::new(at.span(), "limits are written as [[limit]] sections")
    };
    let entries = entry.get_ref().as_array().ok_or_else(|| wrong(entry))?;
    let read = |entry: &Spanned<DeValue>| {
        let limit = entry.get_ref().as_table().ok_or_else(|| wrong(entry))?;
        parse_limit(limit, entry.span(), ram_bytes, margin)
    };
    entries.iter().map(read).collect()
}

fn parse_limit(
    table: &DeTable,
    section: Range<usize>,
    ram_bytes: u64,
    margin: Option<Margin>,
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
    let (resolved, at) = parse_target(table, &section)?;
    let hard = required("hard")?;
    let hard_bytes = parse_size(hard, ram_bytes)?;
    let soft = table.get("soft");
    let soft_bytes = soft.map(|soft| parse_size(soft, hard_bytes)).transpose()?;
    let soft_bytes = soft_bytes.or(margin.map(|margin| margin.soft_bytes(hard_bytes)));
    let place = match soft {
        // An invalid hard limit is the error, not the soft one that depends on it.
        Some(soft) if Limit::new(hard_bytes, None).is_ok() => soft.span(),
        _ => hard.span(),
    };
    let limit = Limit::new(hard_bytes, soft_bytes)
        .map_err(|e| ConfigDiagnostic::new(place, e.to_string()))?;
    let count = table.get("account").map(parse_count).transpose()?;
    let limit = limit.counting(count.unwrap_or_default());
    let ResolvedTarget { target, uids, pattern } = resolved;
    Ok(ParsedLimit { target, uids, pattern, limit, at })
}

/// The target of a limit, and its place in the text.
fn parse_target(
    table: &DeTable,
    section: &Range<usize>,
) -> Result<(ResolvedTarget, Range<usize>), ConfigDiagnostic> {
    let keys: Vec<&str> = ["user", "users", "group", "cgroup", "session"]
        .into_iter()
        .filter(|key| table.contains_key(*key))
        .collect();
    let [key] = keys[..] else {
        let message = match keys[..] {
            [] => "this limit has no target: add \"user\", \"users\", \"group\", \"cgroup\" or \
                   \"session\""
                .to_owned(),
            _ => format!("a limit has one of \"{}\", not both", keys.join("\" and \"")),
        };
        return Err(ConfigDiagnostic::new(section.clone(), message));
    };
    let value = &table[key];
    let name = table.get("name").map(parse_name).transpose()?;
    let resolved = match (key, name) {
        ("user" | "cgroup" | "session", Some(_)) => {
            let message = format!("a limit of a {key} is known by that; \"name\" is for \"users\"");
            return Err(ConfigDiagnostic::new(table["name"].span(), message));
        }
        ("user", None) if value.get_ref().as_str() == Some("*") => {
            ResolvedTarget::users(LimitTarget::OrdinaryUsers, Vec::new())
        }
        ("user", None) => {
            let uid = parse_limited(value)?;
            ResolvedTarget::users(LimitTarget::User(uid), vec![uid])
        }
        ("cgroup", None) => ResolvedTarget::cgroups(parse_cgroup(value)?),
        ("session", None) => ResolvedTarget::cgroups(parse_session(value)?),
        ("users", name) => {
            let missing = "several users together need a \"name\" to be known by";
            let name = name.ok_or_else(|| ConfigDiagnostic::new(value.span(), missing))?;
            ResolvedTarget::users(LimitTarget::Group(name), parse_users(value)?)
        }
        (_, name) => {
            let (group, uids) = parse_group(value)?;
            ResolvedTarget::users(LimitTarget::Group(name.unwrap_or(group)), uids)
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

fn parse_session(user: &Spanned<DeValue>) -> Result<CgroupPattern, ConfigDiagnostic> {
    let uid = match user.get_ref().as_str() {
        Some("*") => None,
        _ => Some(parse_user(user)?),
    };
    CgroupPattern::sessions_of(uid)
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
fn parse_limited(user: &Spanned<DeValue>) -> Result<Uid, ConfigDiagnostic> {
    let uid = parse_user(user)?;
    let any = Limit::new(memory_ledger::limit::MIN_HARD_BYTES, None);
    let any = any.map_err(|e| ConfigDiagnostic::new(user.span(), e.to_string()))?;
    match Ledger::default().plan_set(AccountId::User(uid), any, Source::Config, Requester::Root) {
        Ok(_) => Ok(uid),
        Err(refusal) => Err(ConfigDiagnostic::new(user.span(), refusal.to_string())),
    }
}

fn parse_users(users: &Spanned<DeValue>) -> Result<Vec<Uid>, ConfigDiagnostic> {
    let list = users.get_ref().as_array().filter(|list| !list.is_empty());
    let wrong = || "\"users\" is a list of names and uids, like [\"alice\", 1003]";
    let list = list.ok_or_else(|| ConfigDiagnostic::new(users.span(), wrong()))?;
    let mut uids: Vec<Uid> = Vec::new();
    for user in list.iter() {
        let uid = parse_limited(user)?;
        if uids.contains(&uid) {
            return Err(ConfigDiagnostic::new(
                user.span(),
                format!("uid {uid} is in this list already"),
            ));
        }
        uids.push(uid);
    }
    Ok(uids)
}

/// A system group: its name, and its members that can be limited, which excludes root.
fn parse_group(group: &Spanned<DeValue>) -> Result<(String, Vec<Uid>), ConfigDiagnostic> {
    let error = |message: String| ConfigDiagnostic::new(group.span(), message);
    let Some(name) = group.get_ref().as_str() else {
        let kind = group.get_ref().type_str();
        return Err(error(format!(
            "\"group\" is the name of a group of the system's, not a {kind}"
        )));
    };
    let members = user_database::members_of(name)
        .map_err(|errno| error(format!("cannot look up group \"{name}\": {errno}")))?;
    let members = members.ok_or_else(|| error(format!("there is no group \"{name}\"")))?;
    let uids = members.into_iter().filter(|uid| uid.is_limitable()).collect();
    Ok((name.to_owned(), uids))
}

pub(crate) fn parse_user(user: &Spanned<DeValue>) -> Result<Uid, ConfigDiagnostic> {
    let error = |message: String| ConfigDiagnostic::new(user.span(), message);
    match user.get_ref() {
        DeValue::String(name) => {
            let looked_up = user_database::uid_of(name)
                .map_err(|errno| error(format!("cannot look up user \"{name}\": {errno}")))?;
            looked_up.or_else(|| name.parse().ok().map(Uid)).ok_or_else(|| {
                error(format!("there is no user \"{name}\"; a uid works without an account"))
            })
        }
        DeValue::Integer(uid) => u32::from_str_radix(uid.as_str(), uid.radix())
            .map(Uid)
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
