//! `mount -t binder`, through `/sbin/mount.binder`.
//!
//! The helper is a link to the daemon, mounted over /sbin in a private mount namespace; each script
//! runs in such a namespace, as root or as an ordinary user in namespaces of its own.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use e2e::bus::daemon_program;
use e2e::wait;
use rustix::process::geteuid;
use tempfile::TempDir;

/// An ordinary user.
const USER: u32 = 1234;

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

/// Folders for a script, below one that every user can read.
struct Folders {
    folder: TempDir,
    /// Contains `mount.binder`.
    sbin: PathBuf,
    /// In place of /run.
    run: PathBuf,
    /// `$dir` of the script: empty, and belongs to the ordinary user.
    dir: PathBuf,
}

impl Folders {
    fn create() -> Self {
        let folder =
            tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir();
        let folder = folder.unwrap();
        let path = |name| folder.path().join(name);
        let (sbin, run, dir) = (path("sbin"), path("run"), path("bus"));
        for made in [&sbin, &run, &dir] {
            std::fs::create_dir(made).unwrap();
        }
        chown(&dir, Some(USER), Some(USER)).unwrap();
        Self { folder, sbin, run, dir }
    }

    /// Copies a program here, where an ordinary user can execute it. Another process does that: a
    /// child that another test forks concurrently would have the copy open for writing.
    fn copy(&self, program: &Path) -> PathBuf {
        let copy = self.folder.path().join(program.file_name().unwrap());
        assert!(Command::new("cp").arg(program).arg(&copy).status().unwrap().success());
        copy
    }

    /// Runs a shell script in which `mount -t binder` starts this daemon.
    fn run(&self, daemon: &Path, script: &str) -> Output {
        std::os::unix::fs::symlink(daemon, self.sbin.join("mount.binder")).unwrap();
        let prepared = format!(
            "set -e; sbin=$(realpath /sbin); mount -t overlay over -o lowerdir={}:$sbin $sbin; \
             mount --bind {} /run; dir={}; {script}",
            self.sbin.display(),
            self.run.display(),
            self.dir.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &prepared]);
        command.output().unwrap()
    }

    /// Whether a process runs whose arguments contain the name of these folders.
    fn in_use(&self) -> bool {
        let path = self.folder.path().to_str().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
            .any(|arguments| String::from_utf8_lossy(&arguments).contains(path))
    }
}

/// Runs a shell script in which `mount -t binder` works and `$dir` is an empty folder.
fn in_private_sbin(script: &str) -> Option<Output> {
    if let Some(reason) = obstacle() {
        test_support::skip(reason);
        return None;
    }
    Some(Folders::create().run(&daemon_program().unwrap(), script))
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
                     ls /run/headroom/*/binderd.log >/dev/null && umount $dir && false; fi";

/// The script's last lines: unmounts, and waits until the daemon's files in /run are removed.
const UNMOUNT: &str = "umount $dir; n=0; \
                       while [ -n \"$(ls /run/headroom)\" ]; do \
                       n=$((n+1)); [ $n -lt 600 ]; sleep 0.05; done; \
                       mountpoint -q $dir && exit 9; echo unmounted";

#[test]
fn mount_8_mounts_a_bus_and_umount_ends_its_daemon() {
    let script = "mount -t binder binder $dir; ls $dir; \
                  ls /run/headroom/binderd@*";
    let output = check(&format!("{script}; {UNMOUNT}"));
    if !output.is_empty() {
        let expected = "binder\nbinder-control\nfeatures\nhwbinder\nvndbinder\n";
        assert!(output.starts_with(expected), "{output}");
        assert!(output.contains("binderd-root.sock\nbinderd.log\nbinderd.sock\n"), "{output}");
        assert!(output.ends_with("unmounted\n"), "{output}");
    }
}

#[test]
fn the_source_unmounts_and_the_folder_can_be_mounted_again_at_once() {
    let again = "mount -t binder mybus $dir; ls $dir/binder >/dev/null; umount mybus";
    let script = vec![again; 20].join("; ");
    let output = check(&format!("{script}; mount -t binder binder $dir; {UNMOUNT}"));
    assert!(output.is_empty() || output == "unmounted\n", "{output}");
}

#[test]
fn mount_options_are_those_of_binderfs() {
    let script =
        "mount -t binder -o max=3,stats=global,nosuid binder $dir; cat $dir/binder_logs/state";
    let output = check(&format!("{script}; {UNMOUNT}"));
    assert!(output.is_empty() || output == "binder state:\nunmounted\n", "{output}");
}

#[test]
fn two_mounts_are_two_buses() {
    let script = "mkdir $dir/a $dir/b; \
                  mount -t binder binder $dir/a; mount -t binder binder $dir/b; \
                  rm $dir/a/hwbinder; ls $dir/b; umount $dir/a; ls $dir/b/hwbinder; umount $dir/b";
    let output = check(script);
    assert!(output.is_empty() || output.contains("hwbinder\nvndbinder\n"), "{output}");
}

#[test]
fn a_failed_mount_reports_the_reason() {
    for (script, expected) in [
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
        assert!(text.contains("mount.binder") && text.contains(expected), "{script}: {text}");
    }
}

/// What an ordinary user's bus ends with.
#[derive(Clone, Copy)]
enum End {
    Unmount,
    Namespace,
}

/// An ordinary user mounts a bus in its own namespaces, has calls on it, and leaves nothing.
fn expect_bus_of_ordinary_user(variable: &str, end: End) {
    if let Some(reason) = obstacle() {
        return test_support::skip(reason);
    }
    let folders = Folders::create();
    let daemon = folders.copy(&daemon_program().unwrap());
    let client = folders.copy(&test_support::programs::built("e2e", "bus_client"));
    let runtime = folders.folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    chown(&runtime, Some(USER), Some(USER)).unwrap();
    let end = match end {
        End::Unmount => "umount $dir; mountpoint -q $dir && exit 9; true",
        End::Namespace => "true",
    };
    let script = format!(
        "export dir; exec setpriv --reuid {USER} --regid {USER} --clear-groups env \
         -u XDG_RUNTIME_DIR {variable}={runtime} unshare -Urm sh -ec '\
         mount -t binder binder $dir; {client} call-echo $dir/binder; ls {runtime}/*; {end}'",
        runtime = runtime.display(),
        client = client.display(),
    );
    let output = folders.run(&daemon, &script);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {out}\n{err}", output.status);
    assert!(out.ends_with("binderd-root.sock\nbinderd.log\nbinderd.sock\n"), "{out}\n{err}");
    let is_empty = |folder: &Path| folder.read_dir().unwrap().next().is_none();
    let ended = wait::until(Duration::from_secs(30), || {
        (!folders.in_use() && is_empty(&runtime)).then_some(())
    });
    assert!(ended.is_some(), "the daemon or its files are left: {err}");
    assert!(is_empty(&folders.run), "an ordinary user wrote to /run");
}

#[test]
fn the_bus_of_an_ordinary_user_ends_with_its_namespaces() {
    expect_bus_of_ordinary_user("XDG_RUNTIME_DIR", End::Namespace);
}

#[test]
fn an_ordinary_user_without_runtime_folder_has_its_files_among_the_temporary_ones() {
    expect_bus_of_ordinary_user("TMPDIR", End::Unmount);
}
