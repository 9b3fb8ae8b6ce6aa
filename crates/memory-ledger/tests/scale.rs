//! The ledger and the selection of victims with as many users and processes as a large machine has.

use std::collections::BTreeMap;

use memory_ledger::{
    AccountId, AddressSpaceId, Change, Growth, Ledger, Limit, Phase, Process, ProcessId, Reading,
    Requester, Scope, Source, Uid, choose,
};

const USERS: u32 = 10_000;
const PROCESSES_PER_USER: u32 = 10;
const MIB: u64 = 1 << 20;

fn account(user: u32) -> AccountId {
    AccountId::User(Uid(100_000 + user))
}

/// Ten processes of each user; one of each ten, by turns of users, is the largest.
fn processes() -> Vec<Process> {
    let process = |number: u32| {
        let (user, nth) = (number / PROCESSES_PER_USER, number % PROCESSES_PER_USER);
        let pid = number + 2;
        Process {
            id: ProcessId { pid, start_time: u64::from(pid) },
            address_space: AddressSpaceId(u64::from(pid)),
            rss_bytes: if nth == user % PROCESSES_PER_USER { 8 * MIB } else { MIB },
            parent_pid: 1,
            group: pid,
            ..Process::of(Uid(100_000 + user))
        }
    };
    (0..USERS * PROCESSES_PER_USER).map(process).collect()
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    let limit = |user: u32| {
        let hard = if user.is_multiple_of(1000) { 16 * MIB } else { 64 * MIB };
        Limit::new(hard, Some(hard / 2)).unwrap()
    };
    let configured: Vec<_> = (0..USERS).map(|user| (account(user), limit(user))).collect();
    let changes: Vec<Change> = configured
        .iter()
        .filter_map(|(id, limit)| {
            ledger.plan_set(*id, *limit, Source::Config, Requester::Root).ok()
        })
        .collect();
    changes.into_iter().for_each(|change| ledger.apply(change));
    assert_eq!(ledger.plan_reload(&configured, None), [], "the same configuration again");
    ledger
}

#[test]
fn every_user_of_ten_thousand_has_an_account_and_its_own_victim() {
    let mut ledger = ledger();
    let mut processes = processes();
    Growth::default().look(&mut processes, 1);
    let mut sums: BTreeMap<AccountId, u64> = BTreeMap::new();
    for process in &processes {
        *sums.entry(process.account).or_default() += process.charged_bytes();
    }
    assert_eq!(ledger.accounts().len(), USERS as usize);
    let mut broken = Vec::new();
    for (id, used_bytes) in &sums {
        let reading = Reading { used_bytes: *used_bytes, dying_bytes: 0, at_ns: 1 };
        let phase = ledger.read(*id, reading).expect("each user has an account");
        broken.extend((phase == Phase::Broken).then_some(*id));
    }
    assert_eq!(sums.values().sum::<u64>(), u64::from(USERS) * 17 * MIB);
    assert_eq!(broken.len(), USERS as usize / 1000, "17 MiB of 16");
    for id in broken {
        let scope = Scope { account: Some(id), ..Scope::default() };
        let choice = choose(&scope, &processes, &[]).unwrap();
        assert_eq!(choice.considered, PROCESSES_PER_USER);
        assert_eq!((choice.victim.account, choice.victim.rss_bytes), (id, 8 * MIB));
    }
}

#[test]
fn the_victim_of_the_machine_is_the_largest_of_a_hundred_thousand_processes() {
    let mut processes = processes();
    processes[54_321].rss_bytes = 100 * MIB;
    let choice = choose(&Scope::default(), &processes, &[]).unwrap();
    assert_eq!(choice.victim.id, processes[54_321].id);
    assert_eq!(choice.considered, USERS * PROCESSES_PER_USER);
}
