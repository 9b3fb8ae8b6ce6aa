//! What a session sees of the file system.

use crate::support::{run_script, skipped};

#[test]
fn all_else_in_dev_is_as_outside() {
    if skipped() {
        return;
    }
    let list = |text: &str| -> Vec<String> {
        let ours = |name: &&str| !name.contains("binder") && *name != "headroom";
        text.lines().filter(ours).map(str::to_owned).collect()
    };
    let outside = std::process::Command::new("sh").args(["-c", "ls /dev"]).output().unwrap();
    let outside = String::from_utf8(outside.stdout).unwrap();
    let ended = run_script("ls /dev && echo hello >/dev/null && head -c 4 /dev/zero | od -An -tx1");
    assert!(ended.out.ends_with(" 00 00 00 00\n"), "{ended:?}");
    let inside = ended.out.replace(" 00 00 00 00\n", "");
    assert_eq!(list(&inside), list(&outside), "{}", ended.err);
    assert_eq!(ended.err, "");
}

#[test]
fn devices_are_linked_in_dev_under_the_names_that_are_asked_for() {
    if skipped() {
        return;
    }
    let ended =
        run_script("readlink /dev/binder /dev/hwbinder /dev/vndbinder; echo $HEADROOM_BINDER");
    let expected = "binderfs/binder\nbinderfs/hwbinder\nbinderfs/vndbinder\n/dev/binderfs\n";
    assert_eq!(ended.out, expected, "{ended:?}");
    let mut run = crate::support::headroom();
    let script = "readlink /dev/anbox; ls /dev/binderfs";
    let ended =
        crate::support::outcome(run.args(["run", "--devices", "anbox", "--", "sh", "-c", script]));
    assert_eq!(ended.out, "binderfs/anbox\nanbox\nbinder-control\nbinder_logs\nfeatures\n");
}

#[test]
fn the_bus_is_the_users_own() {
    if skipped() {
        return;
    }
    let script = "cd /dev/binderfs && chmod 640 binder && mv vndbinder third && rm hwbinder && ls -l binder \
                  | cut -c1-10 && ls && test -O binder -a -O binder-control && cat features/extended_error";
    let ended = run_script(script);
    let expected = "-rw-r-----\nbinder\nbinder-control\nbinder_logs\nfeatures\nthird\n1\n";
    assert_eq!(ended.out, expected, "{ended:?}");
}

#[test]
fn processes_of_the_session_are_numbered_apart_and_proc_agrees() {
    if skipped() {
        return;
    }
    let ended = run_script("readlink /proc/self/ns/pid; test -d /proc/$$ && cat /proc/1/comm");
    let ours = std::fs::read_link("/proc/self/ns/pid").unwrap();
    assert!(!ended.out.starts_with(ours.to_str().unwrap()), "{ended:?}");
    assert!(ended.out.ends_with("headroom\n"), "{ended:?}");
}

#[test]
fn nothing_outside_changes() {
    if skipped() {
        return;
    }
    let mounts =
        || std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains("devices /dev ");
    assert!(!mounts());
    let ended = run_script("grep -c ' /dev/binderfs ' /proc/self/mountinfo");
    assert_eq!(ended.out, "1\n", "{ended:?}");
    assert!(!std::path::Path::new("/dev/headroom").exists());
}
