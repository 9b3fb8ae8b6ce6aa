//! Private namespaces: mounts, process ids, and users if this process is not root.

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow};
use headroom_linux::features::has_capability;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::CapabilitySet;

use crate::helpers::output;

/// The namespaces that were created.
#[derive(Clone, Copy, Debug)]
pub struct Isolation {
    /// A user namespace in which this process is root; outside it has no privilege.
    pub users: bool,
    /// A pid namespace for the children, which ends with its first process.
    pub pids: bool,
}

/// Settings that can forbid user namespaces: name, value that forbids them, value that allows them.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
];
/// Contains "1" where AppArmor permits user namespaces only to programs whose profile says so, as
/// on Ubuntu.
const RESTRICTION: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
/// A name of this program, beside `headroom`, to which such a profile is attached: it must confine
/// the command, but no other use of `headroom`.
const CONFINED_NAME: &str = "headroom-run";

/// Executes this program anew by the name that has a profile, if it needs one for user namespaces.
pub fn enter_profile() -> anyhow::Result<()> {
    if is_capable() {
        return Ok(());
    }
    let Some(program) = profiled_program()? else { return Ok(()) };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().cloned().unwrap_or_else(|| "headroom".into());
    let error = Command::new(&program).arg0(name).args(arguments.iter().skip(1)).exec();
    Err(anyhow!("cannot execute {}: {error}", program.display()))
}

/// The name of this program that has a profile, if user namespaces require one here.
pub fn profiled_program() -> anyhow::Result<Option<PathBuf>> {
    let us = std::env::current_exe().context("cannot find our own executable")?;
    let restriction = std::fs::read_to_string(RESTRICTION).unwrap_or_default();
    Ok(confined_program(&restriction, &us))
}

/// The program to execute in place of `us`; `None`: no profile is needed, in force, or installed.
fn confined_program(restriction: &str, us: &Path) -> Option<PathBuf> {
    let program = us.with_file_name(CONFINED_NAME);
    (restriction.trim() == "1" && us != program && program.is_file()).then_some(program)
}

/// Puts this process (of one thread) into a private mount namespace and, if that requires one, into
/// a user namespace: then it returns true.
pub fn enter() -> anyhow::Result<bool> {
    let users = enter_mount_namespace()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| refused("private mounts", &errno.into()))?;
    Ok(users)
}

/// Makes a pid namespace for the children of this process (of one thread). False: it is not
/// available.
pub fn enter_pids() -> bool {
    let pids = pid_namespace_works() && unshare(libc::CLONE_NEWPID).is_ok();
    if !pids {
        output::warn(format_args!(
            "no pid namespace with its own /proc can be had here: should `headroom run` \
             be killed with SIGKILL, processes that the command left in the background survive it"
        ));
    }
    pids
}

/// True: it required a user namespace. Root does not need one, and so keeps its rights on other
/// users' files; but root of a container that lacks `CAP_SYS_PTRACE` may not read clients' memory
/// if Yama forbids it.
fn enter_mount_namespace() -> anyhow::Result<bool> {
    if is_capable() && unshare(libc::CLONE_NEWNS).is_ok() {
        return Ok(false);
    }
    match enter_user_namespace() {
        Ok(()) => unshare(libc::CLONE_NEWNS)
            .map(|()| true)
            .map_err(|error| refused("a mount namespace", &error)),
        Err(_) if unshare(libc::CLONE_NEWNS).is_ok() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether this process needs no user namespace.
fn is_capable() -> bool {
    has_capability(CapabilitySet::SYS_PTRACE)
}

/// Mounts /proc for the pid namespace that this process is in.
pub fn mount_proc() -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain numbers; this process has one thread, whose namespaces change.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The identity stays the same afterwards: one user and one group are mapped, to themselves.
fn enter_user_namespace() -> anyhow::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(libc::CLONE_NEWUSER).map_err(|error| refused("a user namespace", &error))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        std::fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| refused("a user namespace", &error))
            .with_context(|| format!("cannot write /proc/self/{file}"))?;
    }
    Ok(())
}

fn refused(what: &str, error: &io::Error) -> anyhow::Error {
    anyhow!("the kernel refuses {what}: {error}{}", remedies())
}

/// Reasons why user namespaces may be refused here, and remedies; each after a semicolon.
pub fn remedies() -> String {
    reasons(|name| std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok())
}

/// [`remedies`], as far as the settings show them.
fn reasons(setting: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    for (name, forbids, allows) in SETTINGS {
        if setting(name).is_some_and(|value| value.trim() == forbids) {
            let _ =
                write!(text, "; {name} is {forbids}: `sysctl {name}={allows}` as root allows it");
        }
    }
    if text.is_empty() {
        text += "; no sysctl forbids it, so a container's seccomp or AppArmor profile does: give \
                 the container CAP_SYS_ADMIN, no AppArmor profile, and the device /dev/fuse";
    }
    text
}

/// Tries a pid namespace with its own /proc, in a child: containers cover parts of their /proc, and
/// then the kernel refuses a fresh one.
fn pid_namespace_works() -> bool {
    in_child(|| {
        unshare(libc::CLONE_NEWNS | libc::CLONE_NEWPID).is_ok() && in_child(|| mount_proc().is_ok())
    })
}

/// The result of `test` in a child process.
fn in_child(test: impl FnOnce() -> bool) -> bool {
    // SAFETY: this process has one thread, so the child may do whatever the parent may; it exits
    // without cleaning up.
    unsafe {
        match libc::fork() {
            -1 => false,
            0 => libc::_exit(if test() { 0 } else { 1 }),
            pid => {
                let mut status = 0;
                while libc::waitpid(pid, &mut status, 0) < 0 {
                    if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                        return false;
                    }
                }
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_forbids_user_namespaces_is_named_with_its_remedy() {
        let ubuntu = |name: &str| {
            (name == "kernel.apparmor_restrict_unprivileged_userns").then(|| "1\n".to_owned())
        };
        let text = reasons(ubuntu);
        assert!(text.contains("kernel.apparmor_restrict_unprivileged_userns=0"), "{text}");
        assert!(!text.contains("max_user_namespaces"), "{text}");
        let none_left = |name: &str| (name == "user.max_user_namespaces").then(|| "0\n".to_owned());
        assert!(reasons(none_left).contains("sysctl user.max_user_namespaces="));
    }

    #[test]
    fn without_a_forbidding_setting_a_container_is_suspected() {
        assert!(reasons(|_| None).contains("container"));
        assert!(reasons(|_| Some("96365\n".to_owned())).contains("container"));
    }

    #[test]
    fn the_name_with_a_profile_is_executed_once_and_only_under_a_restriction() {
        let folder = tempfile::tempdir().unwrap();
        let (us, confined) = (folder.path().join("headroom"), folder.path().join(CONFINED_NAME));
        assert_eq!(confined_program("1\n", &us), None, "it is not installed");
        std::fs::write(&confined, "").unwrap();
        assert_eq!(confined_program("1\n", &us), Some(confined.clone()));
        assert_eq!(confined_program("0\n", &us), None);
        assert_eq!(confined_program("", &us), None);
        assert_eq!(confined_program("1\n", &confined), None);
    }
}
