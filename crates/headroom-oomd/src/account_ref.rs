//! Conversion between accounts and their references in the control protocol.

use control::oomd::{AccountKind, AccountRef};
use memory_ledger::{AccountId, Uid};
use memory_watch::{account_of_key, key_of_account};

/// For a group or cgroup, the number is its key in the BPF maps, which no uid can equal.
pub fn to_ref(account: AccountId) -> AccountRef {
    let kind = match account {
        AccountId::User(_) => AccountKind::User,
        AccountId::Group(_) => AccountKind::Group,
        AccountId::Cgroup(_) => AccountKind::Cgroup,
    };
    AccountRef { kind, uid: key_of_account(account) }
}

/// `None`: no group or cgroup can have this number.
pub fn of_ref(account: AccountRef) -> Option<AccountId> {
    let found = account_of_key(account.uid);
    match (account.kind, found) {
        (AccountKind::User, _) => Some(AccountId::User(Uid(account.uid))),
        (AccountKind::Group, AccountId::Group(_)) => Some(found),
        (AccountKind::Cgroup, AccountId::Cgroup(_)) => Some(found),
        (AccountKind::Group | AccountKind::Cgroup, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use memory_ledger::{CgroupId, GroupId};

    use super::*;

    #[test]
    fn an_account_is_found_by_its_kind_and_number() {
        let group = AccountId::Group(GroupId::new(7).unwrap());
        for account in [AccountId::User(Uid(7)), group, AccountId::Cgroup(CgroupId(7))] {
            assert_eq!(of_ref(to_ref(account)), Some(account));
        }
        let number = to_ref(group).uid;
        assert_eq!(of_ref(AccountRef { kind: AccountKind::Cgroup, uid: number }), None);
        assert_eq!(of_ref(AccountRef { kind: AccountKind::Group, uid: 1000 }), None);
        // A uid in the range of group keys still denotes a user. The ledger refuses it.
        assert_eq!(of_ref(AccountRef::user(Uid(number))), Some(AccountId::User(Uid(number))));
    }
}
