//! Limits of cgroups and login sessions: on the system's own hierarchy, and on one of plain files,
//! where the test sets the figures of the memory controller.

mod support;

use std::time::Duration;

use control::oomd::{
    AccountRef, KilledBy, Outcome, Reloaded, Reply, Request, Trigger, UserLimit, Why,
};
use headroom_oomd::config::{Config, Files};
use headroom_oomd::names::{Keep, Names};
use headroom_oomd::oom::reconfigure::{Lowering, reconfigure};
use headroom_oomd::oom::{OomManager, control as oom_control};
use memory_ledger::Uid;
use memory_watch::ProcPoller;
use reclaim::Reaper;
use support::cgroup::Cgroup;
use support::daemon::Daemon;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

fn limit_of(path: &str, mib: u64) -> String {
    format!("[[limit]]\ncgroup = \"{path}\"\nhard = \"{mib}M\"\n")
}

/// The limit of a cgroup as the daemon reports it.
fn limit(daemon: &Daemon, path: &str) -> Option<UserLimit> {
    match daemon.request(&Request::ListLimits) {
        Reply::Limits { limits } => {
            limits.into_iter().find(|it| it.cgroup.as_deref() == Some(path))
        }
        other => panic!("{other:?}"),
    }
}

fn limited(daemon: &Daemon, path: &str) -> UserLimit {
    eventually("the cgroup has its limit", || limit(daemon, path))
}

/// The first decision for this cgroup's limit, once its outcome is known.
fn ended(daemon: &Daemon, path: &str) -> Why {
    eventually("a kill has come to its end", || {
        let Reply::Why { records } = daemon.request(&Request::Why { last: 1000 }) else {
            return None;
        };
        let mut first = records.into_iter().rev();
        first.find(|why| why.cgroup.as_deref() == Some(path) && why.outcome != Outcome::Dying)
    })
}

