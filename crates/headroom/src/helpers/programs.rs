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
    let path = path_beside_us(name)?;
    let missing = path.display();
    ensure!(path.is_file(), "{missing} is missing; {}", Remedy::Install.of(name));
    Ok(path)
}

fn path_beside_us(name: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("cannot find our own executable")?;
    Ok(us.with_file_name(name))
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

/// What remedies depend on.
#[derive(Clone, Copy, Debug)]
struct Surroundings {
    /// systemd runs here and has the daemon's unit.
    has_unit: bool,
    /// The daemon's program is beside this one, or a part of it.
    has_program: bool,
    is_root: bool,
    /// This program was built here with the others: it is neither from a package nor static.
    is_build: bool,
}

impl Surroundings {
    fn of(program: &str) -> Self {
        let unit = format!("{program}.service");
        let is_part = cfg!(feature = "binderd") && program == BINDERD;
        let path = path_beside_us(program).unwrap_or_default();
        Self {
            has_unit: Path::new("/run/systemd/system").is_dir()
                && UNITS.iter().any(|folder| Path::new(folder).join(&unit).exists()),
            has_program: is_part || path.is_file(),
            is_root: rustix::process::geteuid().is_root(),
            is_build: !cfg!(feature = "binderd") && !path.starts_with("/usr/bin"),
        }
    }
}

/// What a user can do about a program of Headroom, for messages.
#[derive(Clone, Copy, Debug)]
pub enum Remedy {
    /// Start a daemon; if it is not there, install it.
    Start,
    /// Restart a daemon that runs.
    Restart,
    /// Install a program.
    Install,
}

impl Remedy {
    /// The remedy on this machine.
    pub fn of(self, program: &str) -> String {
        self.in_surroundings(program, Surroundings::of(program))
    }

    fn in_surroundings(self, program: &str, here: Surroundings) -> String {
        let command = match (self, here.has_unit, here.has_program) {
            (Self::Start, true, _) => format!("systemctl start {program}"),
            (Self::Restart, true, _) => format!("systemctl restart {program}"),
            (Self::Restart, false, _) => format!("end {program} and start it again"),
            (Self::Start, false, true) => {
                let other = if program == BINDERD { "--no-oom" } else { "--no-binder" };
                format!("headroom up {other}")
            }
            (Self::Start, false, false) | (Self::Install, ..) if here.is_build => {
                return format!("build {program} beside headroom with `make`");
            }
            (Self::Start, false, false) | (Self::Install, ..) => {
                return format!("install the package {program}");
            }
        };
        if here.is_root { command } else { command + ", as root" }
    }
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
    fn each_surrounding_has_its_remedies() {
        const OOMD: &str = "headroom-oomd";
        let here = |[has_unit, has_program, is_build]: [bool; 3]| Surroundings {
            has_unit,
            has_program,
            is_build,
            is_root: true,
        };
        let package = "install the package headroom-oomd";
        let build = "build headroom-oomd beside headroom with `make`";
        let [start, restart] = ["systemctl start headroom-oomd", "systemctl restart headroom-oomd"];
        let [up, again] = ["headroom up --no-binder", "end headroom-oomd and start it again"];
        // A unit, the program, a build: start, restart, install.
        for (surroundings, expected) in [
            ([true, true, false], [start, restart, package]),
            ([true, false, false], [start, restart, package]),
            ([false, true, false], [up, again, package]),
            ([false, false, false], [package, again, package]),
            ([true, true, true], [start, restart, build]),
            ([true, false, true], [start, restart, build]),
            ([false, true, true], [up, again, build]),
            ([false, false, true], [build, again, build]),
        ] {
            for is_root in [true, false] {
                let surroundings = Surroundings { is_root, ..here(surroundings) };
                let remedies = [Remedy::Start, Remedy::Restart, Remedy::Install]
                    .map(|remedy| remedy.in_surroundings(OOMD, surroundings));
                // Installing and building have no hint about root.
                let has_hint = |text| !is_root && ![package, build].contains(&text);
                let expected = expected
                    .map(|text| format!("{text}{}", if has_hint(text) { ", as root" } else { "" }));
                assert_eq!(remedies, expected, "{surroundings:?}");
            }
        }
        let alone = Surroundings { is_root: false, ..here([false, true, false]) };
        let of_binderd = Remedy::Start.in_surroundings(BINDERD, alone);
        assert_eq!(of_binderd, "headroom up --no-oom, as root");
    }
}
