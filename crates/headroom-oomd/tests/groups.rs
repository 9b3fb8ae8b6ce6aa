//! Users that share a limit, tested with the shipped binary.

mod support;

use std::process::Command;

use control::Uid;
use control::configuration::Configuration;
use control::oomd::{AccountRef, KilledBy, Outcome, Reloaded, Reply, Request, UserLimit, Why};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use support::daemon::{Daemon, command};
use support::hog::Hog;
use support::leaser::Leaser;
use support::{MIB, eventually, privileged};

/// Alice, bob, and carol, of which carol is in no group. No two tests share users.
fn users(test: u32) -> [Uid; 3] {
    [0, 1, 2].map(|user| Uid(62_600 + test * 3 + user))
}

fn students(uids: &[Uid], mib: u64) -> String {
    let uids = Vec::from_iter(uids.iter().map(Uid::to_string)).join(", ");
    format!("[[limit]]\nname = \"students\"\nusers = [{uids}]\nhard = \"{mib}M\"\n")
}

fn limits(reply: Reply) -> Vec<UserLimit> {
    match reply {
        Reply::Limits { limits } => limits,
        other => panic!("{other:?}"),
    }
}

/// The limit of the group's account.
fn group(daemon: &Daemon) -> Option<UserLimit> {
    let limits = limits(daemon.request(&Request::ListLimits));
    limits.into_iter().find(|limit| limit.group.as_deref() == Some("students"))
}

fn reload(daemon: &Daemon, text: &str) -> Vec<String> {
    daemon.write_config("oomd.toml", &format!("{text}[machine]\nenabled = false\n"));
    match daemon.request(&Request::Reload) {
        Reply::Reloaded(Reloaded { changes, problems }) if problems.is_empty() => changes,
        other => panic!("{other:?}"),
    }
}

/// The first decision about the group, once its victim's memory is back.
fn ended(daemon: &Daemon) -> Why {
    daemon.ended_account(group(daemon).unwrap().account)
}

#[test]
fn the_growing_process_of_a_shared_limit_dies_and_the_record_names_its_user() {
    if !privileged() {
        return;
    }
    for (test, notifier) in [(0, "bpf"), (1, "proc")] {
        let [alice, bob, carol] = users(test);
        let config = students(&[alice, bob], 96);
        let daemon = Daemon::start(&config, &[&format!("--notifier={notifier}")]);
        let [mut first, mut second, mut other] = [alice, bob, carol].map(Hog::start);
        first.grow(40 << 10);
        other.grow(120 << 10);
        assert!(first.survived() && other.survived());
        eventually("alice's memory is charged", || {
            (group(&daemon).unwrap().used_bytes > 40 * MIB).then_some(())
        });
        second.grow(90 << 10);
        second.died();
        assert!(first.is_alive() && other.is_alive());
        let why = ended(&daemon);
        assert_eq!(why.group.as_deref(), Some("students"));
        let victim = why.victim.as_ref().unwrap();
        assert_eq!((victim.pid, victim.uid), (second.pid(), Some(bob)), "{why:#?}");
        assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
        assert!(why.used_bytes > 96 * MIB && why.considered >= 1);
        // The kill is settled when half of the victim's memory is back, so the rest may follow.
        let limit = eventually("only alice's memory is charged", || {
            group(&daemon).filter(|it| it.used_bytes > 40 * MIB && it.used_bytes < 60 * MIB)
        });
        assert_eq!((limit.members, limit.hard_bytes), (vec![alice, bob], 96 * MIB));
        // The next process can be killed as long as there is one left.
        first.grow(90 << 10);
        first.died();
        eventually("the second kill is on record", || {
            (daemon.why_account(limit.account).len() == 2).then_some(())
        });
    }
}

