//! Answers of the user database, and the file that keeps the last ones.
//!
//! A line is a kind, numbers with commas between them, and a name or uid, separated by tabs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use memory_ledger::Uid;

/// A question to the user database. The answer are numbers; none: there is no such user or group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Query {
    /// The uid of a user.
    User(String),
    /// The gid of a group.
    Group(String),
    /// The gids of a user.
    GroupsOf(Uid),
}

/// Answers that contain at least one number.
pub(super) type Known = BTreeMap<Query, Vec<u32>>;

/// The file in the daemon's state folder.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join("names")
}

/// The answers in the file; none if it does not exist. A line that cannot be understood is left
/// out: its name is looked up again in any case.
pub(super) fn read(path: &Path) -> Known {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {error}; names are looked up again", path.display());
            }
            return Known::new();
        }
    };
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<(Query, Vec<u32>)> {
    let mut parts = line.splitn(3, '\t');
    let (kind, numbers, name) = (parts.next()?, parts.next()?, parts.next()?);
    let query = match kind {
        "user" => Query::User(name.to_owned()),
        "group" => Query::Group(name.to_owned()),
        "groups-of" => Query::GroupsOf(Uid(name.parse().ok()?)),
        _ => return None,
    };
    let numbers: Option<Vec<u32>> = numbers.split(',').map(|number| number.parse().ok()).collect();
    Some((query, numbers?))
}

/// Replaces the file.
pub(super) fn write(path: &Path, known: &Known) -> io::Result<()> {
    let mut text = String::new();
    for (query, numbers) in known {
        let (kind, name) = match query {
            Query::User(name) => ("user", name.clone()),
            Query::Group(name) => ("group", name.clone()),
            Query::GroupsOf(uid) => ("groups-of", uid.to_string()),
        };
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        if !name.contains('\n') {
            text.push_str(&format!("{kind}\t{}\t{name}\n", numbers.join(",")));
        }
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_lines_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = path(dir.path());
        assert_eq!(read(&path), Known::new());
        let known = Known::from([
            (Query::User("tina".into()), vec![1_682_401_104]),
            (Query::Group("domain users".into()), vec![700]),
            (Query::GroupsOf(Uid(5)), vec![700, 701]),
        ]);
        write(&path, &known).unwrap();
        assert_eq!(read(&path), known);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("user\tx\tbob\nuser\nother\t1\tbob\n\n");
        std::fs::write(&path, text).unwrap();
        assert_eq!(read(&path), known);
    }
}
