//! Names of users, and which of them are people.

use std::ffi::{CStr, CString};
use std::ops::RangeInclusive;
use std::path::Path;

/// Largest entry of the user database that is believed, bytes.
const MAX_ENTRY: usize = 1 << 20;

/// The uid of a user name, from wherever the system looks users up; `None` when there is none.
pub fn uid_of(name: &str) -> Result<Option<u32>, rustix::io::Errno> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut buffer = vec![0; 4096];
    loop {
        // SAFETY: all zero bytes are a passwd without strings.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends with a NUL, the buffer is as long as it says, and the entry, which
        // points into the buffer, is not used after it.
        let error = unsafe {
            let room = buffer.len();
            libc::getpwnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), room, &mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            0 => return Ok(Some(entry.pw_uid)),
            libc::ERANGE if buffer.len() < MAX_ENTRY => buffer.resize(buffer.len() * 4, 0),
            // Some user databases say "not found" in these words.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(rustix::io::Errno::from_raw_os_error(error)),
        }
    }
}

/// The uids of a group of the system's: those whose own group it is, and those that it names (names that no user bears
/// are left out), ascending; `None` when there is no such group. Not to be called by two threads at a time.
pub fn members_of(group: &str) -> Result<Option<Vec<u32>>, rustix::io::Errno> {
    let Some((gid, names)) = group_entry(group)? else { return Ok(None) };
    let mut uids = Vec::new();
    for name in names {
        uids.extend(uid_of(&name)?);
    }
    // SAFETY: the entry is read before the next call, and nobody else walks through the database.
    unsafe {
        libc::setpwent();
        while let Some(entry) = libc::getpwent().as_ref() {
            if entry.pw_gid == gid {
                uids.push(entry.pw_uid);
            }
        }
        libc::endpwent();
    }
    uids.sort_unstable();
    uids.dedup();
    Ok(Some(uids))
}

/// A group's gid, and the names of those who are in it beside their own.
fn group_entry(name: &str) -> Result<Option<(u32, Vec<String>)>, rustix::io::Errno> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut buffer = vec![0; 4096];
    loop {
        // SAFETY: all zero bytes are a group without strings.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends with a NUL, and the buffer is as long as it says.
        let error = unsafe {
            let room = buffer.len();
            libc::getgrnam_r(name.as_ptr(), &mut entry, buffer.as_mut_ptr(), room, &mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            0 => {
                let mut names = Vec::new();
                let mut at = entry.gr_mem;
                // SAFETY: a list of strings in the buffer, which is still there; a null pointer ends it.
                unsafe {
                    while !at.is_null() && !(*at).is_null() {
                        names.push(CStr::from_ptr(*at).to_string_lossy().into_owned());
                        at = at.add(1);
                    }
                }
                return Ok(Some((entry.gr_gid, names)));
            }
            libc::ERANGE if buffer.len() < MAX_ENTRY => buffer.resize(buffer.len() * 4, 0),
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(rustix::io::Errno::from_raw_os_error(error)),
        }
    }
}

/// Uids that are given to people, unless the file says otherwise: `UID_MIN` and `UID_MAX` of shadow's
/// own `login.defs`.
pub const ORDINARY: RangeInclusive<u32> = 1000..=60_000;

/// The uids of ordinary users, by `login.defs`. The error says what is done without it.
pub fn ordinary(login_defs: &Path) -> Result<RangeInclusive<u32>, String> {
    let text = match std::fs::read_to_string(login_defs) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ORDINARY),
        Err(error) => return Err(instead(login_defs, &error.to_string())),
    };
    let number = |key: &str, default: u32| {
        let value = text.lines().rev().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.next() == Some(key)).then(|| words.next().unwrap_or_default())
        });
        let Some(value) = value else { return Ok(default) };
        let wrong = |_| instead(login_defs, &format!("{key} {value}: no uid"));
        value.parse::<u32>().map_err(wrong)
    };
    let range = number("UID_MIN", *ORDINARY.start())?..=number("UID_MAX", *ORDINARY.end())?;
    match range.is_empty() || *range.start() == 0 {
        true => Err(instead(login_defs, "UID_MIN is 0, or above UID_MAX")),
        false => Ok(range),
    }
}

fn instead(login_defs: &Path, what: &str) -> String {
    let (from, to) = (ORDINARY.start(), ORDINARY.end());
    format!("{}: {what}; uids {from} to {to} count as ordinary users", login_defs.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_users_are_those_of_login_defs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login.defs");
        assert_eq!(ordinary(&path), Ok(ORDINARY));
        for (text, expected) in [
            ("", Ok(ORDINARY)),
            ("# UID_MIN 5\nUID_MIN\t\t 500\nSYS_UID_MIN 100\n", Ok(500..=60_000)),
            ("UID_MIN 500\nUID_MAX 900\n", Ok(500..=900)),
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

    #[test]
    fn a_group_has_those_whose_own_it_is() {
        let root = members_of("root").unwrap().unwrap();
        assert!(root.contains(&0) && root.is_sorted(), "{root:?}");
        assert_eq!(members_of("no-such-group-here"), Ok(None));
    }

    #[test]
    fn root_is_known_and_strangers_are_not() {
        assert_eq!(uid_of("root"), Ok(Some(0)));
        assert_eq!(uid_of("no-such-user-here"), Ok(None));
        assert_eq!(uid_of(""), Ok(None));
        assert_eq!(uid_of("ro\0ot"), Ok(None));
    }
}
