//! `mount -t binder`, through `/sbin/mount.binder`.
//!
//! The helper is a link to the daemon, mounted over /sbin in a private mount namespace; each script
//! runs in such a namespace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use e2e::bus::daemon_program;
use rustix::process::geteuid;

fn obstacle() -> Option<String> {
    if !geteuid().is_root() {
        return Some("mount(8) needs root".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse is missing".to_owned());
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    (!filesystems.contains("overlay")).then(|| "no overlayfs to lay a helper over /sbin".to_owned())
}

/// Runs a shell script in which `mount -t binder` works and `$dir` is an empty folder.
fn in_private_sbin(script: &str) -> Option<Output> {
    if let Some(reason) = obstacle() {
        test_support::skip(reason);
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (helpers, dir, run): (PathBuf, PathBuf, PathBuf) =
        (folder.path().join("sbin"), folder.path().join("bus"), folder.path().join("run"));
    for made in [&helpers, &dir, &run] {
        std::fs::create_dir(made).unwrap();
    }
    std::os::unix::fs::symlink(daemon_program().unwrap(), helpers.join("mount.binder")).unwrap();
    let prepared = format!(
        "set -e; sbin=$(realpath /sbin); mount -t overlay over -o lowerdir={}:$sbin $sbin; \
         mount --bind {} /run; dir={}; {script}",
        helpers.display(),
        run.display(),
        dir.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &prepared]);
    Some(command.output().unwrap())
}

fn check(script: &str) -> String {
    let Some(output) = in_private_sbin(script) else { return String::new() };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}\n{err}", output.status);
    // The daemon reports missing features of this machine on standard error.
    out
}

/// The second mount fails, and the log and daemon of the first one stay the same.
const TWICE: &str = "mount -t binder binder $dir; \
                     if mount -t binder binder $dir; then umount $dir; else \
                     ls /run/headroom/*.log >/dev/null && umount $dir && false; fi";

/// The script's last lines: unmounts, and waits until the daemon and its files in /run are gone.
const UNMOUNT: &str = "umount $dir; n=0; \
                       while [ -n \"$(ls /run/headroom/*.sock 2>/dev/null)\" ]; do \
                       n=$((n+1)); [ $n -lt 600 ]; sleep 0.05; done; \
                       mountpoint -q $dir && exit 9; echo unmounted";

#[test]
fn mount_8_mounts_a_bus_and_umount_ends_its_daemon() {
    let script = "mount -t binder binder $dir; ls $dir; \
                  ls /run/headroom | sed 's/@.*[.]/@./'";
    let said = check(&format!("{script}; {UNMOUNT}"));
    if !said.is_empty() {
        let expected = "binder\nbinder-control\nfeatures\nhwbinder\nvndbinder\n";
        assert!(said.starts_with(expected), "{said}");
        assert!(said.contains("binderd@.log\nbinderd@.sock\n"), "{said}");
        assert!(said.ends_with("unmounted\n"), "{said}");
    }
}

#[test]
fn mount_options_are_those_of_binderfs() {
    let script =
        "mount -t binder -o max=3,stats=global,nosuid binder $dir; cat $dir/binder_logs/state";
    let said = check(&format!("{script}; {UNMOUNT}"));
    assert!(said.is_empty() || said == "binder state:\nunmounted\n", "{said}");
}

#[test]
fn two_mounts_are_two_buses() {
    let script = "mkdir $dir/a $dir/b; \
                  mount -t binder binder $dir/a; mount -t binder binder $dir/b; \
                  rm $dir/a/hwbinder; ls $dir/b; umount $dir/a; ls $dir/b/hwbinder; umount $dir/b";
    let said = check(script);
    assert!(said.is_empty() || said.contains("hwbinder\nvndbinder\n"), "{said}");
}

#[test]
fn a_mount_that_fails_says_why() {
    for (script, complaint) in [
        ("mount -t binder -o max=2 binder $dir", "too many devices"),
        ("mount -t binder -o size=1m binder $dir", "unknown option \"size=1m\""),
        ("mount -t binder -o stats=local binder $dir", "only stats=global is known"),
        (TWICE, "another daemon listens on this socket"),
    ] {
        let Some(output) = in_private_sbin(&format!("{script} || {{ echo refused; exit 0; }}"))
        else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.stdout.ends_with(b"refused\n"), "{script}: {text}");
        assert!(text.contains("mount.binder") && text.contains(complaint), "{script}: {text}");
    }
}
