//! The file system in a session.

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
fn devices_are_linked_in_dev_under_the_requested_names() {
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
    let script = "cd /dev/binderfs && chmod 640 binder && mv vndbinder third && rm hwbinder && \
                  ls -l binder | cut -c1-10 && ls && test -O binder -a -O binder-control && \
                  cat features/extended_error";
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
    // A bus of this machine may be mounted there already: the session's is mounted over it.
    let buses = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        mounts.matches(" /dev/binderfs ").count()
    };
    let before = buses();
    let ended = run_script("grep -c ' /dev/binderfs ' /proc/self/mountinfo");
    assert_eq!(ended.out, format!("{}\n", before + 1), "{ended:?}");
    assert_eq!(buses(), before);
    assert!(!mounts());
    assert!(!std::path::Path::new("/dev/headroom").exists());
}

#[test]
fn links_in_dev_come_and_go_with_headroom_up() {
    if skipped() || !test_support::privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {folder}; rm -f /dev/binder /dev/hwbinder /dev/vndbinder; : >/dev/hwbinder; \
         {headroom} --binderd-socket {folder}/socket up --no-oom --link-dev --binder-logs \
         --mount {folder}/bus >log 2>&1 & \
         n=0; until [ -e /dev/vndbinder ]; do n=$((n+1)); [ $n -lt 600 ] || exit 9; sleep 0.05; \
         done; readlink /dev/binder; readlink /dev/hwbinder || echo as it was; \
         head -n 1 bus/binder_logs/state; kill $!; wait $!; echo $?; \
         readlink /dev/binder /dev/vndbinder || ls bus 2>&1 | wc -l; test -f /dev/hwbinder",
        folder = folder.path().display(),
        headroom = crate::support::program("headroom"),
    );
    // In the private /dev of a session: links to this machine's own bus are removed only there.
    let mut command = std::process::Command::new(crate::support::program("headroom"));
    command.args(["run", "--devices", "another", "--", "sh", "-c", &script]);
    let ended = crate::support::outcome(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<_> = ended.out.lines().collect();
    let link = folder.path().join("bus/binder");
    let expected = [link.to_str().unwrap(), "as it was", "binder state:", "0", "1"];
    assert_eq!(lines, expected, "{ended:?}");
}
