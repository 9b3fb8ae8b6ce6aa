//! Users by name or number, by way of the system's own user database; and groups that share a limit, as `@NAME`.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use anyhow::anyhow;
use control::oomd::{Reply, Request};
use nix::errno::Errno;
use nix::unistd::{Uid, User as Entry};

use crate::daemon::{ask_oomd, unexpected};

/// A user named on the command line, or a group of users that share a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A user's number.
    Uid(u32),
    /// A group's name.
    Group(String),
}

impl User {
    /// The uid, or the number that the daemon knows a group by.
    pub fn account(&self, socket: &Path) -> anyhow::Result<u32> {
        let name = match self {
            Self::Uid(uid) => return Ok(*uid),
            Self::Group(name) => name,
        };
        let limits = match ask_oomd(socket, &Request::ListLimits)? {
            Reply::Limits { limits } => limits,
            reply => return Err(unexpected(&reply)),
        };
        let group = limits.iter().find(|limit| limit.group.as_ref() == Some(name));
        let missing = || anyhow!("there is no group '@{name}' with a limit that you may see");
        group.map(|limit| limit.uid).ok_or_else(missing)
    }
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uid(uid) => f.write_str(&name(*uid)),
            Self::Group(name) => write!(f, "@{}", crate::output::printable(name)),
        }
    }
}

impl FromStr for User {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix('@').filter(|name| !name.is_empty()) {
            return Ok(Self::Group(name.to_owned()));
        }
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            // The largest number means "no user" to the kernel.
            return match text.parse() {
                Ok(uid) if uid != u32::MAX => Ok(Self::Uid(uid)),
                _ => Err(format!("uid {text} is too large: at most {}", u32::MAX - 1)),
            };
        }
        match if_known(Entry::from_name(text)) {
            Ok(Some(user)) => Ok(Self::Uid(user.uid.as_raw())),
            Ok(None) => Err(format!("there is no user '{text}'; a uid works without an account")),
            Err(error) => Err(format!("cannot look up user '{text}': {error}")),
        }
    }
}

/// Whose a limit is: a group's name as `@NAME`, or the user's.
pub fn owner(uid: u32, group: Option<&str>) -> String {
    group.map_or_else(|| name(uid), |group| format!("@{}", crate::output::printable(group)))
}

/// The name of `uid`; its number where it has none. Looked up once: some databases are far away.
pub fn name(uid: u32) -> String {
    static KNOWN: Mutex<BTreeMap<u32, String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(uid).or_insert_with(|| look_up_name(uid)).clone()
}

fn look_up_name(uid: u32) -> String {
    match Entry::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => crate::output::printable(&user.name),
        _ => uid.to_string(),
    }
}

/// What the database says; some say "not found" in these words (getpwnam(3)).
fn if_known<T>(found: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match found {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood() {
        assert_eq!("root".parse(), Ok(User::Uid(0)));
        assert_eq!("0".parse(), Ok(User::Uid(0)));
        assert_eq!("60123".parse(), Ok(User::Uid(60123)));
        assert_eq!("@students".parse(), Ok(User::Group("students".into())));
        assert_eq!(owner(4_294_901_760, Some("stud\n")), "@stud\\n");
        assert_eq!(name(0), "root");
        assert_eq!(name(4_000_000_000), "4000000000");
    }

    #[test]
    fn an_unknown_user_is_an_error_that_names_it() {
        for text in ["no-such-user", "", "@", "-1", "root ", "4294967295", "99999999999999"] {
            let error = text.parse::<User>().expect_err(text);
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
