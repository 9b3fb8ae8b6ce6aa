//! Victim selection in the situations that users report, and invariants of any selection.

use memory_ledger::{
    AccountId, AddressSpaceId, Bombs, Cause, Choice, Comm, GroupId, Groups, Growth, Herds,
    KillPreference, NoVictim, Process, ProcessId, Scope, Uid, choose,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const USER: u32 = 1000;

/// A process with `mib`, of which it allocated `grown` in the last window.
fn process(pid: u32, parent_pid: u32, mib: u64, grown: u64) -> Process {
    Process {
        id: ProcessId { pid, start_time: u64::from(pid) },
        rss_bytes: mib * MIB,
        parent_pid,
        group: pid,
        grown_bytes: grown * MIB,
        newborn: grown == mib && grown > 0,
        ..Process::of(Uid(USER))
    }
}

fn shell(pid: u32) -> Process {
    Process { session_leader: true, ..process(pid, 1, 12, 0) }
}

fn of_group(group: u32, process: Process) -> Process {
    Process { group, ..process }
}

fn choose_among(processes: &[Process], need: u64) -> Choice {
    let need_bytes = Some(need * MIB);
    let scope = Scope { need_bytes, bombs: Bombs::AtOnce, ..Scope::default() };
    choose(&scope, processes, &[]).unwrap()
}

/// Pids of all processes that are killed, ascending.
fn dead(choice: &Choice) -> Vec<u32> {
    let all = choice.victims();
    let mut pids: Vec<u32> = all.map(|process| process.id.pid).collect();
    pids.sort_unstable();
    pids
}

fn growing_children(parent: u32, count: u32, mib: u64, grown: u64) -> Vec<Process> {
    let child = |n| of_group(parent, process(parent + n, parent, mib, grown));
    (1..=count).map(child).collect()
}

#[test]
fn each_situation_has_its_victims() {
    let with = |first: Vec<Process>, rest: Vec<Process>| [first, rest].concat();
    let herd =
        |mib, grown| with(vec![process(100, 50, 2, 0)], growing_children(100, 8, mib, grown));
    let build = with(vec![process(100, 50, 30, 1)], growing_children(100, 8, 300, 50));
    let bomb = with(vec![of_group(100, process(100, 50, 1, 0))], growing_children(100, 40, 1, 1));
    let situations: Vec<(&str, Vec<Process>, u64, Vec<u32>)> = vec![
        (
            "a herd beside an idle bystander that is larger than each of it: all of the herd, not \
             its parent, which can report what happened",
            with(vec![shell(50), process(60, 50, 64, 0)], herd(58, 58)),
            35,
            (101..=108).collect(),
        ),
        (
            "a parallel build with some memory to spare: the jobs that cover the need and what the \
             others will take",
            with(vec![shell(50), process(60, 50, 2000, 0)], build),
            200,
            vec![106, 107, 108],
        ),
        (
            "a leak beside a big idle database",
            vec![shell(50), process(60, 1, 4000, 0), process(70, 50, 900, 400)],
            500,
            vec![70],
        ),
        (
            "a database that moves a little beside a leak of a tenth of its size",
            vec![process(60, 1, 4000, 2), process(70, 50, 450, 450)],
            500,
            vec![70],
        ),
        (
            "no process grows: the largest",
            vec![shell(50), process(60, 1, 400, 0), process(70, 50, 300, 0)],
            10,
            vec![60],
        ),
        (
            "a fork bomb of small processes beside larger idle ones: all of it but its root, which \
             did not grow",
            with(vec![shell(50), process(60, 50, 64, 0)], bomb),
            10,
            (101..=140).collect(),
        ),
        (
            "a shell with the leak as its child",
            vec![
                Process { session_leader: true, ..process(50, 1, 40, 2) },
                process(70, 50, 30, 30),
            ],
            10,
            vec![70],
        ),
        (
            "a leak that leads a session itself, as a service's first process does",
            vec![
                Process { session_leader: true, ..process(70, 1, 900, 600) },
                process(60, 1, 200, 0),
            ],
            10,
            vec![70],
        ),
        (
            "many idle helpers of one browser beside a leak",
            with(growing_children(100, 30, 100, 0), vec![process(70, 50, 800, 300)]),
            100,
            vec![70],
        ),
    ];
    for (what, mut processes, need, expected) in situations {
        for _ in 0..3 {
            let third = processes.len() / 3;
            processes.rotate_left(third.max(1));
            let choice = choose_among(&processes, need);
            assert_eq!(dead(&choice), expected, "{what}: {}", choice.cause);
            assert!(choice.runner_up.is_none_or(|next| !expected.contains(&next.id.pid)), "{what}");
        }
    }
}

#[test]
fn the_cause_of_a_single_victim_is_its_rule_its_growth_or_its_size() {
    let cause = |preference, grown| {
        let victim = Process { preference, ..process(70, 50, 80, grown) };
        choose_among(&[victim], 1).cause
    };
    assert_eq!(cause(KillPreference::Ordinary, 9), Cause::Largest, "less than an eighth");
    assert_eq!(cause(KillPreference::Ordinary, 10), Cause::Growing);
    assert_eq!(cause(KillPreference::Prefer, 10), Cause::Preferred);
    assert_eq!(cause(KillPreference::Avoid, 10), Cause::LastResort);
}

#[test]
fn memory_that_all_sessions_of_a_database_share_selects_none_of_them() {
    let session = |pid, mib, shared_mib: u64| {
        let shared_bytes = shared_mib * MIB;
        Process { shared_bytes, ..of_group(100, process(pid, 100, mib, 0)) }
    };
    let mut growth = Growth::default();
    let mut look = |at_s: u64, sorts_mib, shared_mib| {
        let mut all: Vec<Process> =
            (1..=8).map(|n| session(100 + n, 10 + shared_mib, shared_mib)).collect();
        all.push(session(200, sorts_mib + shared_mib / 2, shared_mib / 2));
        growth.look(&mut all, at_s * 1_000_000_000);
        choose_among(&all, 1)
    };
    look(0, 10, 100);
    let choice = look(3, 100, 900);
    assert_eq!(dead(&choice), [200], "{}", choice.cause);
    assert_eq!(choice.victim.grown_bytes, 90 * MIB);
}

#[test]
fn an_interactive_shell_outlives_the_fork_bomb_that_was_typed_into_it() {
    let mut all = vec![shell(50)];
    all.extend((0..60).map(|n| of_group(100, process(100 + n, 1, 1, 1))));
    let choice = choose_among(&all, 10);
    let Cause::Herd(herd) = choice.cause else { panic!("{:?}", choice.cause) };
    assert!(herd.bomb && herd.members == 60 && herd.born == 60, "{herd:?}");
    assert_eq!(choice.runner_up.map(|next| next.id.pid), Some(50));
    let text = choice.cause.to_string();
    assert!(text.contains("fork bomb") && text.contains("60 processes"), "{text}");
}

/// A process that is neither new nor grows, with `children` new children. Each has a new child.
fn old_parent(pid: u32, children: u32) -> Vec<Process> {
    let mut all = vec![of_group(pid, process(pid, 50, 2, 0))];
    for n in 1..=children {
        all.push(of_group(pid, process(pid + n, pid, 1, 1)));
        all.push(of_group(pid, process(pid + 50 + n, pid + n, 1, 1)));
    }
    all
}

#[test]
fn the_first_processes_of_a_slow_fork_bomb_die_with_it_though_they_are_old() {
    let is_killed = |all: &[Process]| {
        let choice = choose_among(all, 10);
        assert!(matches!(choice.cause, Cause::Herd(herd) if herd.bomb), "{}", choice.cause);
        dead(&choice).contains(&100)
    };
    let bomb = [vec![shell(50)], old_parent(100, 20)].concat();
    assert!(is_killed(&bomb));
    let mut of_another_name = bomb.clone();
    of_another_name[1].comm = Comm::new(b"agent");
    assert!(!is_killed(&of_another_name), "what runs the bomb");
    let server = |all: &mut Vec<Process>| all.retain(|it| it.parent_pid <= 100);
    let mut with_workers = [bomb, growing_children(100, 20, 1, 1)].concat();
    server(&mut with_workers);
    assert!(!is_killed(&with_workers), "its children have no children");
}

#[test]
fn a_bomb_that_takes_longer_than_a_window_to_double_is_one() {
    let mut all = [vec![shell(50)], old_parent(100, 40)].concat();
    // Of 81 processes 20 are new.
    for (at, process) in all[2..].iter_mut().enumerate() {
        process.newborn = at % 4 == 0;
    }
    let is_bomb = |all: &[Process]| {
        let cause = choose_among(all, 10).cause;
        matches!(cause, Cause::Herd(herd) if herd.bomb)
    };
    assert!(is_bomb(&all));
    for (at, process) in all.iter_mut().enumerate().filter(|(at, _)| at % 2 == 0) {
        process.comm = Comm::new(format!("job {at}").as_bytes());
    }
    assert!(!is_bomb(&all), "a build of which a part is new");
}

#[test]
fn they_die_with_a_herd_of_which_all_members_die_too() {
    let all = [vec![shell(50)], old_parent(100, 20)].concat();
    let killed = |need_mib: u64| {
        let need_bytes = Some(need_mib * MIB);
        let scope = Scope { need_bytes, bombs: Bombs::AfterKills, ..Scope::default() };
        let choice = choose(&scope, &all, &[]).unwrap();
        assert!(matches!(choice.cause, Cause::Herd(herd) if !herd.bomb), "{}", choice.cause);
        (dead(&choice).len(), dead(&choice).contains(&100))
    };
    assert_eq!(killed(30), (41, true));
    let of_others = all.iter().map(|it| Process { grown_bytes: it.grown_bytes / 8, ..*it });
    let all: Vec<Process> = of_others.collect();
    let scope = Scope { need_bytes: Some(4 * MIB), bombs: Bombs::AfterKills, ..Scope::default() };
    let some = dead(&choose(&scope, &all, &[]).unwrap());
    assert!((4..30).contains(&some.len()) && !some.contains(&100), "{some:?}");
}

/// Whether the kills of children are recorded in [`Growth`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordKills {
    Yes,
    No,
}

