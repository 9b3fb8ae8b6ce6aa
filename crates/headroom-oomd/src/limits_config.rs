//! The limits.
//!
//! ```toml
//! [[limit]]
//! user = "alice"      # or a uid: 1000
//! hard = "2G"         # bytes, K, M, G, T, or % of the machine's memory
//! soft = "1.8G"       # the same, or % of the hard limit; when left out, see `margin`, or 90 %
//!
//! [[limit]]
//! user = "*"          # each ordinary user by itself, of whom no other limit speaks
//! hard = "25%"
//! ```

use std::fmt;
use std::ops::Range;

use memory_ledger::{Asker, Ledger, Limit, Margin, Source};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::{Complaint, only_keys};
use crate::{size, users};

pub(crate) const KEYS: &[&str] = &["user", "hard", "soft"];
/// What people look for and do not find, and what there is instead.
const UNKNOWN: &[(&str, &str)] = &[
    (
        // They have a limit of the kernel's own; ours would need a second set of accounts for nothing.
        "cgroup",
        "limits are of users, not of cgroups; a cgroup of version 2 has memory.max, and systemd sets it: \
         MemoryMax=",
    ),
    ("group", NO_GROUPS),
    ("uids", NO_GROUPS),
    (
        "count",
        "what counts is always anonymous, shared and swapped memory: file pages come back without a kill",
    ),
];
const NO_GROUPS: &str = "each user is counted by itself, users cannot be counted together; give each a limit, or \
                         all a slice of systemd's with MemoryMax=";

/// Of whom a limit speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Whom {
    /// One.
    User(u32),
    /// Each ordinary user by itself.
    Everyone,
}

/// As the subject of "... a limit already".
impl fmt::Display for Whom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid} has"),
            Self::Everyone => write!(f, "ordinary users have"),
        }
    }
}

/// A limit, and where somebody is named.
pub(crate) struct Said {
    pub(crate) whom: Whom,
    pub(crate) limit: Limit,
    pub(crate) at: Range<usize>,
}

/// Reads the `limit` entry of a document.
pub(crate) fn parse(
    entry: &Spanned<DeValue>,
    ram_bytes: u64,
    margin: Option<Margin>,
) -> Result<Vec<Said>, Complaint> {
    let wrong =
        |at: &Spanned<DeValue>| (at.span(), "limits are written as [[limit]] sections".to_owned());
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
) -> Result<Said, Complaint> {
    for (key, _) in table {
        if let Some((_, instead)) = UNKNOWN.iter().find(|(unknown, _)| key.get_ref() == unknown) {
            return Err((key.span(), (*instead).to_owned()));
        }
    }
    only_keys(table, KEYS, "a limit")?;
    let required = |key: &str| {
        let missing = || (section.clone(), format!("this limit has no \"{key}\""));
        table.get(key).ok_or_else(missing)
    };
    let user = required("user")?;
    let whom = match user.get_ref().as_str() {
        Some("*") => Whom::Everyone,
        _ => Whom::User(parse_user(user)?),
    };
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
    if let Whom::User(uid) = whom
        && let Err(refusal) = Ledger::default().plan_set(uid, limit, Source::Config, Asker::Root)
    {
        return Err((user.span(), refusal.to_string()));
    }
    Ok(Said { whom, limit, at: user.span() })
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
