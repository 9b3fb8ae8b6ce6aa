//! How a daemon is started on this machine, for messages.

use std::path::Path;

use super::programs;

/// Folders of systemd's units, in which packages and administrators install them.
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

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
        let is_part = cfg!(feature = "binderd") && daemon == programs::BINDERD;
        Self {
            has_unit: Path::new("/run/systemd/system").is_dir()
                && UNITS.iter().any(|folder| Path::new(folder).join(&unit).exists()),
            has_program: is_part || programs::beside_us(daemon).is_ok(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }
}

/// What starts the daemon here.
pub fn command(daemon: &str) -> String {
    command_in(daemon, Surroundings::of(daemon))
}

fn command_in(daemon: &str, here: Surroundings) -> String {
    let command = match here {
        Surroundings { has_unit: true, .. } => format!("systemctl start {daemon}"),
        Surroundings { has_program: true, .. } => {
            let other = if daemon == programs::BINDERD { "--no-oom" } else { "--no-binder" };
            format!("headroom up {other}")
        }
        Surroundings { .. } => return format!("install the package {daemon}"),
    };
    if here.is_root { command } else { command + ", as root" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_surrounding_has_its_command() {
        let command = |daemon, has_unit, has_program, is_root| {
            command_in(daemon, Surroundings { has_unit, has_program, is_root })
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
