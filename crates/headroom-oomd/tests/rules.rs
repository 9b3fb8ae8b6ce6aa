//! Rules of the configuration determine the victim.

mod support;

use std::sync::{Mutex, Weak};

use control::Uid;
use control::oomd::Request;
use support::daemon::Daemon;
use support::helper::Program;
use support::hog::Hog;
use support::{MIB, privileged};

/// Two processes named `hog-1` and `hog-2` allocate these amounts (KiB); then the second one
/// exceeds the limit of 128 MiB. Returns the index of the victim, and the rule on record.
fn who_dies(uid: Uid, rules: &str, kib: [u64; 2]) -> (usize, String) {
    let daemon = Daemon::start(rules, &[]);
    daemon.set_limit(uid, 128 * MIB);
    let mut hogs = [Hog::start(uid), Hog::start(uid)];
    for (number, hog) in (1..).zip(&mut hogs) {
        hog.name(number);
        hog.grow(kib[number as usize - 1]);
        assert!(hog.survived());
    }
    hogs[1].grow(130 << 10);
    let why = daemon.ended(uid);
    let victim = why.victim.unwrap().pid;
    let at = hogs.iter().position(|hog| hog.pid() == victim).unwrap();
    hogs[at].died();
    (at, why.rule)
}

#[test]
fn a_preferred_process_dies_though_another_one_broke_the_limit() {
    if !privileged() {
        return;
    }
    let rules = "[[rule]]\nkill = \"prefer\"\nname = \"hog-1\"\n";
    let (victim, rule) = who_dies(Uid(62120), rules, [60 << 10, 20 << 10]);
    assert_eq!((victim, rule.as_str()), (0, "a rule prefers it as a victim"));
}

#[test]
fn a_process_that_is_to_be_avoided_lives_while_another_one_can_die() {
    if !privileged() {
        return;
    }
    let rules = "[[rule]]\nkill = \"avoid\"\nname-regex = \"2$\"\n";
    let (victim, _) = who_dies(Uid(62121), rules, [40 << 10, 60 << 10]);
    assert_eq!(victim, 0);
}

#[test]
fn a_program_that_is_never_killed_breaks_its_limit_and_another_rule_comes_too_late() {
    if !privileged() {
        return;
    }
    const UID: Uid = Uid(62122);
    let rules = format!(
        "[[rule]]\nkill = \"never\"\nuser = {UID}\nexe = \"*/hog\"\n[[rule]]\nkill = \
         \"prefer\"\nname = \"hog*\"\n"
    );
    let daemon = Daemon::start(&rules, &[]);
    daemon.set_limit(UID, 64 * MIB);
    let mut hog = Hog::start(UID);
    hog.grow(80 << 10);
    assert!(hog.survived());
    support::eventually("the daemon reports that there is no victim", || {
        daemon.log().into_iter().find(|line| line.contains("1 protected"))
    });
    assert_eq!(daemon.status().kills, 0);
    assert!(hog.is_alive());
}

#[test]
fn a_program_that_a_package_upgrade_has_replaced_keeps_its_rule() {
    if !privileged() {
        return;
    }
    const UID: Uid = Uid(62123);
    static PROGRAM: Mutex<Weak<Program>> = Mutex::new(Weak::new());
    let program = Program::shared(&PROGRAM, test_support::programs::memory_hog(), "kept");
    let rule = format!("[[rule]]\nkill = \"never\"\nexe = \"{}\"\n", program.path.display());
    let mut running = program.start(UID, &[]);
    let new = program.path.with_extension("new");
    std::fs::copy("/bin/true", &new).unwrap();
    std::fs::rename(&new, &program.path).unwrap();
    let daemon = Daemon::start(&rule, &[]);
    daemon.set_limit(UID, 64 * MIB);
    running.begin(&format!("grow {}", 80 << 10));
    assert!(running.answer().is_some());
    support::eventually("the daemon reports that there is no victim", || {
        daemon.log().into_iter().find(|line| line.contains("1 protected"))
    });
    assert!(daemon.status().kills == 0 && running.is_alive());
}

#[test]
fn a_rule_that_never_matches_is_a_row_of_the_status_and_of_the_log_at_reload() {
    if !privileged() {
        return;
    }
    let daemon = Daemon::start("", &[]);
    daemon.write_config("oomd.toml", "[[rule]]\nkill = \"avoid\"\nexe = \"sshd\"\n");
    daemon.request(&Request::Reload);
    let row = "oomd.toml:3: the rule's exe \"sshd\" never matches a process";
    let rows = daemon.status().degraded;
    assert!(rows.iter().any(|found| found.contains(row)), "{rows:?}");
    support::eventually("the log has the row", || {
        daemon.log().into_iter().find(|line| line.contains(row))
    });
}

#[test]
fn the_status_has_the_number_of_processes_that_each_rule_decides_about() {
    if !privileged() {
        return;
    }
    const UID: Uid = Uid(62124);
    let mut hogs = [Hog::start(UID), Hog::start(UID), Hog::start(UID)];
    for (number, hog) in (1..).zip(&mut hogs) {
        hog.name(number);
    }
    let rules = format!(
        "[[rule]]\nkill = \"prefer\"\nuser = {UID}\nname = \"hog-1\"\n\
         [[rule]]\nkill = \"avoid\"\nuser = {UID}\nname = \"hog-*\"\n\
         [[rule]]\nkill = \"avoid\"\nuser = {UID}\nname = \"hog-9\"\n"
    );
    let daemon = Daemon::start(&rules, &[]);
    let processes =
        |daemon: &Daemon| daemon.status().rules.iter().map(|it| it.processes).collect::<Vec<_>>();
    assert_eq!(processes(&daemon), [Some(1), Some(2), Some(0)]);
    daemon.write_config("oomd.toml", &rules.replace("hog-*", "hog-2"));
    daemon.request(&Request::Reload);
    assert_eq!(processes(&daemon), [Some(1), Some(1), Some(0)]);
}
