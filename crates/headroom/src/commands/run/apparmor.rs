//! AppArmor may permit user namespaces only to programs whose profile says so, as on Ubuntu. Such a
//! profile must confine the command, but no other use of `headroom`, so it is attached to another
//! name of this program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow};

/// Contains "1" where user namespaces need a profile.
const RESTRICTION: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
/// The name with a profile, beside `headroom`.
const CONFINED_NAME: &str = "headroom-run";

/// Executes this program anew by the name that has a profile, if it needs one.
pub fn enter_profile() -> anyhow::Result<()> {
    let us = std::env::current_exe().context("cannot find our own executable")?;
    let restriction = std::fs::read_to_string(RESTRICTION).unwrap_or_default();
    let Some(program) = confined_program(&restriction, &us) else { return Ok(()) };
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let name = arguments.first().cloned().unwrap_or_else(|| "headroom".into());
    let error = Command::new(&program).arg0(name).args(arguments.iter().skip(1)).exec();
    Err(anyhow!("cannot execute {}: {error}", program.display()))
}

/// The program to execute in place of `us`; `None`: no profile is needed, in force, or installed.
fn confined_program(restriction: &str, us: &Path) -> Option<PathBuf> {
    let program = us.with_file_name(CONFINED_NAME);
    (restriction.trim() == "1" && us != program && program.is_file()).then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

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