/// A parent that has `alive` growing children at a time. The chosen ones are killed five times per
/// second and are replaced. Returns the number of kills after which all of them are killed as a
/// bomb, if that is within ten seconds.
fn kills_until_a_bomb(alive: u32, record_kills: RecordKills) -> Option<u32> {
    let mut growth = Growth::default();
    let parent = of_group(100, process(100, 50, 2, 0));
    let idle = process(60, 50, 64, 0);
    let mut children: Vec<Process> = Vec::new();
    let mut next_pid = 101;
    for step in 0..50 {
        let now_ns = step * 200_000_000;
        let processes: Vec<Process> =
            [shell(50), idle, parent].into_iter().chain(children.iter().copied()).collect();
        let mut processes = processes;
        growth.look(&mut processes, now_ns);
        if step > 0 {
            let choice = choose(&Scope::default(), &processes, &[]).unwrap();
            if matches!(choice.cause, Cause::Herd(herd) if herd.bomb) {
                assert_eq!(choice.others.len() + 1, children.len(), "all of them");
                return Some(step as u32);
            }
            let died = dead(&choice);
            assert!(!died.contains(&100), "{choice:?}");
            assert!(died.len() == 1 || died.len() == children.len(), "one or all: {choice:?}");
            for victim in choice.victims() {
                if record_kills == RecordKills::Yes {
                    growth.record_kill(victim, now_ns);
                }
            }
            children.retain(|child| !died.contains(&child.id.pid));
        }
        for child in &mut children {
            child.rss_bytes += 8 * MIB;
        }
        while children.len() < alive as usize {
            children.push(of_group(100, process(next_pid, 100, 8, 0)));
            next_pid += 1;
        }
    }
    None
}

