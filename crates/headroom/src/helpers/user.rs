//! Users by name or number, from the system's user database; groups that share a limit, as `@NAME`;
//! and cgroups, by their paths. And what this user may see of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use anyhow::anyhow;
use control::Uid;
use control::oomd::{AccountRef, Reply, Request, UserLimit};
use headroom_daemon::permissions;

use super::client::{call_oomd, unexpected};
use super::output::printable;

/// A user named on the command line, or a group of users that share a limit, or a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A user's number.
    Uid(Uid),
    /// A group's name.
    Group(String),
    /// A cgroup's path, from the root of the hierarchy.
    Cgroup(String),
}

impl User {
    /// The account for requests to the daemon.
    pub fn account(&self, socket: &Path) -> anyhow::Result<AccountRef> {
        if let Self::Uid(uid) = self {
            return Ok(AccountRef::user(*uid));
        }
        let limits = match call_oomd(socket, &Request::ListLimits)? {
            Reply::Limits { limits } => limits,
            reply => return Err(unexpected(&reply)),
        };
        let found = limits.iter().find(|limit| self.has(limit));
        found.map(|limit| limit.account).ok_or_else(|| self.without_limit(socket))
    }

    fn without_limit(&self, socket: &Path) -> anyhow::Error {
        let defaults = match call_oomd(socket, &Request::DefaultLimits) {
            Ok(Reply::DefaultLimits { limits }) => limits,
            // The daemon is of an earlier version.
            _ => Vec::new(),
        };
        let each = format!("each of {self}");
        if defaults.iter().any(|limit| limit.user == each) {
            return anyhow!(
                "{each} has a limit of its own, by oomd.toml: change it there and run `headroom \
                 config reload`, or that of one member: headroom limit set USER SIZE"
            );
        }
        anyhow!(
            "{} has no limit in oomd.toml that you may see; list limits: headroom limit list",
            self.described()
        )
    }

    /// Whether the limit belongs to this user, group or cgroup; a user that shares a limit has that
    /// of the group.
    pub fn has(&self, limit: &UserLimit) -> bool {
        match self {
            Self::Uid(uid) => {
                limit.account == AccountRef::user(*uid) || limit.members.contains(uid)
            }
            Self::Group(name) => limit.group.as_ref() == Some(name),
            Self::Cgroup(path) => limit.cgroup.as_ref() == Some(path),
        }
    }

    fn described(&self) -> String {
        let what = match self {
            Self::Uid(_) => "user",
            Self::Group(_) => "group",
            Self::Cgroup(_) => "cgroup",
        };
        format!("{what} '{self}'")
    }
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uid(uid) => f.write_str(&name(*uid)),
            Self::Group(name) => write!(f, "@{}", printable(name)),
            Self::Cgroup(path) => f.write_str(&printable(path)),
        }
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix('@').filter(|name| !name.is_empty()) {
            return Ok(Self::Group(name.to_owned()));
        }
        if text.len() > 1 && text.starts_with('/') {
            return Ok(Self::Cgroup(text.to_owned()));
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            // (uid_t) -1 means "no user" to the kernel.
            return match text.parse() {
                Ok(uid) if uid != u32::MAX => Ok(Self::Uid(Uid(uid))),
                _ => Err(format!("uid {text} is too large: at most {}", u32::MAX - 1)),
            };
        }
        match permissions::uid_of(text) {
            Ok(Some(uid)) => Ok(Self::Uid(uid)),
            Ok(None) => Err(format!("there is no user '{text}'; a uid works without an account")),
            Err(error) => Err(format!("cannot look up user '{text}': {error}")),
        }
    }
}

/// The owner of a limit: a cgroup's path, a group's name as `@NAME`, or the user's name.
pub fn owner(account: AccountRef, group: Option<&str>, cgroup: Option<&str>) -> String {
    match (group, cgroup) {
        (_, Some(path)) => printable(path),
        (Some(group), None) => format!("@{}", printable(group)),
        (None, None) => name(Uid(account.uid)),
    }
}

/// The name of a user; its number if it has none. Cached: a lookup may query a remote database.
pub fn name(uid: Uid) -> String {
    static KNOWN: Mutex<BTreeMap<Uid, String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(uid).or_insert_with(|| look_up_name(uid)).clone()
}

fn look_up_name(uid: Uid) -> String {
    match permissions::name_of(uid) {
        Ok(Some(name)) => printable(&name),
        _ => uid.to_string(),
    }
}

/// The accounts that this process may see: `headroom-oomd` shows everything to root, and to other
/// users their own limits and decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// All.
    All,
    /// Those of this user.
    Own(Uid),
}

impl Visibility {
    /// That of this process.
    pub fn ours() -> Self {
        match rustix::process::geteuid() {
            uid if uid.is_root() => Self::All,
            uid => Self::Own(Uid(uid.as_raw())),
        }
    }

    /// The line for an empty list of limits.
    pub fn no_limit(self) -> &'static str {
        match self {
            Self::All => "no user has a limit",
            Self::Own(_) => "you have no limit; only root sees those of other users",
        }
    }

    /// The line for an empty list of decisions.
    pub fn no_decision(self) -> &'static str {
        match self {
            Self::All => "no decision is recorded: no process was killed",
            Self::Own(_) => {
                "no decision about you is recorded; only root sees those about other users"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use control::oomd::AccountKind;

    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        assert_eq!("root".parse(), Ok(User::Uid(Uid::ROOT)));
        assert_eq!("0".parse(), Ok(User::Uid(Uid::ROOT)));
        assert_eq!("60123".parse(), Ok(User::Uid(Uid(60123))));
        assert_eq!("@students".parse(), Ok(User::Group("students".into())));
        assert_eq!("/a/b".parse(), Ok(User::Cgroup("/a/b".into())));
        assert_eq!(
            owner(
                AccountRef { kind: AccountKind::Group, uid: 4_294_901_760 },
                Some("stud\n"),
                None
            ),
            "@stud\\n"
        );
        assert_eq!(
            owner(AccountRef { kind: AccountKind::Cgroup, uid: 4_294_836_224 }, None, Some("/a\n")),
            "/a\\n"
        );
        assert_eq!(name(Uid::ROOT), "root");
        assert_eq!(name(Uid(4_000_000_000)), "4000000000");
    }

    #[test]
    fn an_unknown_user_is_an_error_that_names_it() {
        for text in ["no-such-user", "", "@", "/", "-1", "root ", "4294967295", "99999999999999"] {
            let error = text.parse::<User>().expect_err(text);
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
