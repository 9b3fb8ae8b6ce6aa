//! The programs that belong to this one.

#[cfg(feature = "binderd")]
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
#[cfg(feature = "binderd")]
use std::process::ExitCode;

use anyhow::{Context, ensure};

/// Name of the binder daemon, and of this program when it was started as the daemon.
pub const BINDERD: &str = "headroom-binderd";

/// Path of a program beside this one. The daemons are installed beside `headroom`; no other program
/// is ever run as root.
pub fn beside_us(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find our own executable")?;
    let path = us.parent().unwrap_or(Path::new("/")).join(name);
    let (missing, us) = (path.display(), us.display());
    #[cfg(feature = "binderd")]
    ensure!(
        path.is_file(),
        "{missing} is missing: the static {us} contains headroom-binderd only; install the package \
         {name}"
    );
    #[cfg(not(feature = "binderd"))]
    ensure!(path.is_file(), "{missing} is missing: it belongs beside {us}");
    Ok(path)
}

/// A command that starts the binder daemon.
#[cfg(not(feature = "binderd"))]
pub fn binderd() -> anyhow::Result<Command> {
    Ok(Command::new(beside_us(BINDERD)?))
}

/// A command that starts the binder daemon: this program, whose `main` goes by its name.
#[cfg(feature = "binderd")]
pub fn binderd() -> anyhow::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(BINDERD);
    Ok(command)
}

/// Runs the binder daemon if this process was started as one of its programs: by `headroom`, by the
/// daemon itself, or through a link of that name.
#[cfg(feature = "binderd")]
pub fn run_binderd_if_named() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    let name = Path::new(&name).file_name()?;
    if ![BINDERD, "mount.binder", "binder-bus"].iter().any(|known| name == *known) {
        return None;
    }
    // The name in ps; executing /proc/self/exe made it "exe". It has the first 15 bytes only.
    let _ = rustix::thread::set_name(c"headroom-binderd");
    Some(headroom_binderd::main())
}