#[test]
fn a_small_bomb_is_recognised_by_its_killed_members() {
    assert_eq!(kills_until_a_bomb(6, RecordKills::No), None);
    assert_eq!(kills_until_a_bomb(6, RecordKills::Yes), Some(7), "the sixth kill took all six");
    assert_eq!(kills_until_a_bomb(3, RecordKills::Yes), Some(7));
}

/// An agent that leads its session, is idle, and has 17 stable jobs and one that grows.
fn agent() -> Vec<Process> {
    let agent = Process { session_leader: true, ..process(100, 1, 60, 0) };
    // All processes started within the window.
    let job = |n: u32| of_group(100, process(100 + n, 100, 50, 50));
    let stable = (1..=17).map(|n| Process { grown_bytes: 0, ..job(n) });
    [agent].into_iter().map(|it| of_group(100, it)).chain(stable).chain([job(18)]).collect()
}

#[test]
fn only_the_growing_job_of_an_agent_dies() {
    let of_user = Scope { account: Some(AccountId::User(Uid(USER))), ..Scope::default() };
    let of_machine = Scope { need_bytes: Some(10 * MIB), ..Scope::default() };
    for scope in [of_user, of_machine] {
        let choice = choose(&scope, &agent(), &[]).unwrap();
        assert_eq!(dead(&choice), [118], "{}", choice.cause);
    }
    // The agent survives even if some jobs were killed just before.
    let mut all = agent();
    all[1].killed_newborns = 5;
    let choice = choose(&of_user, &all, &[]).unwrap();
    assert_eq!(dead(&choice), (101..=118).collect::<Vec<u32>>(), "{}", choice.cause);
}

