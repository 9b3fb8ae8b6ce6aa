//! Users and groups of a directory that is up, slow, down or has lost a user.

mod support;

use std::time::{Duration, Instant};

use control::Uid;
use control::oomd::{AccountRef, Reply, Request, UserLimit};
use support::daemon::Daemon;
use support::directory::Directory;
use support::hog::Hog;
use support::{MIB, eventually, privileged};

/// Longest wait for an answer: a look-up that hangs counts as failed after ten seconds, and is
/// tried again after some more.
const PATIENCE: Duration = Duration::from_secs(120);
const QUIET: &str = "[machine]\nenabled = false\n";

fn of_user(user: &str, mib: u64) -> String {
    format!("[[limit]]\nuser = \"{user}\"\nhard = \"{mib}M\"\n")
}

fn start(config: &str, directory: &Directory) -> Daemon {
    Daemon::start_prepared(config, &[], directory.prepare())
}

fn reload(daemon: &Daemon, text: &str) {
    daemon.write_config("oomd.toml", &format!("{text}{QUIET}"));
    let reply = daemon.request(&Request::Reload);
    assert!(matches!(reply, Reply::Reloaded(_)), "{reply:?}");
}

fn hard_mib(daemon: &Daemon, uid: Uid) -> Option<u64> {
    daemon.limit(uid).map(|limit| limit.hard_bytes / MIB)
}

fn wait_for<T>(what: &str, daemon: &Daemon, mut poll: impl FnMut(&Daemon) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(result) = poll(daemon) {
            return result;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: {:?}", daemon.status().degraded);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the status has a row with this text.
fn wait_for_row(daemon: &Daemon, text: &str) {
    wait_for(text, daemon, |daemon| {
        daemon.status().degraded.iter().any(|row| row.contains(text)).then_some(())
    });
}

fn students(daemon: &Daemon) -> Option<UserLimit> {
    let Reply::Limits { limits } = daemon.request(&Request::ListLimits) else { panic!() };
    limits.into_iter().find(|limit| limit.group.as_deref() == Some("nsstudents"))
}

#[test]
fn a_daemon_starts_without_the_directory_and_uses_it_once_it_is_back() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(62_900));
    directory.set("down");
    let numeric = directory.uid(1);
    let text = of_user("u00", 40) + &of_user(&numeric.to_string(), 100);
    let daemon = start(&text, &directory);
    assert_eq!(hard_mib(&daemon, numeric), Some(100));
    wait_for_row(&daemon, "the user database does not answer for user \"u00\"");
    assert_eq!(hard_mib(&daemon, directory.uid(0)), None);
    directory.set("up");
    wait_for("the name is known", &daemon, |daemon| hard_mib(daemon, directory.uid(0)));
    assert_eq!(daemon.status().degraded.iter().filter(|row| row.contains("u00")).count(), 0);
    let mut hog = Hog::start(directory.uid(0));
    hog.grow(60 << 10);
    hog.died();
}

#[test]
fn limits_by_number_are_enforced_while_a_directory_hangs() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(62_910));
    let daemon = start("", &directory);
    directory.set("slow 600");
    let numeric = directory.uid(1);
    reload(&daemon, &(of_user("u00", 40) + &of_user(&numeric.to_string(), 48)));
    assert_eq!(hard_mib(&daemon, numeric), Some(48), "in force when the reload is answered");
    let mut hog = Hog::start(numeric);
    hog.grow(80 << 10);
    hog.died();
    assert_eq!(hard_mib(&daemon, directory.uid(0)), None);
    wait_for_row(&daemon, "no answer within 10s");
    // The look-up that hangs does not prevent the next one.
    directory.set("up");
    wait_for("the name is known", &daemon, |daemon| hard_mib(daemon, directory.uid(0)));
}

#[test]
fn two_hundred_slow_names_delay_no_other_limit() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(62_920));
    let daemon = start("", &directory);
    directory.set("slow 3");
    let numeric = directory.uid(1);
    let names: String = (0..200).map(|number| of_user(&format!("name{number}"), 40)).collect();
    reload(&daemon, &(names + &of_user(&numeric.to_string(), 48)));
    assert_eq!(hard_mib(&daemon, numeric), Some(48));
    let mut hog = Hog::start(numeric);
    hog.grow(80 << 10);
    hog.died();
    let rows = daemon.status().degraded;
    let unknown = rows.iter().filter(|row| row.contains("the limit does not apply: ")).count();
    assert_eq!(unknown, 200, "{rows:?}");
    assert!(directory.questions().len() < 200, "it waits for a few at a time");
}

#[test]
fn members_are_found_by_their_own_groups_and_share_one_limit() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(62_930));
    let text = "[[limit]]\ngroup = \"nsstudents\"\nhard = \"96M\"\n";
    let daemon = start(text, &directory);
    wait_for_row(&daemon, "group \"nsstudents\" has no known member");
    let (mut first, mut second) = (Hog::start(directory.uid(2)), Hog::start(directory.uid(3)));
    first.grow(40 << 10);
    assert!(first.survived());
    let members = [2, 3].map(|number| directory.uid(number));
    wait_for("both are members", &daemon, |daemon| {
        students(daemon).filter(|limit| limit.members == members)
    });
    let rows = daemon.status().degraded;
    assert!(!rows.iter().any(|row| row.contains("no known member")), "{rows:?}");
    let usage = wait_for("the memory of each member is shown", &daemon, |daemon| {
        let usage = students(daemon)?.details.member_usage;
        (usage.len() == 2 && usage[0].used_bytes > 40 * MIB).then_some(usage)
    });
    assert_eq!(usage[0].uid, members[0], "{usage:?}");
    second.grow(90 << 10);
    second.died();
    assert!(first.is_alive());
    // Down later: the members stay.
    directory.set("down");
    reload(&daemon, text);
    wait_for_row(&daemon, "the user database does not answer for ");
    assert_eq!(students(&daemon).unwrap().members, members);
}

