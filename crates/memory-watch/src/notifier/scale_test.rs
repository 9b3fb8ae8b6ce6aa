//! The tables at the capacity of a large machine, and when they are full. Address spaces without a
//! process stand for those of processes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::Command;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use memory_ledger::Uid;
use test_support::helper::Helper;
use zerocopy::IntoBytes;

use super::load::Capacity;
use super::wire::Account;
use super::{Notifier, accounts, map};
use crate::watch::{SlotLimit, Watch};

const FIRST_UID: u32 = 2_000_000;
const FAR_AWAY: SlotLimit = SlotLimit { soft_pages: 1 << 40, hard_pages: 1 << 40 };

fn load(processes: u32) -> Option<Notifier> {
    if !test_support::privileged() {
        return None;
    }
    Some(Notifier::load_with(None, Capacity::for_processes(processes)).expect("BPF works here"))
}

fn user(number: u32) -> Uid {
    Uid(FIRST_UID + number)
}

fn limit_users(notifier: &mut Notifier, count: u32) {
    for number in 0..count {
        notifier.set_limit(user(number).into(), FAR_AWAY).unwrap();
    }
}

/// An address that no mm has.
fn address(number: u32) -> [u8; 8] {
    (u64::from(number) << 12 | 1).to_ne_bytes()
}

/// Charges address spaces to users by turns.
fn add_address_spaces(notifier: &Notifier, count: u32, users: u32) -> libbpf_rs::Result<()> {
    let accounts = map(&notifier.object, "accounts").unwrap();
    for number in 0..count {
        let uid = user(number % users);
        let slot = notifier.index_of[&uid.into()];
        let owner = u64::from(uid.0) << 32 | u64::from(slot);
        let account = Account { owner, pages: [0, 1, 0, 0], ..Account::default() };
        accounts.update(&address(number), account.as_bytes(), MapFlags::ANY)?;
    }
    Ok(())
}

fn hog(uid: Uid) -> Helper {
    let mut hog =
        Helper::run(Command::new(test_support::programs::memory_hog()).arg(uid.to_string()));
    hog.execute("touch 1000");
    hog
}

#[test]
fn ten_thousand_users_and_a_hundred_thousand_address_spaces_are_all_counted() {
    const USERS: u32 = 10_000;
    const ADDRESS_SPACES: u32 = 100_000;
    let Some(mut notifier) = load(131_072) else { return };
    limit_users(&mut notifier, USERS);
    add_address_spaces(&notifier, ADDRESS_SPACES, USERS).unwrap();
    let all = accounts::read_all(&map(&notifier.object, "accounts").unwrap()).unwrap();
    assert_eq!(all.len(), ADDRESS_SPACES as usize);
    let mut of_slot: BTreeMap<u32, u32> = BTreeMap::new();
    for account in all.values() {
        *of_slot.entry(account.slot()).or_default() += 1;
    }
    assert_eq!(of_slot.len(), USERS as usize, "each user has a slot of its own");
    assert!(of_slot.values().all(|count| *count == ADDRESS_SPACES / USERS));
    // The programs find the last user's slot, and count its process at once.
    let last = user(USERS - 1);
    let _hog = hog(last);
    assert!(notifier.usage(last.into()).unwrap().pages >= 900);
    let lost = |number| notifier.usage(user(number).into()).unwrap().lost;
    assert!((0..USERS).all(|number| lost(number) == 0));
}

#[test]
fn an_address_space_that_finds_the_table_full_is_reported_until_there_is_room() {
    const CAPACITY: u32 = 64;
    let Some(mut notifier) = load(CAPACITY) else { return };
    limit_users(&mut notifier, 2);
    add_address_spaces(&notifier, CAPACITY, 1).unwrap();
    let other = user(1);
    let _hog = hog(other);
    assert_eq!(notifier.reconcile().unwrap().uncounted, 1);
    assert_eq!(notifier.usage(other.into()).unwrap().pages, 0);
    map(&notifier.object, "accounts").unwrap().delete(&address(0)).unwrap();
    assert_eq!(notifier.reconcile().unwrap().uncounted, 0);
    assert!(notifier.usage(other.into()).unwrap().pages >= 900);
}

#[test]
fn users_beyond_the_capacity_are_refused_and_a_cleared_limit_makes_room() {
    const CAPACITY: u32 = 64;
    let Some(mut notifier) = load(CAPACITY) else { return };
    limit_users(&mut notifier, CAPACITY);
    let error = notifier.set_limit(user(CAPACITY).into(), FAR_AWAY).unwrap_err().to_string();
    assert!(error.contains("64 users have limits already"), "{error}");
    notifier.clear_limit(user(7).into()).unwrap();
    notifier.set_limit(user(CAPACITY).into(), FAR_AWAY).unwrap();
}

/// Memory of a map, as the kernel counts it (since Linux 6.4 by what is allocated).
fn map_bytes(fd: BorrowedFd<'_>) -> u64 {
    let info = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = std::fs::read_to_string(info).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("memlock:")).unwrap();
    line.trim().parse().unwrap()
}

/// The formula in docs/design/accounts.md.
fn expected_bytes(capacity: Capacity, users: u32, address_spaces: u32) -> u64 {
    let buckets = |entries: u32| 16 * u64::from(entries.next_power_of_two());
    let fixed = buckets(capacity.address_spaces) + buckets(capacity.users) + (128 << 10);
    fixed + 384 * u64::from(users.next_multiple_of(64)) + 160 * u64::from(address_spaces)
}

#[test]
fn a_thousand_accounts_take_less_than_4_mib() {
    const USERS: u32 = 1_000;
    let capacity = Capacity::for_processes(100_000);
    let Some(mut notifier) = load(capacity.address_spaces) else { return };
    limit_users(&mut notifier, USERS);
    add_address_spaces(&notifier, USERS, USERS).unwrap();
    let own = ["accounts", "slot_of_uid", "slots", "limited_uids", "scans", "events"];
    let own = own.map(|name| map_bytes(map(&notifier.object, name).unwrap().as_fd()));
    let slots = map(&notifier.object, "slots").unwrap();
    let chunks = (0..USERS.div_ceil(64)).map(|chunk| {
        let id = slots.lookup(&chunk.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let id = u32::from_ne_bytes(id.try_into().unwrap());
        map_bytes(MapHandle::from_map_id(id).unwrap().as_fd())
    });
    let bytes: u64 = own.into_iter().chain(chunks).sum();
    let expected = expected_bytes(capacity, USERS, USERS);
    assert!(bytes <= expected, "{bytes} bytes, {expected} by the formula");
    assert!(bytes > expected / 8 * 7, "{bytes} bytes, {expected} by the formula");
    assert!(expected <= 4 << 20, "{expected}");
}