#[test]
fn several_of_a_herd_die_only_after_one_did_not_help() {
    let mut all = growing_children(100, 8, 58, 58);
    all.push(process(60, 50, 64, 0));
    let scope = Scope { need_bytes: Some(100 * MIB), ..Scope::default() };
    let first = Scope { herds: Herds::OneFirst, ..scope };
    assert_eq!(dead(&choose(&first, &all, &[]).unwrap()), [108]);
    // A limit of a control group says what all of them may have.
    assert!(dead(&choose(&scope, &all, &[]).unwrap()).len() > 1);
    all[1].killed_kin = 1;
    assert_eq!(dead(&choose(&first, &all, &[]).unwrap()).len(), 8);
}

#[test]
fn a_process_whose_end_would_not_help_is_left_alone() {
    let other = |process: Process| Process { account: AccountId::User(Uid(7)), ..process };
    let (large, small) = (process(60, 1, 40, 0), other(process(70, 1, 1, 1)));
    let scope = |floor: u64, cover: u64| Scope {
        need_bytes: Some(cover * MIB),
        floor_bytes: floor * MIB,
        cover_bytes: cover * MIB,
        ..Scope::default()
    };
    let preferred = Process { preference: KillPreference::Prefer, ..small };
    let choice = choose(&scope(2, 30), &[large, preferred], &[]).unwrap();
    assert_eq!(choice.victim.id.pid, 60, "1 MiB is not worth a process");
    let cannot = |candidates, bytes| Err(NoVictim::CannotCover { candidates, bytes: bytes * MIB });
    assert_eq!(choose(&scope(2, 50), &[large, small], &[]), cannot(2, 41));
    assert_eq!(choose(&scope(2, 1), &[small], &[]), cannot(1, 1));
    assert!(choose(&scope(2, 41), &[large, small], &[]).is_ok(), "all of it covers the need");
    assert_eq!(choose(&scope(0, 42), &[large, small], &[]), cannot(2, 41));
    assert_eq!(choose(&scope(0, 30), &[], &[]), Err(NoVictim::NoProcess));
    // Many small processes are not exempt: of one family, or of a user that has no others.
    let family: Vec<Process> = (0..40).map(|n| of_group(80, process(80 + n, 1, 1, 0))).collect();
    assert!(choose(&scope(30, 30), &family, &[]).is_ok());
    let choice = choose(&scope(30, 30), &[&family[..], &[large]].concat(), &[]).unwrap();
    assert_eq!(choice.runner_up.map(|next| next.id.pid), Some(119), "a part of 40 MiB");
    let apart: Vec<Process> = (0..40).map(|n| other(process(80 + n, 1, 1, 0))).collect();
    assert!(choose(&scope(30, 30), &apart, &[]).is_ok());
    let one_large = [apart, vec![other(process(60, 1, 30, 0))]].concat();
    let choice = choose(&scope(30, 30), &one_large, &[]).unwrap();
    assert_eq!((choice.victim.id.pid, choice.runner_up), (60, None));
}

