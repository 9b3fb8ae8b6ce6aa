//! Programs that this one executes: those that belong to it, what starts the daemons on this
//! machine, and the exit codes of commands that run another one.

use std::io;
#[cfg(feature = "binderd")]
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
#[cfg(feature = "binderd")]
use std::process::ExitCode;
use std::process::{Command, ExitStatus};

use anyhow::{Context, ensure};

/// Name of the binder daemon, and of this program when it was started as the daemon.
pub const BINDERD: &str = "headroom-binderd";
/// Folders of systemd's units, in which packages and administrators install them.
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// Exit code, as `env`, `timeout` and `docker run` use them: there is no bus, or the session failed
/// otherwise.
pub const RUN_FAILED: u8 = 125;
/// Exit code: the command exists and cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Exit code: there is no such command.
const NOT_FOUND: u8 = 127;

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

/// What the command that starts a daemon depends on.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    /// systemd runs here and has the daemon's unit.
    has_unit: bool,
    /// The daemon's program is beside this one, or a part of it.
    has_program: bool,
    is_root: bool,
}

impl Surroundings {
    fn of(daemon: &str) -> Self {
        let unit = format!("{daemon}.service");
        let is_part = cfg!(feature = "binderd") && daemon == BINDERD;
        Self {
            has_unit: Path::new("/run/systemd/system").is_dir()
                && UNITS.iter().any(|folder| Path::new(folder).join(&unit).exists()),
            has_program: is_part || beside_us(daemon).is_ok(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

/// What starts the daemon here, for messages.
pub fn start_command(daemon: &str) -> String {
    command_in("start", daemon, Surroundings::of(daemon))
}

/// What restarts the running daemon here, for messages.
pub fn restart_command(daemon: &str) -> String {
    command_in("restart", daemon, Surroundings::of(daemon))
}

fn command_in(verb: &str, daemon: &str, here: Surroundings) -> String {
    let command = match here {
        Surroundings { has_unit: true, .. } => format!("systemctl {verb} {daemon}"),
        Surroundings { has_program: true, .. } if verb == "restart" => {
            format!("end {daemon} and start it again")
        }
        Surroundings { has_program: true, .. } => {
            let other = if daemon == BINDERD { "--no-oom" } else { "--no-binder" };
            format!("headroom up {other}")
        }
        Surroundings { .. } => return format!("install the package {daemon}"),
    };
    if here.is_root { command } else { command + ", as root" }
}

/// Exit code for a command that could not be executed.
pub fn exit_code_of_failed_exec(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// The command's exit code, or 128 + n if signal n killed it.
pub fn exit_code_of(ended: ExitStatus) -> u8 {
    let killed = ended.signal().map(|signal| 128 + signal);
    ended.code().or(killed).unwrap_or(RUN_FAILED.into()) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_surrounding_has_its_command() {
        let command = |daemon, has_unit, has_program, is_root| {
            command_in("start", daemon, Surroundings { has_unit, has_program, is_root })
        };
        for (daemon, expected) in [
            (
                "headroom-oomd",
                [
                    "systemctl start headroom-oomd",
                    "headroom up --no-binder",
                    "systemctl start headroom-oomd, as root",
                    "headroom up --no-binder, as root",
                ],
            ),
            (
                "headroom-binderd",
                [
                    "systemctl start headroom-binderd",
                    "headroom up --no-oom",
                    "systemctl start headroom-binderd, as root",
                    "headroom up --no-oom, as root",
                ],
            ),
        ] {
            let found = [(true, true), (false, true), (true, false), (false, false)]
                .map(|(has_unit, is_root)| command(daemon, has_unit, true, is_root));
            assert_eq!(found, expected);
            let without = command(daemon, false, false, true);
            assert_eq!(without, format!("install the package {daemon}"));
        }
    }
}
