//! Owner of the devices, as specified on the command line and in mount(8) options.

use anyhow::{Context, ensure};
use binder_fuse::DeviceOwner;
use headroom_daemon::user_database;
use owners::Uid;

/// Parses `USER[:GROUP]`.
pub fn parse_owner(text: &str) -> anyhow::Result<DeviceOwner> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    Ok(DeviceOwner { uid: parse_user(user)?, gid: group.map(parse_group).transpose()? })
}

/// The uid of a user, by name or number.
pub fn parse_user(user: &str) -> anyhow::Result<Uid> {
    ensure!(!user.is_empty(), "no user; give a user name or a uid");
    match user_database::uid_of(user).context("cannot read the user database")? {
        Some(uid) => Ok(uid),
        None => parse_id(user).map(Uid).context("no such user; create it, or give a uid"),
    }
}

/// The gid of a group, by name or number.
pub fn parse_group(group: &str) -> anyhow::Result<u32> {
    ensure!(!group.is_empty(), "no group; give a group name or a gid");
    match user_database::gid_of(group).context("cannot read the group database")? {
        Some(gid) => Ok(gid),
        None => parse_id(group).context("no such group; create it, or give a gid"),
    }
}

/// `u32::MAX` means "unchanged" to chown(2).
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&id| id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_have_names_or_numbers() {
        assert_eq!(parse_owner("root").unwrap(), DeviceOwner { uid: Uid::ROOT, gid: None });
        let owner = DeviceOwner { uid: Uid(4_000_000_000), gid: Some(0) };
        assert_eq!(parse_owner("4000000000:root").unwrap(), owner);
        for (owner, expected) in [
            ("no such", "no such user"),
            ("4294967295", "no such user"),
            ("0:no such", "no such group"),
            (":0", "no user"),
            ("0:", "no group"),
        ] {
            let error = parse_owner(owner).unwrap_err().to_string();
            assert!(error.contains(expected), "{owner}: {error}");
        }
    }
}