#[test]
fn memory_that_no_resident_set_contains_counts_for_its_process() {
    let culprit = Process { unmapped_bytes: 600 * MIB, ..process(70, 1, 1, 0) };
    let mut unrelated: Vec<Process> = (60..66).map(|pid| process(pid, 1, 20, 0)).collect();
    unrelated.push(process(66, 1, 125, 0));
    unrelated.push(process(50, 1, 0, 0));
    let all = [&unrelated[..], &[culprit]].concat();
    let shortage = Scope {
        need_bytes: Some(300 * MIB),
        herds: Herds::OneFirst,
        bombs: Bombs::AfterKills,
        floor_bytes: 4 * MIB,
        cover_bytes: 300 * MIB,
        ..Scope::default()
    };
    let choice = choose(&shortage, &all, &[]).unwrap();
    assert_eq!((dead(&choice), choice.cause), (vec![70], Cause::Largest));
    let unknown = choose(&shortage, &unrelated, &[]);
    assert!(matches!(unknown, Err(NoVictim::CannotCover { candidates: 7, .. })), "{unknown:?}");
}

#[test]
fn a_lease_protects_against_processes_of_the_same_user_only() {
    let holder = Process { within_lease: true, ..process(60, 1, 700, 0) };
    let other_user = |pid| Process { account: AccountId::User(Uid(7)), ..process(pid, 1, 150, 0) };
    let shortage = Scope { need_bytes: Some(MIB), floor_bytes: 10 * MIB, ..Scope::default() };
    let choice = choose(&shortage, &[holder, other_user(70), other_user(71)], &[]).unwrap();
    assert_eq!(choice.victim.id.pid, 60);
    // A process of the leaseholder's own user comes before it, if killing that helps.
    let (helps, tiny) = (process(61, 1, 50, 0), process(62, 1, 1, 0));
    let choice = choose(&shortage, &[holder, tiny, helps, other_user(70)], &[]).unwrap();
    assert_eq!(choice.victim.id.pid, 61);
    let choice = choose(&shortage, &[holder, tiny, other_user(70)], &[]).unwrap();
    assert_eq!(choice.victim.id.pid, 60);
    // For the limit of its user the leaseholder is selected last.
    let limit = Scope { account: Some(AccountId::User(Uid(USER))), ..Scope::default() };
    let choice = choose(&limit, &[holder, tiny, other_user(70)], &[]).unwrap();
    assert_eq!(choice.victim.id.pid, 62);
    let choice = choose(&limit, &[holder], &[]).unwrap();
    assert_eq!((choice.victim.id.pid, choice.cause), (60, Cause::LastResort));
}

#[test]
fn the_oldest_of_processes_that_share_memory_represents_all() {
    let sharing =
        |pid, grown| Process { address_space: AddressSpaceId(7), ..process(pid, 1, 100, grown) };
    let decoys = [sharing(60, 10), sharing(61, 100), sharing(62, 100)];
    let all = [&decoys[..], &[process(70, 1, 150, 100)]].concat();
    let choice = choose_among(&all, 10);
    assert_eq!((choice.victim.id.pid, choice.sharers), (70, 0), "they did not grow by 100 MiB");
    let choice = choose_among(&decoys, 10);
    assert_eq!((choice.victim.id.pid, choice.sharers, choice.runner_up), (60, 2, None));
    let never = Process { preference: KillPreference::Never, ..decoys[2] };
    assert!(choose(&Scope::default(), &[decoys[0], never], &[]).is_err());
}

#[test]
fn a_herd_above_a_limit_loses_one_member_at_a_time() {
    let mut all = growing_children(100, 8, 58, 58);
    all.push(process(60, 50, 64, 0));
    let scope = Scope { account: Some(AccountId::User(Uid(USER))), ..Scope::default() };
    let choice = choose(&scope, &all, &[]).unwrap();
    assert_eq!((dead(&choice), choice.runner_up.unwrap().id.pid), (vec![108], 107));
    assert!(matches!(choice.cause, Cause::Herd(_)));
}

#[test]
fn rules_have_precedence_over_size() {
    let with = |preference, process: Process| Process { preference, ..process };
    let large = process(60, 1, 900, 900);
    let preferred = with(KillPreference::Prefer, process(61, 1, 5, 0));
    let choice = choose_among(&[large, preferred], 10);
    assert_eq!((choice.victim.id.pid, choice.cause), (61, Cause::Preferred));

    let avoided = avoided(large);
    let choice = choose_among(&[avoided, process(62, 1, 5, 0)], 10);
    assert_eq!((choice.victim.id.pid, choice.cause), (62, Cause::Largest));
    let choice = choose_among(&[avoided], 10);
    assert_eq!((choice.victim.id.pid, choice.cause), (60, Cause::LastResort));

    let never = with(KillPreference::Never, large);
    let none_eligible = NoVictim::NoneEligible { considered: 1, protected: 1, dying: 0, empty: 0 };
    assert_eq!(choose(&Scope::default(), &[never], &[]), Err(none_eligible));
}

