//! Users who share one account.
//!
//! The account of a group has a number of its own, from [`FIRST_GROUP`] on, that stands wherever an account of one user
//! has its uid. It follows from the group's name, so that it is the same for the next daemon.

use std::collections::BTreeMap;

/// The first number of a group's account. Uids from here on, and those that stand for [cgroups](crate::cgroup), cannot be
/// limited by themselves; no system gives them out.
pub const FIRST_GROUP: u32 = 0xffff_0000;
/// As many numbers as there are; the last one of all is `(uid_t) -1`, which means "no user".
const NUMBERS: u32 = u32::MAX - FIRST_GROUP;

/// A name's own number: FNV-1a, folded.
pub(crate) fn hash(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash ^ hash >> 16
}

/// The account is a group's, not a user's.
pub fn is_group(account: u32) -> bool {
    account >= FIRST_GROUP
}

/// Some users, and the number of their account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Of its account.
    pub number: u32,
    /// What people call it.
    pub name: String,
    /// Who is in it, ascending. There may be nobody at present.
    pub uids: Vec<u32>,
}

/// All groups; a user is in one at the most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    by_number: BTreeMap<u32, Group>,
    number_of: BTreeMap<u32, u32>,
}

impl Groups {
    /// Groups of these names and uids. Who is in two is in the one that comes first.
    pub fn new(groups: impl IntoIterator<Item = (String, Vec<u32>)>) -> Self {
        let mut all = Self::default();
        for (name, mut uids) in groups {
            uids.sort_unstable();
            uids.dedup();
            uids.retain(|uid| !all.number_of.contains_key(uid));
            let number = all.free_number(&name);
            all.number_of.extend(uids.iter().map(|uid| (*uid, number)));
            all.by_number.insert(number, Group { number, name, uids });
        }
        all
    }

    /// The name's own number, or the next one that no other group has.
    fn free_number(&self, name: &str) -> u32 {
        let mut at = hash(name) % NUMBERS;
        while self.by_number.contains_key(&(FIRST_GROUP + at)) && self.len() < NUMBERS as usize {
            at = (at + 1) % NUMBERS;
        }
        FIRST_GROUP + at
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// All, by number.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.by_number.values()
    }

    /// The group whose account has this number.
    pub fn get(&self, number: u32) -> Option<&Group> {
        self.by_number.get(&number)
    }

    /// The group that a user is in.
    pub fn of(&self, uid: u32) -> Option<&Group> {
        self.number_of.get(&uid).and_then(|number| self.get(*number))
    }

    /// The number of the account that a user's processes are charged to: its group's, or its own uid.
    pub fn account_of(&self, uid: u32) -> u32 {
        self.number_of.get(&uid).copied().unwrap_or(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(of: &[(&str, &[u32])]) -> Groups {
        Groups::new(of.iter().map(|(name, uids)| ((*name).to_owned(), uids.to_vec())))
    }

    #[test]
    fn users_of_a_group_share_its_account_and_others_have_their_own() {
        let groups = groups(&[("students", &[1003, 1001, 1003]), ("staff", &[])]);
        let students = groups.of(1001).unwrap();
        assert_eq!((students.name.as_str(), &students.uids[..]), ("students", &[1001, 1003][..]));
        assert!(is_group(students.number) && groups.account_of(1003) == students.number);
        assert_eq!((groups.account_of(1002), groups.of(1002)), (1002, None));
        assert_eq!(groups.len(), 2);
    }

    #[test]
    fn a_group_keeps_its_number_whatever_other_groups_there_are() {
        let number = |groups: &Groups| groups.of(1).unwrap().number;
        let alone = number(&groups(&[("students", &[1])]));
        let among = number(&groups(&[("a", &[2]), ("b", &[3]), ("students", &[1])]));
        assert_eq!(alone, among);
    }

    #[test]
    fn many_groups_have_as_many_numbers_and_none_is_that_of_no_user() {
        let all = Groups::new((0..3000).map(|n| (format!("g{n}"), vec![n])));
        assert_eq!(all.len(), 3000);
        assert!(all.iter().all(|group| is_group(group.number) && group.number != u32::MAX));
        assert!((0..3000).all(|uid| all.of(uid).unwrap().name == format!("g{uid}")));
    }

    #[test]
    fn who_is_in_two_is_in_the_first() {
        let groups = groups(&[("a", &[1, 2]), ("b", &[2, 3])]);
        assert_eq!(groups.of(2).unwrap().name, "a");
        assert_eq!(groups.iter().map(|group| group.uids.len()).sum::<usize>(), 3);
    }
}