#[test]
fn a_daemon_that_is_stopped_leaves_a_group_its_last_defence() {
    if !privileged() {
        return;
    }
    let [alice, bob, _] = users(2);
    let daemon = Daemon::start(&students(&[alice, bob], 96), &["--notifier=bpf"]);
    let (mut idle, mut hog) = (Hog::start(alice), Hog::start(bob));
    idle.grow(30 << 10);
    assert!(idle.survived());
    let pid = Pid::from_raw(daemon.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    hog.grow(90 << 10);
    hog.died();
    kill_process(pid, Signal::CONT).unwrap();
    let why = ended(&daemon);
    assert_eq!((why.killer, why.victim.unwrap().uid), (Some(KilledBy::Kernel), Some(bob)));
    assert!(idle.is_alive());
}

#[test]
fn a_member_sees_the_groups_limit_and_only_root_changes_it() {
    if !privileged() {
        return;
    }
    let [alice, bob, carol] = users(3);
    let daemon = Daemon::start(&students(&[alice, bob], 100), &[]);
    let account = group(&daemon).unwrap().account;
    let seen = limits(daemon.request_as(alice, &Request::ListLimits));
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].group.as_deref(), Some("students"));
    assert_eq!(limits(daemon.request_as(carol, &Request::ListLimits)), []);
    let set = |account| Request::SetLimit {
        account,
        hard_bytes: 50 * MIB,
        soft_bytes: None,
        grace_s: None,
    };
    let refused = |reply: Reply, part: &str| {
        let Reply::Error { message } = reply else { panic!("{reply:?}") };
        assert!(message.contains(part), "{message}");
    };
    let shares = "shares the limit of the group \"students\"";
    let of_alice = AccountRef::user(alice);
    refused(daemon.request_as(alice, &set(of_alice)), shares);
    refused(daemon.request(&set(of_alice)), shares);
    refused(
        daemon.request(&Request::ClearLimit { account: AccountRef::user(bob), grace_s: None }),
        shares,
    );
    refused(daemon.request_as(alice, &set(account)), "by root only");
    let other = AccountRef { uid: account.uid ^ 1, ..account };
    refused(daemon.request(&set(other)), "no group with this name");
    refused(daemon.request(&set(AccountRef::user(Uid(account.uid)))), "are cgroups and groups");
    let explain = |uid| Request::Explain { account: Some(AccountRef::user(uid)) };
    assert!(matches!(daemon.request_as(alice, &explain(bob)), Reply::Explained(_)));
    refused(daemon.request_as(carol, &explain(bob)), "may not see the processes");
    assert_eq!(daemon.request(&set(account)), Reply::Done);
    assert_eq!(group(&daemon).unwrap().hard_bytes, 50 * MIB);
    // One kill, which both members can see, and no other user.
    let mut hog = Hog::start(bob);
    hog.grow(90 << 10);
    hog.died();
    ended(&daemon);
    let why = Request::Why { last: 9 };
    for (uid, count) in [(alice, 1), (bob, 1), (carol, 0)] {
        let Reply::Why { records } = daemon.request_as(uid, &why) else { panic!("uid {uid}") };
        assert_eq!(records.len(), count, "uid {uid}");
    }
}

#[test]
fn users_that_join_and_leave_by_a_reload_are_charged_to_the_new_account() {
    if !privileged() {
        return;
    }
    let [alice, bob, carol] = users(4);
    let daemon = Daemon::start(&students(&[alice, bob], 100), &["--notifier=bpf"]);
    let mut hogs = [alice, bob, carol].map(Hog::start);
    for hog in &mut hogs {
        hog.grow(20 << 10);
        assert!(hog.survived());
    }
    daemon.set_limit(carol, 60 * MIB);
    let used = || group(&daemon).unwrap().used_bytes / MIB;
    assert!((40..60).contains(&used()), "{}", used());
    let changes = reload(&daemon, &students(&[alice, bob, carol], 100));
    assert!(
        changes.contains(&format!("uid {carol}: shares the limit of @students")),
        "{changes:?}"
    );
    assert!(changes.contains(&"@students: 3 users".to_owned()), "{changes:?}");
    assert!(daemon.limit(carol).is_none());
    assert!((60..90).contains(&used()), "{}", used());
    let alone = format!("[[limit]]\nuser = {alice}\nhard = \"60M\"\n");
    reload(&daemon, &(students(&[carol], 100) + &alone));
    assert!((20..30).contains(&used()), "{}", used());
    assert!((20..30).contains(&(daemon.limit(alice).unwrap().used_bytes / MIB)));
    assert_eq!(
        reload(&daemon, ""),
        [format!("uid {alice}: no limit any more"), "@students: no limit any more".to_owned()]
    );
    assert_eq!(limits(daemon.request(&Request::ListLimits)), []);
    assert!(hogs.iter_mut().all(Hog::is_alive));
}

#[test]
fn memory_reserved_for_one_member_is_not_reserved_for_another() {
    if !privileged() {
        return;
    }
    let [alice, bob, _] = users(5);
    let daemon = Daemon::start(&students(&[alice, bob], 64), &[]);
    let [mut holder, mut other] =
        [alice, bob].map(|uid| Leaser::start(uid, &daemon.lease_socket()));
    assert_eq!(holder.request(&format!("allocate {}", 40 * MIB)), 1);
    assert!(group(&daemon).unwrap().leased_bytes >= 40 * MIB);
    assert_eq!(other.request(&format!("allocate {}", 30 * MIB)), 0, "it is alice's");
    assert_eq!(holder.request("touch 0"), 1);
    // Without the group, each user has a limit of its own.
    let alone = |uid| format!("[[limit]]\nuser = {uid}\nhard = \"64M\"\n");
    reload(&daemon, &(alone(alice) + &alone(bob)));
    assert_eq!(other.request(&format!("allocate {}", 30 * MIB)), 1);
    assert!(holder.is_alive() && other.is_alive());
    assert_eq!(daemon.limit(alice).unwrap().leaseholders, 1);
}