#[test]
fn the_last_answers_hold_after_a_restart_without_the_directory() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(62_940));
    let kept = format!("--state-dir={}", directory.state_folder().display());
    let text = of_user("u00", 40)
        + "[[limit]]\neach = \"@nsstudents\"\nhard = \"64M\"\n\
           [[limit]]\nuser = \"u02\"\nhard = \"none\"\n";
    let mut daemon = Daemon::start_prepared(&text, &[&kept], directory.prepare());
    let (_first, _second) = (Hog::start(directory.uid(1)), Hog::start(directory.uid(2)));
    let all = |daemon: &Daemon| {
        let of = |number| hard_mib(daemon, directory.uid(number));
        Some((of(0)?, of(1)?, daemon.limit(directory.uid(2))?.details.exempt))
    };
    let known = |daemon: &Daemon| all(daemon).filter(|known| *known == (40, 64, true));
    wait_for("all names are known", &daemon, known);
    wait_for("the answers are kept", &daemon, |_| {
        let text = std::fs::read_to_string(directory.state_folder().join("names")).ok()?;
        let has = |part: &str| text.contains(part).then_some(());
        has("user\t")?;
        has("group\t")?;
        has(&format!("\t{}\n", directory.uid(1)))
    });
    daemon.stop();
    directory.set("down");
    daemon.start_again(&text);
    wait_for("the last answers hold", &daemon, known);
}

#[test]
fn a_deleted_user_ends_its_own_limit_only() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(62_960));
    let text = of_user("u03", 40) + &of_user("u04", 50);
    let mut daemon = start(&text, &directory);
    let both = |daemon: &Daemon| {
        Some((hard_mib(daemon, directory.uid(3))?, hard_mib(daemon, directory.uid(4))?))
    };
    assert_eq!(wait_for("both are known", &daemon, both), (40, 50));
    directory.set("deleted 3");
    reload(&daemon, &text);
    wait_for_row(&daemon, "the limit does not apply: there is no user \"u03\"");
    assert_eq!(
        (hard_mib(&daemon, directory.uid(3)), hard_mib(&daemon, directory.uid(4))),
        (None, Some(50))
    );
    daemon.stop();
    daemon.start_again(&text);
    wait_for_row(&daemon, "there is no user \"u03\"");
    wait_for("the other user is known", &daemon, |daemon| hard_mib(daemon, directory.uid(4)));
}

/// The table in docs/configuration.md. The users of the directory are above `UID_MAX`.
#[test]
fn the_four_cases_of_the_documentation_apply() {
    if !privileged() {
        return;
    }
    let directory = Directory::new(Uid(1_682_401_100));
    let text = "[[limit]]\nuser = \"*\"\nhard = \"64M\"\n\
                [[limit]]\nuser = \"u01\"\nhard = \"160M\"\n\
                [[limit]]\nuser = \"u02\"\nhard = \"none\"\n";
    let login_defs = directory.state_folder().join("login.defs");
    std::fs::write(&login_defs, "UID_MIN 62970\nUID_MAX 62971\n").unwrap();
    let login_defs = format!("--login-defs={}", login_defs.display());
    let daemon = Daemon::start_prepared(text, &[&login_defs], directory.prepare());
    let get = |uid: Uid| {
        let reply = daemon.request(&Request::GetLimit { account: AccountRef::user(uid) });
        let Reply::Limits { limits } = reply else { panic!("{reply:?}") };
        limits.into_iter().next()
    };
    let before = get(directory.uid(0)).expect("the default, before the first process");
    assert_eq!((before.hard_bytes, before.source.as_str()), (64 * MIB, "default"));
    assert_eq!(get(Uid(62_999)).map(|limit| limit.source), None, "not an ordinary user");
    wait_for("the names are known", &daemon, |daemon| {
        daemon.limit(directory.uid(2))?;
        hard_mib(daemon, directory.uid(1)).filter(|mib| *mib == 160)
    });
    let mut hogs = [0, 1, 2].map(|number| Hog::start(directory.uid(number)));
    wait_for("everybody is limited", &daemon, |daemon| daemon.limit(directory.uid(0)));
    for hog in &mut hogs {
        hog.grow(90 << 10);
    }
    hogs[0].died();
    assert!(hogs[1].survived() && hogs[2].survived());
    for hog in &mut hogs[1..] {
        hog.grow(90 << 10);
    }
    hogs[1].died();
    assert!(hogs[2].survived(), "it is exempt");
    // A group, each member by itself; and the same members together.
    let each = "[[limit]]\neach = \"@nsstudents\"\nhard = \"48M\"\n";
    reload(&daemon, &format!("grace-s = 0\n{each}{}", of_user("u02", 400)));
    let mut member = Hog::start(directory.uid(4));
    wait_for("a member has the limit of each", &daemon, |daemon| {
        hard_mib(daemon, directory.uid(4)).filter(|mib| *mib == 48)
    });
    assert_eq!(hard_mib(&daemon, directory.uid(2)), Some(400), "one person before the group");
    let reply = daemon.request(&Request::DefaultLimits);
    let Reply::DefaultLimits { limits } = reply else { panic!("{reply:?}") };
    assert_eq!(limits[0].user, "each of @nsstudents");
    member.grow(80 << 10);
    member.died();
    eventually("its kill is on record", || daemon.why(directory.uid(4)).pop());
}
