//! Groups of users that share one account.
//!
//! The id of a group's account is derived from the group's name, so that it is the same after a
//! restart of the daemon.

use std::collections::BTreeMap;

use crate::account::{AccountId, GroupId, Uid};

/// Hash of a name: FNV-1a, folded.
pub(crate) fn hash(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash ^ hash >> 16
}

/// A group of users, and its account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Id of the group's account.
    pub id: GroupId,
    /// Name in the configuration.
    pub name: String,
    /// Uids of the members, ascending. May be empty.
    pub uids: Vec<Uid>,
}

/// All groups; a user is in at most one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    by_id: BTreeMap<GroupId, Group>,
    group_of: BTreeMap<Uid, GroupId>,
}

impl Groups {
    /// Creates groups of these names and uids. A user that is in two belongs to the first one.
    pub fn new(groups: impl IntoIterator<Item = (String, Vec<Uid>)>) -> Self {
        let mut all = Self::default();
        for (name, mut uids) in groups {
            uids.sort_unstable();
            uids.dedup();
            uids.retain(|uid| !all.group_of.contains_key(uid));
            // No id is left; a configuration never comes near that number of groups.
            let Some(id) = all.free_id(&name) else { break };
            all.group_of.extend(uids.iter().map(|uid| (*uid, id)));
            all.by_id.insert(id, Group { id, name, uids });
        }
        all
    }

    /// The id that is derived from the name, or the next free one.
    fn free_id(&self, name: &str) -> Option<GroupId> {
        let count = u32::from(GroupId::COUNT);
        let first = hash(name) % count;
        let ids = (0..count).filter_map(|at| GroupId::new(((first + at) % count) as u16));
        ids.into_iter().find(|id| !self.by_id.contains_key(id))
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// There are no groups.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All groups, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.by_id.values()
    }

    /// The group that the account belongs to.
    pub fn get(&self, account: AccountId) -> Option<&Group> {
        match account {
            AccountId::Group(id) => self.by_id.get(&id),
            AccountId::User(_) | AccountId::Cgroup(_) => None,
        }
    }

    /// The group that a user is in.
    pub fn of(&self, uid: Uid) -> Option<&Group> {
        self.group_of.get(&uid).and_then(|id| self.by_id.get(id))
    }

    /// The account that a user's processes are charged to: that of its group, or its own.
    pub fn account_of(&self, uid: Uid) -> AccountId {
        self.group_of.get(&uid).map_or(AccountId::User(uid), |id| AccountId::Group(*id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(of: &[(&str, &[u32])]) -> Groups {
        Groups::new(
            of.iter()
                .map(|(name, uids)| ((*name).to_owned(), uids.iter().copied().map(Uid).collect())),
        )
    }

    #[test]
    fn users_of_a_group_share_its_account_and_others_have_their_own() {
        let groups = groups(&[("students", &[1003, 1001, 1003]), ("staff", &[])]);
        let students = groups.of(Uid(1001)).unwrap();
        assert_eq!(students.name, "students");
        assert_eq!(students.uids, [Uid(1001), Uid(1003)]);
        assert_eq!(groups.account_of(Uid(1003)), AccountId::Group(students.id));
        assert_eq!(groups.account_of(Uid(1002)), AccountId::User(Uid(1002)));
        assert_eq!(groups.of(Uid(1002)), None);
        assert_eq!(groups.len(), 2);
    }

    #[test]
    fn a_group_keeps_its_id_whatever_other_groups_there_are() {
        let id = |groups: &Groups| groups.of(Uid(1)).unwrap().id;
        let alone = id(&groups(&[("students", &[1])]));
        let among = id(&groups(&[("a", &[2]), ("b", &[3]), ("students", &[1])]));
        assert_eq!(alone, among);
        // Pinned maps of another version of the daemon contain this id.
        assert_eq!(alone.get(), 42_569);
    }

    #[test]
    fn many_groups_have_as_many_ids() {
        let all = Groups::new((0..3000).map(|n| (format!("g{n}"), vec![Uid(n)])));
        assert_eq!(all.len(), 3000);
        assert!((0..3000).all(|uid| all.of(Uid(uid)).unwrap().name == format!("g{uid}")));
    }

    #[test]
    fn a_user_in_two_groups_belongs_to_the_first() {
        let groups = groups(&[("a", &[1, 2]), ("b", &[2, 3])]);
        assert_eq!(groups.of(Uid(2)).unwrap().name, "a");
        assert_eq!(groups.iter().map(|group| group.uids.len()).sum::<usize>(), 3);
    }
}