/// A BPF filesystem for this test, unmounted on drop.
struct BpfFilesystem(tempfile::TempDir);

impl Drop for BpfFilesystem {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_group_outlives_a_daemon_that_is_killed_and_its_users_may_have_changed() {
    if !privileged() {
        return;
    }
    let [alice, bob, carol] = users(6);
    let bpffs = BpfFilesystem(tempfile::tempdir().unwrap());
    if let Err(errno) = mount("bpf", bpffs.0.path(), "bpf", MountFlags::empty(), None) {
        test_support::skip(format_args!("cannot mount a BPF filesystem: {errno}"));
        return;
    }
    let pins = format!("--bpf-pin-dir={}", bpffs.0.path().join("headroom").display());
    let mut daemon = Daemon::start(&students(&[alice, bob], 96), &["--notifier=bpf", &pins]);
    let account = group(&daemon).unwrap().account;
    let mut idle = Hog::start(alice);
    idle.grow(30 << 10);
    assert!(idle.survived());
    daemon.die();
    // No daemon is running: the kernel program enforces the limit.
    let mut hog = Hog::start(bob);
    hog.grow(90 << 10);
    hog.died();
    daemon.start_again(&students(&[alice, carol], 96));
    let limit = group(&daemon).unwrap();
    assert_eq!((limit.account, limit.members), (account, vec![alice, carol]));
    assert!((30..50).contains(&(limit.used_bytes / MIB)), "{}", limit.used_bytes);
    let mut free = Hog::start(bob);
    free.grow(120 << 10);
    assert!(free.survived(), "bob has left the group");
    let mut hog = Hog::start(carol);
    hog.grow(90 << 10);
    hog.died();
    assert!(idle.is_alive());
    let last = eventually("it is on record", || daemon.why_account(account).pop());
    assert_eq!(last.victim.unwrap().uid, Some(carol));
}

#[test]
fn a_system_group_has_its_listed_and_its_primary_members() {
    if !privileged() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let passwd = "root:x:0:0::/:/bin/sh\nann:x:5001:700::/:/bin/sh\nben:x:5002:100::/:/bin/sh\n\
                  cid:x:5003:100::/:/bin/sh\n";
    std::fs::write(dir.path().join("passwd"), passwd).unwrap();
    std::fs::write(dir.path().join("group"), "staff:x:700:ben,root,ghost\n").unwrap();
    let mut shipped = command(dir.path(), "[[limit]]\ngroup = \"staff\"\nhard = \"1G\"\n");
    shipped.arg("--check-config");
    // Replaces the system's user and group files for this one program.
    let script = "cd \"$0\" && mount --bind passwd /etc/passwd && mount --bind group /etc/group && \
                  exec \"$@\"";
    let mut unshared = Command::new("unshare");
    unshared.args(["--mount", "sh", "-c", script]).arg(dir.path());
    unshared.arg(shipped.get_program()).args(shipped.get_args());
    let output = unshared.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("unshare failed") || stderr.contains("permission denied") {
        test_support::skip(stderr);
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let found: Configuration = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (found.limits[0].user.as_str(), &found.limits[0].members[..]),
        ("@staff", &[Uid(5001), Uid(5002)][..])
    );
}

#[test]
fn uncounted_memory_kills_no_process_and_a_reload_changes_the_kinds() {
    if !privileged() {
        return;
    }
    for (test, notifier) in [(7, "bpf"), (8, "proc")] {
        let [alice, ..] = users(test);
        let limit = |more: &str| format!("[[limit]]\nuser = {alice}\nhard = \"64M\"\n{more}\n");
        let files = limit("account = [\"file\"]");
        let daemon = Daemon::start(&files, &[&format!("--notifier={notifier}")]);
        let mut hog = Hog::start(alice);
        hog.grow(90 << 10);
        assert!(hog.survived(), "anonymous memory does not count");
        let before = daemon.limit(alice).unwrap();
        assert_eq!(before.counts, ["file"]);
        assert!(before.used_bytes < 60 * MIB, "{before:?}");
        assert_eq!(daemon.why(alice), []);
        let changes = reload(&daemon, &limit("account = [\"anon\"]"));
        assert_eq!(changes, [format!("uid {alice}: limit 64.0 MiB of anon")]);
        hog.died();
        let why = daemon.ended(alice);
        assert!(why.used_bytes >= 90 * MIB, "{why:#?}");
        assert!(why.victim.unwrap().rss_bytes >= 90 * MIB);
    }
}