fn reload(daemon: &Daemon, text: &str) -> Vec<String> {
    daemon.write_config("oomd.toml", &format!("{text}[machine]\nenabled = false\n"));
    match daemon.request(&Request::Reload) {
        Reply::Reloaded(Reloaded { changes, problems }) if problems.is_empty() => changes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_a_cgroup_above_its_limit_only_the_growing_process_dies() {
    if !privileged() {
        return;
    }
    for (uid, notifier) in [(Uid(62_751), "bpf"), (Uid(62_752), "proc")] {
        let Some(cgroup) = Cgroup::make(&format!("one-{notifier}")) else { return };
        let below = cgroup.below("below");
        let config = limit_of(&cgroup.path.replace("-one-", "-?ne-"), 96);
        let daemon = Daemon::start(&config, &[&format!("--notifier={notifier}")]);
        let [mut idle, mut hog, mut outside] = [uid; 3].map(Hog::start);
        cgroup.take(&idle);
        below.take(&hog);
        outside.grow(120 << 10);
        idle.grow(40 << 10);
        assert!(outside.survived() && idle.survived());
        let before = eventually("what is in the cgroup is counted", || {
            limit(&daemon, &cgroup.path).filter(|it| it.used_bytes > 40 * MIB)
        });
        assert!(before.used_bytes < 90 * MIB && before.hard_bytes == 96 * MIB, "{before:?}");
        hog.grow(90 << 10);
        hog.died();
        let why = ended(&daemon, &cgroup.path);
        assert_eq!(why.victim.as_ref().map(|it| (it.pid, it.uid)), Some((hog.pid(), Some(uid))));
        assert_eq!((why.account, why.trigger), (AccountRef::user(uid), Trigger::Timer));
        assert_eq!((why.killer, why.hard_bytes), (Some(KilledBy::Daemon), 96 * MIB));
        assert!(why.used_bytes > 96 * MIB && why.considered == 2, "{why:#?}");
        assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
        assert!(idle.is_alive() && outside.is_alive());
        // The next process can be killed as long as there is one left.
        idle.grow(90 << 10);
        idle.died();
        assert!(outside.is_alive());
        drop((idle, hog, outside, daemon, below));
    }
}

#[test]
fn a_users_own_limit_is_enforced_after_a_kill_for_its_cgroup() {
    if !privileged() {
        return;
    }
    let uid = Uid(62_753);
    let Some(cgroup) = Cgroup::make("both") else { return };
    let daemon = Daemon::start(&limit_of(&cgroup.path, 64), &["--notifier=bpf"]);
    daemon.set_limit(uid, 200 * MIB);
    let [mut inside, mut outside] = [uid; 2].map(Hog::start);
    cgroup.take(&inside);
    limited(&daemon, &cgroup.path);
    inside.grow(80 << 10);
    inside.died();
    let why = ended(&daemon, &cgroup.path);
    assert!(matches!(why.outcome, Outcome::Reclaimed { .. }), "{why:#?}");
    outside.grow(250 << 10);
    outside.died();
    let of_user = eventually("the second kill is on record", || {
        daemon.why(uid).into_iter().find(|why| why.cgroup.is_none())
    });
    assert_eq!(of_user.victim.map(|victim| victim.pid), Some(outside.pid()));
    drop((inside, outside));
}

#[test]
fn a_limit_that_the_configuration_drops_and_a_cgroup_that_is_removed_are_limited_no_more() {
    if !privileged() {
        return;
    }
    let uid = Uid(62_754);
    let Some(cgroup) = Cgroup::make("reload") else { return };
    let other = cgroup.below("other");
    let of_both = limit_of(&cgroup.path, 64) + &limit_of(&format!("{}/*", cgroup.path), 48);
    let daemon = Daemon::start(&of_both, &["--notifier=bpf"]);
    assert_eq!(limited(&daemon, &other.path).hard_bytes, 48 * MIB);
    let path = other.path.clone();
    drop(other);
    eventually("its account is closed", || limit(&daemon, &path).is_none().then_some(()));
    assert_eq!(daemon.status().limited_cgroups, 1);
    let changes = reload(&daemon, &limit_of(&cgroup.path, 128));
    assert_eq!(changes.len(), 2, "{changes:?}");
    let mut hog = Hog::start(uid);
    cgroup.take(&hog);
    hog.grow(80 << 10);
    assert!(hog.survived());
    eventually("it is above the limit before", || {
        limit(&daemon, &cgroup.path).filter(|it| it.used_bytes > 80 * MIB)
    });
    assert!(reload(&daemon, "").iter().all(|change| change.contains("no limit any more")));
    assert_eq!(limit(&daemon, &cgroup.path), None);
    assert!(hog.is_alive());
    // A limit that is exceeded already takes effect at once.
    reload(&daemon, &limit_of(&cgroup.path, 64));
    hog.died();
    drop(hog);
}

#[test]
fn a_cgroups_limit_is_read_only_at_run_time_and_only_root_can_explain_it() {
    if !privileged() {
        return;
    }
    let Some(cgroup) = Cgroup::make("root-only") else { return };
    let daemon = Daemon::start(&limit_of(&cgroup.path, 64), &["--notifier=bpf"]);
    let account = limited(&daemon, &cgroup.path).account;
    let set = Request::SetLimit { account, hard_bytes: 1 << 30, soft_bytes: None, grace_s: None };
    for request in [set, Request::ClearLimit { account, grace_s: None }] {
        match daemon.request(&request) {
            Reply::Error { message } => {
                assert!(message.contains("set them in oomd.toml"), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
    let explain = Request::Explain { account: Some(account) };
    match daemon.request(&explain) {
        Reply::Explained(found) => assert!(found.state.contains(&cgroup.path), "{found:?}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(daemon.request_as(Uid(62_755), &explain), Reply::Error { .. }));
    match daemon.request_as(Uid(62_755), &Request::ListLimits) {
        Reply::Limits { limits } => assert_eq!(limits, []),
        other => panic!("{other:?}"),
    }
    match daemon.request(&Request::RunOomKiller { account: Some(account) }) {
        Reply::OomKillerRan { kills } => assert_eq!(kills, []),
        other => panic!("{other:?}"),
    }
}

/// A hierarchy of plain files, and a manager that uses it.
struct Fake {
    dir: tempfile::TempDir,
    oom: OomManager,
}

impl Fake {
    fn new() -> Self {
        let watch = Box::new(ProcPoller::new().unwrap());
        let reaper = Reaper::start(1).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let builder = OomManager::builder(watch, reaper).ordinary_users(Uid(62_700)..=Uid(62_799));
        let oom = builder.cgroup_root(dir.path()).build().unwrap();
        Self { dir, oom }
    }

    /// Creates a cgroup with this charge in its memory controller, bytes, and these processes.
    fn set(&self, path: &str, anon: u64, pids: &[u32]) {
        let folder = self.dir.path().join(&path[1..]);
        std::fs::create_dir_all(&folder).unwrap();
        let pids: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        std::fs::write(folder.join("cgroup.procs"), pids).unwrap();
        // Replaced atomically, since the manager reads it meanwhile.
        std::fs::write(folder.join("new"), format!("anon {anon}\nshmem 0\nfile_mapped 0\n"))
            .unwrap();
        std::fs::rename(folder.join("new"), folder.join("memory.stat")).unwrap();
    }

    fn configure(&mut self, text: &str) {
        let files = tempfile::tempdir().unwrap();
        let main = files.path().join("oomd.toml");
        std::fs::write(&main, format!("{text}[machine]\nenabled = false\n")).unwrap();
        let files = Files { main, may_be_missing: false };
        let config =
            Config::load(&files, 16 << 30, &mut Names::start(None, Keep::Nothing).unwrap());
        let config = config.unwrap();
        let done = reconfigure(&mut self.oom, &config, Lowering::AtOnce);
        assert_eq!(done.problems, Vec::<String>::new());
    }

    /// Dispatches events until there is a result.
    fn work<T>(&mut self, what: &str, mut done: impl FnMut(&mut OomManager) -> Option<T>) -> T {
        eventually(what, || {
            self.oom.dispatch();
            done(&mut self.oom)
        })
    }

    fn latest(oom: &OomManager) -> Option<Why> {
        oom.records().latest(1, None).into_iter().next()
    }
}

#[test]
fn a_session_has_its_users_name_and_is_measured_by_the_controller() {
    if !privileged() {
        return;
    }
    let uid = Uid(62_756);
    let mut fake = Fake::new();
    let session = format!("/user.slice/user-{uid}.slice/session-7.scope");
    let (mut hog, mut small) = (Hog::start(uid), Hog::start(uid));
    hog.grow(40 << 10);
    small.grow(8 << 10);
    assert!(hog.survived() && small.survived());
    fake.set(&session, 3 << 30, &[small.pid(), hog.pid()]);
    fake.set("/user.slice/user-0.slice/session-1.scope", 9 << 30, &[]);
    fake.set(&format!("/user.slice/user-{uid}.slice/user@{uid}.service"), 9 << 30, &[]);
    fake.configure("[[limit]]\nsession = \"*\"\nhard = \"4G\"\n");
    let seen = oom_control::cgroup_limits(&mut fake.oom, Some(uid));
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((seen[0].used_bytes, seen[0].cgroup.as_deref()), (3 << 30, Some(&session[..])));
    assert_eq!(
        oom_control::cgroup_limits(&mut fake.oom, None).len(),
        1,
        "root's session is not an ordinary user's"
    );
    assert!(oom_control::cgroup_limits(&mut fake.oom, Some(Uid(62_757))).is_empty());
    assert!(oom_control::status(&fake.oom, &[]).degraded.is_empty());
    assert!(hog.is_alive() && Fake::latest(&fake.oom).is_none());
    fake.set(&session, (4 << 30) + 4096, &[small.pid(), hog.pid()]);
    let why = fake.work("a victim is killed", |oom| Fake::latest(oom));
    // The memory controller no longer charges the victim's memory.
    fake.set(&session, 1 << 30, &[small.pid()]);
    hog.died();
    assert_eq!(why.victim.map(|victim| victim.pid), Some(hog.pid()));
    assert_eq!((why.cgroup.as_deref(), why.account), (Some(&session[..]), AccountRef::user(uid)));
    assert_eq!((why.used_bytes, why.hard_bytes), ((4 << 30) + 4096, 4 << 30));
    let outcome = fake.work("its memory is back", |oom| {
        let why = Fake::latest(oom)?;
        (why.outcome != Outcome::Dying).then_some(why.outcome)
    });
    let Outcome::Reclaimed { bytes_back, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(bytes_back, (3 << 30) + 4096, "by the controller's account");
    assert!(small.is_alive());
}

#[test]
fn a_cgroup_without_a_victim_is_reported_once() {
    if !privileged() {
        return;
    }
    let mut fake = Fake::new();
    fake.set("/a", 1 << 30, &[]);
    fake.configure("[[limit]]\ncgroup = \"/a\"\nhard = \"512M\"\n");
    let why = fake.work("it is on record", |oom| Fake::latest(oom));
    assert!(matches!(why.outcome, Outcome::NoVictim { .. }), "{why:#?}");
    assert_eq!((why.cgroup.as_deref(), why.victim), (Some("/a"), None));
    let end = std::time::Instant::now() + Duration::from_millis(200);
    fake.work("many looks are over", |_| (std::time::Instant::now() > end).then_some(()));
    assert_eq!(fake.oom.records().latest(9, None).len(), 1);
}

#[test]
fn a_process_that_is_dying_already_is_enough_for_the_cgroup_above() {
    if !privileged() {
        return;
    }
    let uid = Uid(62_757);
    let mut fake = Fake::new();
    let [mut first, mut second] = [uid; 2].map(Hog::start);
    first.grow(40 << 10);
    second.grow(30 << 10);
    assert!(first.survived() && second.survived());
    let pids = [first.pid(), second.pid()];
    // Both limits are exceeded. While the victim of one is exiting, the other waits.
    fake.set("/a", 1 << 30, &[]);
    fake.set("/a/b", 1 << 30, &pids);
    let both = "[[limit]]\ncgroup = \"/a\"\nhard = \"512M\"\n[[limit]]\ncgroup = \"/a/b\"\nhard = \
                \"256M\"\n";
    fake.configure(both);
    let why = fake.work("a victim is killed", |oom| Fake::latest(oom));
    fake.set("/a", 100 << 20, &[]);
    fake.set("/a/b", 100 << 20, &pids[1..]);
    assert_eq!(why.victim.map(|victim| victim.pid), Some(first.pid()));
    first.died();
    fake.work("its memory is back", |oom| {
        (Fake::latest(oom)?.outcome != Outcome::Dying).then_some(())
    });
    assert_eq!(fake.oom.records().latest(9, None).len(), 1);
    assert!(second.is_alive());
}

#[test]
fn the_record_of_a_victim_outlives_the_limit_of_its_cgroup() {
    if !privileged() {
        return;
    }
    let mut fake = Fake::new();
    let mut hog = Hog::start(Uid(62_758));
    hog.grow(40 << 10);
    assert!(hog.survived());
    fake.set("/a", 1 << 30, &[hog.pid()]);
    fake.configure("[[limit]]\ncgroup = \"/a\"\nhard = \"512M\"\n");
    let why = fake.work("the hog is killed", |oom| Fake::latest(oom));
    assert_eq!(why.victim.map(|victim| victim.pid), Some(hog.pid()));
    fake.configure("");
    hog.died();
    fake.work("the record is closed", |oom| {
        matches!(Fake::latest(oom)?.outcome, Outcome::Reclaimed { .. }).then_some(())
    });
}
