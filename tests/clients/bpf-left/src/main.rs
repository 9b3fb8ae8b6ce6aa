//! Lists the BPF objects of a process, and checks which of them still exist.
//!
//! `bpf-left of PID` prints them, one line each (`prog 12`); `bpf-left check` reads such lines,
//! prints the objects that still exist, and exits with code 1 if there are any.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::ExitCode;

/// Commands of bpf(2) that open an object by its id (linux/bpf.h), and the object's name in fdinfo.
const KINDS: [(&str, libc::c_int); 3] = [("prog", 13), ("map", 14), ("link", 30)];

fn of(pid: &str) -> Result<BTreeSet<String>, std::io::Error> {
    let mut objects = BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed meanwhile.
        let info = std::fs::read_to_string(entry?.path()).unwrap_or_default();
        for line in info.lines() {
            for (kind, _) in KINDS {
                if let Some(id) = line.strip_prefix(&format!("{kind}_id:")) {
                    objects.insert(format!("{kind} {}", id.trim()));
                }
            }
        }
    }
    Ok(objects)
}

fn exists(command: libc::c_int, id: u32) -> Result<bool, std::io::Error> {
    // The first members of the command's attributes: id, next id, open flags.
    let attributes = [id, 0, 0];
    // SAFETY: the kernel reads as many bytes as the size argument gives, which is the size of the
    // array.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, command, &attributes, size_of_val(&attributes)) };
    let error = std::io::Error::last_os_error();
    match i32::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel has just installed it for this process.
            unsafe { libc::close(fd) };
            Ok(true)
        }
        _ if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        _ => Err(error),
    }
}

fn check(list: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let mut left = false;
    for line in list.lines() {
        let (kind, id) = line.split_once(' ').ok_or_else(|| format!("not an object: '{line}'"))?;
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        let (_, command) = known.ok_or_else(|| format!("not a kind of object: '{kind}'"))?;
        if exists(*command, id.parse()?)? {
            println!("{line}");
            left = true;
        }
    }
    Ok(left)
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["of", pid] => of(pid)?.iter().for_each(|object| println!("{object}")),
        ["check"] => {
            let mut list = String::new();
            std::io::stdin().read_to_string(&mut list)?;
            return Ok(if check(&list)? { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        _ => return Err("usage: bpf-left of PID | bpf-left check".into()),
    }
    Ok(ExitCode::SUCCESS)
}