fn avoided(process: Process) -> Process {
    Process { preference: KillPreference::Avoid, ..process }
}

fn of_another_user(process: Process) -> Process {
    Process { account: AccountId::User(Uid(USER + 1)), uid: Uid(USER + 1), ..process }
}

#[test]
fn avoiding_a_process_does_not_shift_the_kill_to_another_user() {
    let large = avoided(process(60, 1, 900, 0));
    let small = process(61, 1, 5, 0);
    let other = of_another_user(process(62, 1, 100, 0));
    let choice = choose_among(&[large, small, other], 10);
    assert_eq!((choice.victim.id.pid, choice.runner_up.unwrap().id.pid), (61, 60));
    let choice = choose_among(&[large, other], 10);
    assert_eq!((choice.victim.id.pid, choice.cause), (60, Cause::LastResort));
    assert_eq!(choice.runner_up.unwrap().id.pid, 62);
    // Nor to a family of another user.
    let family = growing_children(100, 4, 20, 20).into_iter().map(of_another_user);
    let mut all: Vec<Process> = family.collect();
    all.push(avoided(process(60, 1, 9000, 0)));
    assert_eq!(dead(&choose_among(&all, 10)), [60]);
}

#[test]
fn a_users_family_is_killed_rather_than_its_avoided_process() {
    let mut all = growing_children(100, 4, 20, 20);
    all.push(avoided(process(60, 1, 9000, 0)));
    assert_eq!(dead(&choose_among(&all, 1000)), [101, 102, 103, 104]);
}

#[test]
fn users_of_a_group_are_spared_among_their_own_processes_only() {
    let group = Groups::new([("students".to_owned(), vec![Uid(USER), Uid(USER + 1)])]);
    let account = group.account_of(Uid(USER));
    let member = |process: Process| Process { account, ..process };
    let large = member(avoided(process(60, 1, 900, 0)));
    let other = member(of_another_user(process(62, 1, 100, 0)));
    let scope = Scope { account: Some(account), ..Scope::default() };
    assert_eq!(choose(&scope, &[large, other], &[]).unwrap().victim.id.pid, 60);
    let own = member(process(61, 1, 5, 0));
    assert_eq!(choose(&scope, &[large, other, own], &[]).unwrap().victim.id.pid, 61);
}

#[test]
fn a_process_spared_by_a_rule_does_not_die_with_its_herd() {
    let mut all = growing_children(100, 6, 50, 50);
    all[2].preference = KillPreference::Never;
    all[3].preference = KillPreference::Avoid;
    assert_eq!(dead(&choose_among(&all, 1000)), [101, 102, 105, 106]);
}

#[test]
fn preferences_of_owners_weigh_a_share_of_the_size() {
    let adjusted = |adj, process: Process| Process { oom_score_adj: adj, ..process };
    // The kernel would kill the small process: it adds 30 % of the machine's memory to its score.
    let all = [adjusted(300, process(60, 1, 79, 0)), process(61, 1, 900, 0)];
    assert_eq!(choose_among(&all, 10).victim.id.pid, 61);
    let all = [adjusted(300, process(60, 1, 79, 0)), process(61, 1, 90, 0)];
    assert_eq!(choose_among(&all, 10).victim.id.pid, 60);
    let all = [adjusted(-900, process(60, 1, 900, 0)), process(61, 1, 100, 0)];
    assert_eq!(choose_among(&all, 10).victim.id.pid, 61);
    let all = [adjusted(-1000, process(60, 1, 900, 0)), process(61, 1, 1, 0)];
    assert_eq!(choose_among(&all, 10).victim.id.pid, 61);
    assert!(choose(&Scope::default(), &all[..1], &[]).is_err());
}

