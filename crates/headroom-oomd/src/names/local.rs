//! The users and groups of `/etc/passwd` and `/etc/group`, which are read without the user
//! database.

use std::collections::BTreeMap;
use std::path::Path;

use memory_ledger::Uid;

struct User {
    uid: Uid,
    gid: u32,
}

struct Group {
    gid: u32,
    members: Vec<String>,
}

/// The content of both files.
#[derive(Default)]
pub(super) struct LocalFiles {
    users: BTreeMap<String, User>,
    groups: BTreeMap<String, Group>,
}

impl LocalFiles {
    /// Reads both files in this folder. What cannot be read is left to the user database.
    pub(super) fn read(etc: &Path) -> Self {
        let mut files = Self::default();
        let lines = |name: &str| std::fs::read_to_string(etc.join(name)).unwrap_or_default();
        for line in lines("passwd").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, ..] = fields[..] else { continue };
            let (Ok(uid), Ok(gid)) = (uid.parse(), gid.parse()) else { continue };
            // The first entry of a name counts.
            files.users.entry(name.to_owned()).or_insert(User { uid: Uid(uid), gid });
        }
        for line in lines("group").lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, gid, members] = fields[..] else { continue };
            let Ok(gid) = gid.parse() else { continue };
            let members = members.split(',').filter(|name| !name.is_empty());
            let members = members.map(str::to_owned).collect();
            files.groups.entry(name.to_owned()).or_insert(Group { gid, members });
        }
        files
    }

    pub(super) fn uid_of(&self, name: &str) -> Option<Uid> {
        self.users.get(name).map(|user| user.uid)
    }

    pub(super) fn gid_of(&self, group: &str) -> Option<u32> {
        self.groups.get(group).map(|group| group.gid)
    }

    /// The users that have this primary group.
    pub(super) fn members_of(&self, gid: u32) -> Vec<Uid> {
        self.users.values().filter(|user| user.gid == gid).map(|user| user.uid).collect()
    }

    /// The names that a group lists.
    pub(super) fn names_in(&self, group: &str) -> Vec<String> {
        self.groups.get(group).map(|group| group.members.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_read_and_other_lines_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(LocalFiles::read(dir.path()).uid_of("root"), None);
        let passwd = "root:x:0:0::/:/bin/sh\n+::::::\nann:x:5001:700::/:/bin/sh\nann:x:6:7::/:\n";
        std::fs::write(dir.path().join("passwd"), passwd).unwrap();
        std::fs::write(dir.path().join("group"), "staff:x:700:ben,root\nempty:x:701:\n#\n")
            .unwrap();
        let files = LocalFiles::read(dir.path());
        assert_eq!((files.uid_of("ann"), files.gid_of("staff")), (Some(Uid(5001)), Some(700)));
        assert_eq!(files.members_of(700), [Uid(5001)]);
        assert_eq!(files.names_in("staff"), ["ben", "root"]);
        assert!(files.names_in("empty").is_empty() && files.gid_of("other").is_none());
    }
}
