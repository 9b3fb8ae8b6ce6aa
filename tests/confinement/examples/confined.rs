//! `confined UNIT PROGRAM [ARGUMENT...]` runs a program with the confinement of a unit, to test the
//! unit with other tests.
//!
//! SIGSYS kills the program at the first system call that the unit does not list.

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), String> {
    use std::os::unix::process::CommandExt;

    let mut arguments = std::env::args_os().skip(1);
    let (Some(unit), Some(program)) = (arguments.next(), arguments.next()) else {
        return Err("usage: confined UNIT PROGRAM [ARGUMENT...]".into());
    };
    let text = std::fs::read_to_string(&unit);
    let text = text.map_err(|error| format!("{}: {error}", unit.display()))?;
    let mut command = std::process::Command::new(&program);
    command.args(arguments);
    confinement::Confinement::of(&text)?.apply(&mut command);
    Err(format!("{}: {}", program.display(), command.exec()))
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> Result<(), String> {
    Err("for x86-64 only".into())
}