fn any_process() -> impl Strategy<Value = Process> {
    let numbers = (1u32..60, 0u32..60, 0u32..8, 0u32..2, 0u64..300, 0u64..300);
    let kinds = (-1000i16..=1000, 0usize..8, prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    (numbers, kinds).prop_map(
        |((pid, parent, group, user, mib, grown), (adj, rule, leader, exiting))| {
            let preferences =
                [KillPreference::Never, KillPreference::Avoid, KillPreference::Prefer];
            Process {
                account: AccountId::User(Uid(USER + user)),
                group,
                session_leader: leader,
                exiting,
                oom_score_adj: adj,
                preference: preferences.get(rule).copied().unwrap_or_default(),
                ..process(pid, parent, mib, grown.min(mib))
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2048,
        failure_persistence: None,
        ..Default::default()
    })]
    #[test]
    fn victims_are_eligible_in_scope_and_distinct(
        mut processes in prop::collection::vec(any_process(), 0..50),
        only in prop::option::of(0u32..2),
        need in prop::option::of(0u64..2000),
        rotate in 0usize..50,
    ) {
        processes.sort_by_key(|p| p.id.pid);
        processes.dedup_by_key(|p| p.id.pid);
        let account = only.map(|user| AccountId::User(Uid(USER + user)));
        let passed_over: Vec<ProcessId> = processes.iter().map(|p| p.id).take(2).collect();
        let protected: Vec<u32> = processes.iter().map(|p| p.id.pid).skip(2).take(2).collect();
        let need_bytes = need.map(|need| need * MIB);
        let passed_over = &passed_over[..];
        let scope = Scope { account, passed_over, need_bytes, ..Scope::default() };
        let may = |p: &Process| {
            account.is_none_or(|account| account == p.account)
                && p.id.pid > 1
                && !p.exiting
                && p.charged_bytes() > 0
                && p.preference != KillPreference::Never
                && p.oom_score_adj > -1000
                && !passed_over.contains(&p.id)
                && !protected.contains(&p.id.pid)
        };
        let decision = choose(&scope, &processes, &protected);
        let Ok(choice) = &decision else {
            prop_assert!(!processes.iter().any(may), "a process could have been killed");
            return Ok(());
        };
        let all: Vec<&Process> = choice.victims().collect();
        prop_assert!(all.iter().all(|p| may(p)));
        let mut pids: Vec<u32> = all.iter().map(|p| p.id.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        prop_assert_eq!(pids.len(), all.len());
        let account = choice.victim.account;
        prop_assert!(all.iter().all(|p| p.account == account), "all victims are of one account");
        if let Some(next) = choice.runner_up {
            prop_assert!(may(&next) && !pids.contains(&next.id.pid));
        } else {
            prop_assert_eq!(processes.iter().filter(|p| may(p)).count(), all.len());
        }
        // Avoided processes are killed alone, and only when no others of their user are left.
        if choice.victim.preference == KillPreference::Avoid {
            let avoided = |p: &Process| p.preference == KillPreference::Avoid;
            let of_user = |p: &&Process| p.account == account && may(p);
            prop_assert!(processes.iter().filter(of_user).all(avoided));
            prop_assert!(choice.others.is_empty());
        }
        let middle = rotate % processes.len().max(1);
        processes.rotate_left(middle);
        let rotated = choose(&scope, &processes, &protected);
        prop_assert_eq!(rotated, decision, "the order does not matter");
    }
}

/// New workers would otherwise rank before it: each has all of its memory, and took it just now.
#[test]
fn under_a_limit_a_pool_loses_the_parent_that_grows_and_not_its_forks() {
    let fork = |n: u32| Process { is_copy: true, ..process(100 + n, 100, 400, 400) };
    let pool: Vec<Process> =
        std::iter::once(process(100, 50, 420, 20)).chain((1..=8).map(fork)).collect();
    let victim = |pool: &[Process], common_mib: u64| {
        let account = Some(pool[0].account);
        let scope = Scope { account, common_bytes: common_mib * MIB, ..Scope::default() };
        choose(&scope, pool, &[]).unwrap().victim.id.pid
    };
    assert_eq!(victim(&pool, 8 * 420), 100);
    assert_ne!(victim(&pool, 0), 100, "each has memory of its own, as far as is known");
    let account = AccountId::Group(GroupId::new(1).unwrap());
    let of_group: Vec<Process> = pool.iter().map(|it| Process { account, ..*it }).collect();
    assert_ne!(victim(&of_group, 8 * 420), 100, "another user's memory may be the common one");
}
