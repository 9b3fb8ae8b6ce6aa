//! Who may use a file or a socket: users and groups by name and number, from the databases that
//! `nsswitch.conf` names, and file modes.

use anyhow::Context;
use nix::errno::Errno;
use nix::unistd::{Group, User};
use owners::Uid;

/// The uid of a user name; `None` if there is no such user.
pub fn uid_of(name: &str) -> nix::Result<Option<Uid>> {
    Ok(look_up(|| User::from_name(name))?.map(|user| Uid(user.uid.as_raw())))
}

/// The gid of a group name; `None` if there is no such group.
pub fn gid_of(name: &str) -> nix::Result<Option<u32>> {
    Ok(look_up(|| Group::from_name(name))?.map(|group| group.gid.as_raw()))
}

/// The name of a uid; `None` if it has none.
pub fn name_of(uid: Uid) -> nix::Result<Option<String>> {
    Ok(look_up(|| User::from_uid(nix::unistd::Uid::from_raw(uid.0)))?.map(|user| user.name))
}

/// Repeats an interrupted query. Some databases report "not found" by these errors (getpwnam(3)).
fn look_up<T>(query: impl Fn() -> nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    loop {
        match query() {
            Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => return Ok(None),
            Err(Errno::EINTR) => {}
            found => return found,
        }
    }
}

/// Parses an octal mode of a file, up to 0777, as it is given on a command line.
pub fn parse_mode(text: &str) -> anyhow::Result<u32> {
    // `from_str_radix` takes a sign.
    let is_octal = text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(text, 8).ok().filter(|&mode| is_octal && mode <= 0o777);
    mode.context("not an octal mode; give one up to 0777, such as 0660")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_strangers_are_not() {
        assert_eq!(uid_of("root"), Ok(Some(Uid::ROOT)));
        assert_eq!(uid_of("no-such-user-here"), Ok(None));
        assert_eq!(gid_of("root"), Ok(Some(0)));
        assert_eq!(gid_of("no-such-group-here"), Ok(None));
        assert_eq!(uid_of(""), Ok(None));
        assert_eq!(uid_of("ro\0ot"), Ok(None));
        assert_eq!(name_of(Uid::ROOT), Ok(Some("root".to_owned())));
        assert_eq!(name_of(Uid(4_000_000_000)), Ok(None));
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("0660").unwrap(), 0o660);
        assert_eq!(parse_mode("0").unwrap(), 0);
        for mode in ["", "8", "1777", "rw", "+660", "-1", "0o660"] {
            let error = parse_mode(mode).unwrap_err().to_string();
            assert!(error.contains("such as 0660"), "{mode}: {error}");
        }
    }
}
