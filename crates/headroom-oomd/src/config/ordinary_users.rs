//! The uid range of local ordinary users, from `login.defs`.

use std::ops::RangeInclusive;
use std::path::Path;

use memory_ledger::Uid;

use super::read_trusted_if_there;

/// Default range of ordinary users: `UID_MIN` and `UID_MAX` of shadow's own `login.defs`.
pub const ORDINARY: RangeInclusive<Uid> = Uid(1000)..=Uid(60_000);

/// Reads the uid range of ordinary users from `login.defs`, if only root and the daemon's own user
/// can change it. The error contains the fallback that applies.
pub fn ordinary(login_defs: &Path) -> Result<RangeInclusive<Uid>, String> {
    let text = match read_trusted_if_there(login_defs) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(ORDINARY),
        Err(error) => return Err(instead(login_defs, &error.to_string())),
    };
    let number = |key: &str, default: Uid| {
        let value = text.lines().rev().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(key)).then(|| words.next().unwrap_or_default())
        });
        let Some(value) = value else { return Ok(default) };
        let wrong = |_| instead(login_defs, &format!("{key} {value}: no uid"));
        value.parse().map(Uid).map_err(wrong)
    };
    let range = number("UID_MIN", *ORDINARY.start())?..=number("UID_MAX", *ORDINARY.end())?;
    if range.is_empty() || *range.start() == Uid::ROOT {
        Err(instead(login_defs, "UID_MIN is 0, or above UID_MAX"))
    } else {
        Ok(range)
    }
}

fn instead(login_defs: &Path, what: &str) -> String {
    let (from, to) = (ORDINARY.start(), ORDINARY.end());
    format!("{}: {what}; uids {from} to {to} count as ordinary users", login_defs.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_other_users_can_change_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.defs");
        std::fs::write(&path, "UID_MIN 500\n").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        let message = ordinary(&path).expect_err("anybody can write it");
        assert!(message.contains("mode 0666") && message.ends_with("ordinary users"), "{message}");
    }

    #[test]
    fn ordinary_users_are_those_of_login_defs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.defs");
        assert_eq!(ordinary(&path), Ok(ORDINARY));
        for (text, expected) in [
            ("", Ok(ORDINARY)),
            ("# UID_MIN 5\nUID_MIN\t\t 500\nSYS_UID_MIN 100\n", Ok(Uid(500)..=Uid(60_000))),
            ("UID_MIN 500\nUID_MAX 900\n", Ok(Uid(500)..=Uid(900))),
            ("UID_MIN 0\n", Err("UID_MIN is 0")),
            ("UID_MIN 70000\n", Err("above UID_MAX")),
            ("UID_MAX many\n", Err("UID_MAX many: no uid")),
        ] {
            std::fs::write(&path, text).unwrap();
            match (ordinary(&path), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text:?}"),
                (Err(message), Err(part)) => {
                    assert!(
                        message.contains(part) && message.ends_with("ordinary users"),
                        "{message}"
                    );
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }
}
