//! Programs that are told of a kill.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::arguments::Arguments;
use super::processes::Known;
use super::say::Say;

/// What a program that is run before the kill gets to look at its victim.
const HEAD_START: Duration = Duration::from_millis(200);

/// Runs `-P`'s program and gives it its head start.
pub fn before(arguments: &Arguments, victim: &Known, say: &Say) {
    if let Some(program) = &arguments.before {
        run(program, victim, say);
        std::thread::sleep(HEAD_START);
    }
}

/// Tells `-n` and `-N`.
pub fn after(arguments: &Arguments, victim: &Known, say: &Say) {
    let Known { process, name, .. } = victim;
    notice(arguments, &format!("Low memory! Killing process {} {name}", process.pid), say);
    if let Some(program) = &arguments.after {
        run(program, victim, say);
    }
}

/// A notice on the system bus, as earlyoom's, for those who show it on a desktop.
pub fn notice(arguments: &Arguments, text: &str, say: &Say) {
    if !arguments.notify {
        return;
    }
    let mut command = Command::new("/usr/bin/dbus-send");
    command.args(["--system", "/", "net.nuetzlich.SystemNotifications.Notify"]);
    command.arg("string:earlyoom").arg(format!("string:{text}"));
    start(command, say);
}

fn run(program: &Path, victim: &Known, say: &Say) {
    let mut command = Command::new(program);
    command
        .env("EARLYOOM_PID", victim.process.pid.to_string())
        .env("EARLYOOM_UID", victim.process.uid.to_string())
        .env("EARLYOOM_NAME", victim.name.replace('\0', " "))
        .env("EARLYOOM_CMDLINE", victim.cmdline.replace('\0', " "));
    start(command, say);
}

fn start(mut command: Command, say: &Say) {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.stdin(Stdio::null()).spawn() {
        // Nobody waits for it but the one who has to: it is not to become a zombie.
        Ok(mut child) => drop(std::thread::spawn(move || child.wait())),
        Err(error) => say.warn(&format!("{name} cannot be started: {error}")),
    }
}
