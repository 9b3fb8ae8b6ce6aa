//! For which machine an executable or a library was built.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Length of the part of the ELF header that is read.
const HEADER: usize = 20;

/// Class and machine of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfKind {
    /// `EI_CLASS`: 1 for 32 bits, 2 for 64.
    class: u8,
    /// `e_machine`, in the file's byte order.
    machine: [u8; 2],
}

impl ElfKind {
    /// `None`: the file cannot be read, or is no ELF file.
    pub fn of(path: &Path) -> Option<Self> {
        let mut header = [0; HEADER];
        File::open(path).ok()?.read_exact(&mut header).ok()?;
        Self::parse(&header)
    }

    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let machine = [header[18], header[19]];
        header.starts_with(b"\x7fELF").then_some(Self { class: header[4], machine })
    }

    /// 32 or 64.
    pub fn bits(self) -> u8 {
        if self.class == 1 { 32 } else { 64 }
    }
}

/// The file that `execvp` would execute; `None`: there is none.
pub fn program_file(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    std::env::split_paths(path?).map(|folder| folder.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, machine: u8) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(b"\x7fELF");
        (header[4], header[18]) = (class, machine);
        header
    }

    #[test]
    fn files_for_other_machines_differ() {
        let native = ElfKind::parse(&header(2, 62)).unwrap();
        assert_eq!(native.bits(), 64);
        assert_eq!(ElfKind::parse(&header(1, 3)).map(ElfKind::bits), Some(32));
        assert_ne!(ElfKind::parse(&header(2, 183)), Some(native));
        assert_eq!(ElfKind::parse(b"#!/bin/sh\nexec true\n"), None);
    }

    #[test]
    fn a_program_is_searched_in_the_path_unless_it_names_a_folder() {
        let path = Some(OsStr::new("/nonexistent:/bin"));
        assert_eq!(program_file(OsStr::new("sh"), path), Some("/bin/sh".into()));
        assert_eq!(program_file(OsStr::new("./sh"), path), Some("./sh".into()));
        assert_eq!(program_file(OsStr::new("no-such-program"), path), None);
    }
}
